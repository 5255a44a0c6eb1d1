"""Any order of publishing, re-announcing, subscribing, taking and coming back ends in one state.

Sharing joined bytes and snapshots must not show: whoever has drained the stream holds exactly what
is live, has seen every number once and in order, and was given the same bytes as anybody who stood
where it stood.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.stream import EventStream, FellBehind, Subscription
from continuum_shared.kv_event import KvAction, KvEvent, decode
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey
from continuum_shared.sse import SseEvent, SseParser

KEYS = [PrefixKey(bytes([n]) * 32) for n in range(6)]

CHANGE = st.tuples(st.integers(0, 5), st.integers(0, 40))  # key, tokens; 0 tokens = evicted
STEP = st.one_of(
    st.tuples(st.just("publish"), st.lists(CHANGE, min_size=1, max_size=90)),
    st.tuples(st.just("clear"), st.just(0)),
    st.tuples(st.just("reannounce"), st.just(0)),
    st.tuples(st.just("join"), st.booleans()),
    st.tuples(st.just("take"), st.tuples(st.integers(0, 7), st.integers(1, 6))),
    st.tuples(st.just("return"), st.integers(0, 7)),
)


class Reader:
    """One subscriber across its reconnects, and the index that it would build."""

    def __init__(self, stream: EventStream, last_id: str | None) -> None:
        self.stream = stream
        self.held: dict[PrefixKey, int | None] = {}
        self.last_id = last_id
        self.came_back()

    def came_back(self) -> None:
        self.subscription: Subscription = self.stream.subscribe(self.last_id)
        self.parser = SseParser()
        if self.last_id is None:
            self.held.clear()
        self.number: int | None = None

    def take(self) -> bool:
        """One piece. False when there is nothing for now."""
        try:
            data = self.subscription.take()
        except FellBehind:
            self.subscription.leave()
            self.came_back()
            return True
        for record in data.split(b"\n\n"):
            for item in self.parser.feed(record + b"\n\n") if record else ():
                if isinstance(item, SseEvent):
                    self.apply(decode(item.event, item.data), item.id, b"\nid: " in record)
        return bool(data)

    def apply(self, event: KvEvent, identity: str | None, numbered: bool) -> None:
        if event.action is KvAction.PURGED:
            self.held.clear()
        elif event.action is KvAction.EVICTED:
            self.held.pop(event.prefix, None)
        else:
            self.held[event.prefix] = event.tokens
        if numbered:
            assert identity is not None
            number = int(identity.rpartition("-")[2])
            assert self.number is None or number == self.number + 1
            self.number, self.last_id = number, identity


class World:
    """The stream, what is live, and everybody who reads it."""

    def __init__(self) -> None:
        self.live: dict[PrefixKey, int] = {}
        self.stream = EventStream(
            epoch="e",
            max_prefix_length=1,
            snapshot=self.snapshot,
            metrics=ListenerMetrics(Metrics()).stream("s"),
            history=150,
        )
        self.readers: list[Reader] = []

    def snapshot(self) -> list[KvEvent]:
        return [
            KvEvent(action=KvAction.CREATED, prefix=key, tokens=tokens)
            for key, tokens in self.live.items()
        ]

    def publish(self, changes: list[tuple[int, int]]) -> None:
        events = []
        for index, tokens in changes:
            key = KEYS[index]
            if tokens:
                self.live[key] = tokens
                events.append(KvEvent(action=KvAction.CREATED, prefix=key, tokens=tokens))
            else:
                self.live.pop(key, None)
                events.append(KvEvent(action=KvAction.EVICTED, prefix=key))
        self.stream.publish(events)

    def do(self, what: str, how: object) -> None:
        if what == "publish":
            self.publish(how)
        elif what == "clear":
            self.live.clear()
            self.stream.publish([KvEvent(action=KvAction.PURGED)])
        elif what == "reannounce":
            self.stream.reannounce(self.snapshot())
        elif what == "join" and len(self.readers) < 8:
            self.readers.append(Reader(self.stream, "unknown-1" if how else None))
        elif what == "take" and self.readers:
            for _ in range(how[1]):
                self.readers[how[0] % len(self.readers)].take()
        elif what == "return" and self.readers:
            reader = self.readers[how % len(self.readers)]
            reader.subscription.leave()
            reader.came_back()


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_everybody_ends_with_what_is_live(steps):
    world = World()
    for what, how in steps:
        world.do(what, how)
    for reader in world.readers:
        while reader.take():
            pass
        assert reader.held == world.live
        assert reader.subscription.caught_up
    assert len(world.stream._subscribers) == len(world.readers)
