"""Records of ranks as records of one backend (decisions C18)."""

from continuum_kv_listener.prefix_ledger import HOT, WARM
from continuum_kv_listener.rank_merge import RankMerge, best
from continuum_shared.kv_event import KvAction, KvEvent
from continuum_shared.prefix_key import PrefixKey

A, B = PrefixKey(b"a" * 32), PrefixKey(b"b" * 32)


class Rank:
    def __init__(self) -> None:
        self.flushed = 0

    def publish_to(self, outlet) -> None:
        self.outlet = outlet

    def flush(self) -> None:
        self.flushed += 1

    def say(self, action: KvAction, prefix: PrefixKey | None = A, tokens: int | None = None):
        self.outlet.publish([KvEvent(action=action, prefix=prefix, tokens=tokens)])


class Stream:
    def __init__(self) -> None:
        self.log: list[tuple] = []

    def publish(self, events) -> None:
        self.log += [(event.action, event.prefix, event.tokens) for event in events]

    def take(self) -> list[tuple]:
        log, self.log = self.log, []
        return log


def made(ranks: int = 2) -> tuple[list[Rank], RankMerge, Stream]:
    rows, stream = [Rank() for _ in range(ranks)], Stream()
    merge = RankMerge(rows)
    merge.publish_to(stream)
    return rows, merge, stream


def test_the_best_rank_speaks_and_the_last_one_ends():
    (one, two), merge, stream = made()
    one.say(KvAction.CREATED, tokens=16)
    two.say(KvAction.CREATED, tokens=64)
    two.say(KvAction.CREATED, tokens=48)
    one.say(KvAction.CREATED, tokens=32)  # less than the other's
    assert merge.prefixes == 1
    two.say(KvAction.EVICTED)
    one.say(KvAction.EVICTED)
    assert stream.take() == [
        (KvAction.CREATED, A, 16),
        (KvAction.CREATED, A, 64),
        (KvAction.CREATED, A, 48),
        (KvAction.CREATED, A, 32),
        (KvAction.EVICTED, A, None),
    ]
    assert merge.prefixes == 0


def test_a_gpu_copy_of_any_rank_makes_it_hot():
    (one, two), _, stream = made()
    one.say(KvAction.OFFLOADED, tokens=64)
    two.say(KvAction.CREATED, tokens=16)
    two.say(KvAction.OFFLOADED, tokens=16)
    one.say(KvAction.EVICTED)
    two.say(KvAction.RELOADED, tokens=16)
    assert stream.take() == [
        (KvAction.OFFLOADED, A, 64),
        (KvAction.RELOADED, A, 16),
        (KvAction.OFFLOADED, A, 64),
        (KvAction.OFFLOADED, A, 16),
        (KvAction.RELOADED, A, 16),
    ]


def test_a_purged_rank_takes_only_what_it_alone_held():
    (one, two), merge, stream = made()
    for prefix in (A, B):
        one.say(KvAction.CREATED, prefix, 32)
    two.say(KvAction.CREATED, A, 16)
    stream.take()
    one.say(KvAction.PURGED, None)
    assert stream.take() == [(KvAction.CREATED, A, 16), (KvAction.EVICTED, B, None)]
    two.say(KvAction.PURGED, None)
    assert stream.take() == [(KvAction.PURGED, None, None)]
    assert merge.prefixes == 0


def test_a_removal_of_what_the_rank_never_held_says_nothing():
    (one, two), _, stream = made()
    one.say(KvAction.CREATED, tokens=16)
    stream.take()
    two.say(KvAction.EVICTED)
    two.say(KvAction.EVICTED, B)
    assert stream.take() == []


def test_a_snapshot_is_of_the_present():
    (one, two), merge, _ = made()
    one.say(KvAction.CREATED, tokens=16)
    two.say(KvAction.OFFLOADED, B, 32)
    rows = [(event.action, event.prefix, event.tokens) for event in merge.snapshot()]
    assert rows == [(KvAction.CREATED, A, 16), (KvAction.OFFLOADED, B, 32)]
    assert (one.flushed, two.flushed) == (1, 1)


def test_only_ranks_that_are_sure_count_for_telling_again():
    (one, two), merge, _ = made()
    one.say(KvAction.CREATED, tokens=64)
    two.say(KvAction.CREATED, tokens=16)
    one.say(KvAction.CREATED, B, 32)

    def sure(*doubted) -> list[tuple]:
        return [(event.prefix, event.tokens) for event in merge.sure(doubted)]

    none = frozenset()
    assert sure(none, none) == [(A, 64), (B, 32)]
    assert sure(frozenset({A}), none) == [(A, 16), (B, 32)]
    assert sure(None, none) == [(A, 16)]
    assert sure(None, None) == []


def test_best():
    assert best([(WARM, 90), (HOT, 10), (HOT, 30)]) == (HOT, 30)
    assert best([(WARM, 9)]) == (WARM, 9)
