import pytest

from continuum_router.backends.holding import Tier
from continuum_router.kv_index.apply import OffloadPolicy, next_tier
from continuum_shared.kv_event import KvAction

HOT, WARM = Tier.GPU_HOT, Tier.STORAGE_WARM
OFF = OffloadPolicy(enabled=False, treat_eviction_as_offload=True)
ON = OffloadPolicy(enabled=True, treat_eviction_as_offload=True)
STRICT = OffloadPolicy(enabled=True, treat_eviction_as_offload=False)

TABLE = [
    # action, known, off, on, on without treat_eviction_as_offload (decisions C11, C12)
    (KvAction.CREATED, None, HOT, HOT, HOT),
    (KvAction.CREATED, HOT, HOT, HOT, HOT),
    (KvAction.CREATED, WARM, HOT, HOT, HOT),
    (KvAction.RELOADED, None, HOT, HOT, HOT),
    (KvAction.RELOADED, HOT, HOT, HOT, HOT),
    (KvAction.RELOADED, WARM, HOT, HOT, HOT),
    (KvAction.OFFLOADED, None, None, WARM, WARM),
    (KvAction.OFFLOADED, HOT, None, WARM, WARM),
    (KvAction.OFFLOADED, WARM, None, WARM, WARM),
    (KvAction.EVICTED, None, None, None, None),
    (KvAction.EVICTED, HOT, None, WARM, None),
    (KvAction.EVICTED, WARM, None, None, None),
    (KvAction.PURGED, HOT, None, None, None),
]


@pytest.mark.parametrize(
    ("action", "known", "off", "on", "strict"),
    TABLE,
    ids=[f"{row[0].name}-{row[1].name if row[1] else 'unknown'}" for row in TABLE],
)
def test_the_transitions(action, known, off, on, strict):
    assert next_tier(action, known, OFF) is off
    assert next_tier(action, known, ON) is on
    assert next_tier(action, known, STRICT) is strict


def test_the_defaults_are_the_sources():
    assert OffloadPolicy() == OFF
