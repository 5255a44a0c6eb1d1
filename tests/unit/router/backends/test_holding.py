from dataclasses import FrozenInstanceError

import pytest

from continuum_router.backends.holding import Holding, Tier


def test_tier_values_are_the_metric_labels():
    assert [tier.value for tier in Tier] == ["gpu_hot", "storage_warm"]


def test_a_holding_is_a_value():
    holding = Holding(tokens=12, tier=Tier.GPU_HOT)
    assert holding == Holding(tokens=12, tier=Tier.GPU_HOT)
    with pytest.raises(FrozenInstanceError):
        holding.tokens = 13  # type: ignore[misc]
