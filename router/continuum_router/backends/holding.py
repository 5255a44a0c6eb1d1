"""What one backend holds of one prefix: the value that the index gives and the scorer reads."""

from dataclasses import dataclass
from enum import StrEnum


class Tier(StrEnum):
    """Where the KV blocks of a prefix lie (S0 "storage tiers"); the value is the metric label."""

    GPU_HOT = "gpu_hot"
    STORAGE_WARM = "storage_warm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """``tokens`` resident tokens (a count, at least 0) of a prefix in ``tier``."""

    tokens: int
    tier: Tier
