import pytest

from continuum_router.config.root import Config
from continuum_router.config.routing import PrefixRoutingConfig, StrategyName
from support.config_files import good_router


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RoundRobin", StrategyName.ROUND_ROBIN),
        ("round_robin", StrategyName.ROUND_ROBIN),
        ("PrefixAwareHash", StrategyName.PREFIX_AWARE_HASH),
        ("prefix_aware_hash", StrategyName.PREFIX_AWARE_HASH),
        ("WeightedRoundRobin", StrategyName.WEIGHTED_ROUND_ROBIN),
        ("least_latency", StrategyName.LEAST_LATENCY),
        ("Random", StrategyName.RANDOM),
        ("consistent_hash", StrategyName.CONSISTENT_HASH),
        ("LeastWork", StrategyName.LEAST_WORK),
    ],
)
def test_both_spellings(text, name):
    assert good_router(f"selection_strategy: {text}").selection_strategy is name
    assert text in Config.model_json_schema()["properties"]["selection_strategy"]["enum"]


def test_defaults():
    prefix = PrefixRoutingConfig()
    assert (prefix.enabled, prefix.max_prefix_length, prefix.load_factor_epsilon) == (
        False,
        1024,
        0.25,
    )
    assert (prefix.virtual_nodes, prefix.load_floor) == (150, 1)
