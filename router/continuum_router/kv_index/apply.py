"""What one KV event does to the index: the tier transitions of S0 "storage tiers". Pure.

The table, decisions C11 and C12 (``off`` = storage offloading disabled):

    event            known as    offloading on                         off
    cache_created    any         gpu_hot                               gpu_hot
    cache_reloaded   any         gpu_hot                               gpu_hot
    cache_offloaded  any         storage_warm                          removed
    cache_evicted    gpu_hot     storage_warm if treat_eviction_…      removed
                     warm        removed                               removed
                     unknown     nothing to do                         nothing to do
    cache_purged     -           everything of the backend removed     the same
"""

from dataclasses import dataclass

from continuum_router.backends.holding import Tier
from continuum_shared.kv_event import KvAction


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadPolicy:
    """The section ``kv_cache_index.storage_offloading``."""

    enabled: bool = False
    treat_eviction_as_offload: bool = True


def next_tier(action: KvAction, known: Tier | None, policy: OffloadPolicy) -> Tier | None:
    """Where a prefix lies after ``action``; ``None`` when it is gone.

    ``known`` is the tier before the event, ``None`` when nothing was known. An eviction never
    brings up what was not there. A purge is about the whole backend: every prefix is gone.
    """
    if action in (KvAction.CREATED, KvAction.RELOADED):
        return Tier.GPU_HOT
    if not policy.enabled or action is KvAction.PURGED:
        return None
    if action is KvAction.OFFLOADED:
        return Tier.STORAGE_WARM
    if known is Tier.GPU_HOT and policy.treat_eviction_as_offload:
        return Tier.STORAGE_WARM
    return None
