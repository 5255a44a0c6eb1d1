"""`model_aggregation`: defaults of S2, and what is refused."""

import pytest

from continuum_router.config.model_aggregation import Deduplication
from support.config_files import ROUTER_BASE, good_router, router_lines


def test_the_defaults_are_those_of_the_source() -> None:
    section = good_router("").model_aggregation
    assert (section.cache_ttl, section.soft_ttl_ratio) == (60.0, 0.8)
    assert (section.request_timeout, section.max_retries, section.retry_delay) == (5.0, 2, 0.5)
    assert (section.max_models_per_backend, section.max_total_models) == (1000, 5000)
    assert section.max_response_size == 10_485_760
    assert (section.empty_response_base_ttl, section.empty_response_max_ttl) == (5.0, 60.0)
    assert section.deduplication_strategy is Deduplication.MERGE_BACKENDS
    assert section.allow_force_refresh is True
    background = section.background_refresh
    assert (background.enabled, background.check_interval) == (True, 10.0)


@pytest.mark.parametrize(
    "text",
    [
        "soft_ttl_ratio: 0.0",
        "soft_ttl_ratio: 1.1",
        "max_models_per_backend: 0",
        "max_total_models: 0",
        "max_response_size: 0",
        "max_retries: -1",
        "cache_ttl: 0",
        "empty_response_max_ttl: 4s",
        "empty_response_base_ttl: 61s",
        "deduplication_strategy: none_wins",
    ],
)
def test_what_is_refused(text: str) -> None:
    lines = router_lines(ROUTER_BASE + "model_aggregation: {" + text + "}\n")
    assert len(lines) == 1
    assert "model_aggregation." + text.split(":")[0] in lines[0]


def test_the_whole_ratio_is_allowed() -> None:
    config = good_router("model_aggregation: {soft_ttl_ratio: 1.0}")
    assert config.model_aggregation.soft_ttl_ratio == 1.0
