"""Order, gaps, replays and restarts, played against a scripted source and replayer."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from continuum_kv_listener.engine_events import DropReason, RawBatch
from continuum_kv_listener.intake import Intake, IntakeSettings
from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.replay import ReplayError, ReplayFault
from continuum_kv_listener.sources.zmq_source import LinkDown, LinkUp
from continuum_shared.metrics import Metrics

UP, DOWN = LinkUp(session=1), LinkDown()


def raw(seq: int, life: str = "a") -> RawBatch:
    return RawBatch(source="s", rank=0, seq=seq, payload=b"%d-%s" % (seq, life.encode()))


class Source:
    """Gives what the test feeds it."""

    ever_connected = True

    def __init__(self) -> None:
        self.items: asyncio.Queue[list[object]] = asyncio.Queue()
        self.idle = asyncio.Event()
        self.timeouts: list[float | None] = []

    async def receive(self, timeout: float | None = None):
        self.timeouts.append(timeout)
        if self.items.empty():
            self.idle.set()
        items = await self.items.get()
        self.idle.clear()
        return items

    async def feed(self, *items: object) -> None:
        """Hand these over and wait until they are done with."""
        self.idle.clear()
        self.items.put_nowait(list(items))
        async with asyncio.timeout(5):
            await self.idle.wait()


class Engine:
    """A replay buffer: sequence numbers of one process life, some perhaps missing."""

    def __init__(self) -> None:
        self.buffer: list[RawBatch] = []
        self.requests: list[int] = []
        self.fails: list[ReplayFault] = []
        self.fail_after = 0
        self.holes: list[set[int]] = []

    def has(self, *seqs: int, life: str = "a") -> None:
        self.buffer = [raw(seq, life) for seq in seqs]

    @asynccontextmanager
    async def ask(self, start: int):
        self.requests.append(start)
        yield self._answers(start)

    async def _answers(self, start: int):
        left_out = self.holes.pop(0) if self.holes else set()
        fault = self.fails.pop(0) if self.fails else None
        answers = [b for b in self.buffer if b.seq >= start and b.seq not in left_out]
        for sent, batch in enumerate(answers):
            if fault is not None and sent == self.fail_after:
                raise ReplayError(fault)
            yield [batch]
        if fault is not None:
            raise ReplayError(fault)


class Sink:
    """Keeps what it gets, in order."""

    def __init__(self) -> None:
        self.log: list[object] = []
        self.drops: list[DropReason] = []
        self.slices = 0
        self.slices_begun = 0
        self.on_slice = lambda: None

    def batch(self, raw: RawBatch):
        for _ in range(self.slices):
            self.slices_begun += 1
            self.on_slice()
            yield
        self.log.append(raw.payload.decode())

    def restarted(self) -> None:
        self.log.append("PURGE")

    def lost(self) -> None:
        self.log.append("LOST")

    def dropped(self, reason: DropReason) -> None:
        self.drops.append(reason)

    def caught_up(self) -> None:
        pass


class Rig:
    def __init__(self, *, replay: bool = True) -> None:
        self.now = 1000.0
        self.source, self.engine, self.sink = Source(), Engine(), Sink()
        self.metrics = Metrics()
        self.intake = Intake(
            IntakeSettings(max_frame_bytes=10, join_seconds=0.0, replay_pause=5.0),
            source=self.source,
            replay=self.engine if replay else None,
            sink=self.sink,
            metrics=ListenerMetrics(self.metrics).intake("s"),
            clock=lambda: self.now,
        )
        self.task = asyncio.get_running_loop().create_task(self.intake.run())

    def count(self, name: str) -> int:
        for line in self.metrics.exposition().decode().splitlines():
            if line.startswith(f"continuum_listener_{name}"):
                return int(float(line.rpartition(" ")[2]))
        raise AssertionError(name)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


@pytest.fixture
async def rig():
    made = Rig()
    yield made
    await made.close()


@pytest.fixture
async def plain():
    """Without a replay endpoint."""
    made = Rig(replay=False)
    yield made
    await made.close()


async def test_an_idle_engines_cache_is_known_right_after_connecting(rig):
    rig.engine.has(0, 1, 2)
    await rig.source.feed(UP)
    assert rig.engine.requests == [0]
    assert rig.sink.log == ["0-a", "1-a", "2-a"]
    assert rig.intake.settled.is_set()
    assert rig.intake.last_seq == 2


async def test_live_batches_that_the_replay_gave_are_dropped(rig):
    rig.engine.has(0, 1, 2)
    await rig.source.feed(UP, raw(1), raw(2), raw(3))
    assert rig.sink.log == ["0-a", "1-a", "2-a", "3-a"]
    assert rig.sink.drops == [DropReason.DUPLICATE] * 2
    assert rig.engine.requests == [0]
    assert rig.intake.gaps == 0


async def test_a_gap_costs_exactly_one_request(rig):
    """User report K5."""
    await rig.source.feed(UP, raw(0), raw(1))
    rig.engine.has(*range(6))
    await rig.source.feed(raw(5))
    await rig.source.feed(raw(6), raw(7))
    assert rig.engine.requests == [0, 2]
    assert rig.sink.log == [f"{n}-a" for n in range(8)]
    assert rig.sink.drops == [DropReason.DUPLICATE]
    assert (rig.intake.gaps, rig.intake.lost) == (1, 0)
    assert rig.count("gaps_total") == 1
    assert rig.count("batches_total") == 8


async def test_a_gap_that_no_replay_fills_is_counted_and_passed(rig):
    await rig.source.feed(UP, raw(0))
    rig.engine.has(0)
    await rig.source.feed(raw(4), raw(5))
    assert rig.sink.log == ["0-a", "LOST", "4-a", "5-a"]
    assert (rig.intake.gaps, rig.intake.lost) == (1, 3)
    assert rig.engine.requests == [0, 1]
    assert rig.count("lost_batches_total") == 3


async def test_a_gap_longer_than_the_engines_buffer(rig):
    await rig.source.feed(UP, raw(0))
    rig.engine.has(5, 6, 7)
    await rig.source.feed(raw(7), raw(8))
    assert rig.sink.log == ["0-a", "LOST", "5-a", "6-a", "7-a", "8-a"]
    assert (rig.intake.gaps, rig.intake.lost) == (1, 4)


async def test_a_hole_inside_a_replay_is_asked_for_again(rig):
    """A ROUTER drops what a full pipe does not take."""
    rig.engine.has(*range(8))
    rig.engine.holes = [{3, 4}, {6}]
    await rig.source.feed(UP)
    assert rig.engine.requests == [0, 3, 6]
    assert rig.sink.log == [f"{n}-a" for n in range(8)]
    assert rig.intake.lost == 0


async def test_the_first_live_number_above_zero_asks_from_zero(rig):
    """Decisions J6; the request after connecting failed here."""
    rig.engine.fails = [ReplayFault.NO_ANSWER]
    await rig.source.feed(UP)
    assert rig.intake.replay_failing
    rig.now += 10
    rig.engine.has(0, 1, 2)
    await rig.source.feed(raw(2), raw(3))
    assert rig.engine.requests == [0, 0]
    assert rig.sink.log == ["0-a", "1-a", "2-a", "3-a"]
    assert not rig.intake.replay_failing
    assert rig.intake.gaps == 0


async def test_a_buffer_that_begins_late_is_no_gap_on_first_contact(rig):
    rig.engine.has(100, 101)
    await rig.source.feed(UP, raw(102))
    assert rig.sink.log == ["100-a", "101-a", "102-a"]
    assert (rig.intake.gaps, rig.intake.lost) == (0, 0)


async def test_a_reconnect_to_the_same_process_continues(rig):
    await rig.source.feed(UP, raw(0), raw(1))
    await rig.source.feed(DOWN)
    assert not rig.intake.connected
    rig.engine.has(0, 1, 2, 3)
    await rig.source.feed(UP)
    await rig.source.feed(raw(4))
    assert rig.engine.requests == [0, 1]
    assert rig.sink.log == ["0-a", "1-a", "2-a", "3-a", "4-a"]
    assert rig.sink.drops == []
    assert rig.intake.restarts.total == 0
    assert rig.intake.vouched


RESTARTED = {
    "it is at an earlier number": [0],
    "it has published nothing": [],
    "it is at the same number": [0, 1, 2],
    "it is already further": [0, 1, 2, 3, 4, 5],
    "its buffer begins behind it": [7, 8],
}


@pytest.mark.parametrize("now_has", RESTARTED.values(), ids=RESTARTED)
async def test_a_reconnect_to_another_process_purges(rig, now_has):
    await rig.source.feed(UP, raw(0), raw(1), raw(2))
    rig.engine.has(*now_has, life="b")
    await rig.source.feed(DOWN, UP)
    assert rig.sink.log[3:] == ["PURGE", *(f"{n}-b" for n in now_has)]
    assert rig.engine.requests == [0, 2, 0]
    assert rig.intake.restarts.total == 1
    assert rig.count("restarts_total") == 1
    await rig.source.feed(raw((now_has or [-1])[-1] + 1, "b"))
    assert rig.intake.lost == 0


async def test_an_unanswered_reconnect_is_unconfirmed_until_it_is(rig):
    await rig.source.feed(UP, raw(0), raw(1))
    rig.engine.fails = [ReplayFault.NO_ANSWER]
    await rig.source.feed(DOWN, UP)
    assert not rig.intake.vouched
    assert rig.source.timeouts[-1] == pytest.approx(3.75, abs=1.25)
    rig.engine.has(0, 1, 2, life="a")
    rig.now += 10
    await rig.source.feed()
    assert rig.engine.requests == [0, 1, 1]
    assert rig.intake.vouched
    assert rig.sink.log == ["0-a", "1-a", "2-a"]
    assert rig.source.timeouts[-1] is None


async def test_an_unanswered_reconnect_turns_out_to_be_a_restart_later(rig):
    await rig.source.feed(UP, raw(0), raw(1))
    rig.engine.fails = [ReplayFault.NO_ANSWER]
    await rig.source.feed(DOWN, UP, raw(2, "b"))
    assert rig.sink.log == ["0-a", "1-a", "2-b"]
    rig.engine.has(0, 1, 2, life="b")
    rig.now += 10
    await rig.source.feed()
    assert rig.sink.log[3:] == ["PURGE", "0-b", "1-b", "2-b"]


async def test_a_failing_replay_does_not_stall_every_gap(rig):
    rig.engine.fails = [ReplayFault.NO_ANSWER] * 5
    await rig.source.feed(UP, raw(0), raw(5), raw(10))
    assert rig.engine.requests == [0]
    assert rig.sink.log == ["0-a", "LOST", "5-a", "LOST", "10-a"]
    assert (rig.intake.gaps, rig.intake.lost) == (2, 8)


async def test_what_a_broken_replay_gave_counts(rig):
    await rig.source.feed(UP, raw(0))
    rig.engine.has(0, 1, 2, 3, 4)
    rig.engine.fails, rig.engine.fail_after = [ReplayFault.CUT_SHORT], 2
    await rig.source.feed(raw(5))
    assert rig.sink.log == ["0-a", "1-a", "2-a", "LOST", "5-a"]
    assert rig.intake.lost == 2


async def test_backwards_is_a_restart(rig):
    await rig.source.feed(UP, raw(0), raw(1), raw(2))
    rig.engine.has(0, 1, life="b")
    await rig.source.feed(raw(1, "b"))
    assert rig.sink.log == ["0-a", "1-a", "2-a", "PURGE", "0-b", "1-b"]
    assert rig.engine.requests == [0, 0]
    assert rig.intake.restarts.total == 1


@pytest.mark.parametrize(
    ("first", "kept"),
    [(0, ["3-a", "4-a"]), (2, ["2-a", "3-a", "LOST", "5-a", "6-a"])],
    ids=["from_zero", "later"],
)
async def test_a_replay_endpoint_of_another_engine_is_disowned(rig, first, kept):
    """A copied line of the file: the other engine's blocks must not be announced as ours."""
    rig.engine.has(*range(9), life="other")
    await rig.source.feed(UP)
    await rig.source.feed(raw(first), raw(first + 1), raw(first + 3), raw(first + 4))
    last_purge = len(rig.sink.log) - 1 - rig.sink.log[::-1].index("PURGE")
    assert rig.sink.log[last_purge + 1 :] == kept
    assert rig.intake.replay_foreign
    asked = len(rig.engine.requests)
    rig.now += 60.0  # the connection lives on: this is no engine that was dying
    await rig.source.feed(raw(first + 5))
    await rig.source.feed(DOWN, UP, raw(first + 7))
    assert rig.sink.log[-1] == f"{first + 7}-a"
    assert len(rig.engine.requests) == asked
    assert rig.intake.replay_foreign
    assert rig.intake.vouched
    assert rig.source.timeouts[-1] is None


async def test_without_replay_a_reconnect_keeps_what_is_known(plain):
    await plain.source.feed(UP, raw(0), raw(1))
    await plain.source.feed(DOWN, UP, raw(2))
    assert plain.sink.log == ["0-a", "1-a", "2-a"]
    assert plain.intake.vouched


@pytest.mark.parametrize("first", [0, 1])
async def test_without_replay_a_known_number_after_a_reconnect_is_a_restart(plain, first):
    await plain.source.feed(UP, raw(0), raw(1))
    await plain.source.feed(DOWN, UP, raw(first, "b"))
    assert plain.sink.log == ["0-a", "1-a", "PURGE", f"{first}-b"]


async def test_without_replay_gaps_are_counted(plain):
    await plain.source.feed(UP, raw(7), raw(9))
    assert plain.sink.log == ["7-a", "LOST", "9-a"]
    assert (plain.intake.gaps, plain.intake.lost) == (1, 1)


async def test_an_oversized_batch_keeps_its_place(rig):
    big = RawBatch(source="s", rank=0, seq=1, payload=b"x" * 11)
    await rig.source.feed(UP, raw(0), big, raw(2))
    assert rig.sink.log == ["0-a", "LOST", "2-a"]
    assert rig.sink.drops == [DropReason.OVERSIZED]
    assert rig.intake.gaps == 0


async def test_restarts_that_come_too_fast_are_logged_once(plain, caplog):
    """Two publishers behind one forwarder would else write a line for every message."""
    await plain.source.feed(UP, raw(0))
    for n in range(40):
        await plain.source.feed(raw(0, life=f"life-{n}"))
    said = [record.message for record in caplog.records if "estart" in record.message]
    assert said == ["Engine restarted"] * 3 + [
        "Restarts come too fast to be restarts: are there two publishers on one endpoint?"
    ]
    plain.now += 61
    await plain.source.feed(raw(0, life="later"))
    assert caplog.records[-1].message == "Engine restarted"


async def test_more_than_three_restarts_a_minute(rig):
    await rig.source.feed(UP, raw(5, "0"))
    for life in range(1, 5):
        rig.engine.buffer = []
        await rig.source.feed(raw(0, str(life)), raw(1, str(life)))
    assert rig.intake.restarts.total == 4
    assert rig.intake.restarts.suspicious(rig.now)
    assert not rig.intake.restarts.suspicious(rig.now + 61)


async def test_a_watched_source_without_replay_waits_for_the_engines_word(plain):
    doubts: list[int] = []
    plain.intake.watch(lambda: doubts.append(plain.intake.connections))
    await plain.source.feed(UP, raw(0), raw(1))
    assert doubts == []  # nothing is known before the first contact
    await plain.source.feed(DOWN, UP)
    assert doubts == [2]
    assert not plain.intake.vouched
    plain.intake.same_process()
    assert plain.intake.vouched
    assert plain.sink.log == ["0-a", "1-a"]


async def test_the_engines_word_of_another_process_purges(plain):
    plain.intake.watch(lambda: None)
    await plain.source.feed(UP, raw(0), raw(1), DOWN, UP)
    plain.intake.other_process()
    assert plain.intake.vouched
    assert plain.intake.restarts.total == 1
    await plain.source.feed(raw(0, "b"))
    assert plain.sink.log == ["0-a", "1-a", "PURGE", "0-b"]
    assert plain.intake.restarts.total == 1


async def test_another_process_before_any_batch_is_no_restart(plain):
    plain.intake.other_process()
    assert plain.intake.restarts.total == 0
    assert plain.sink.log == []


async def test_only_the_replay_endpoint_confirms_where_there_is_one(rig):
    await rig.source.feed(UP, raw(0))
    rig.engine.fails = [ReplayFault.NO_ANSWER]
    await rig.source.feed(DOWN, UP)
    rig.intake.same_process()
    assert not rig.intake.vouched


async def test_connected_counts_the_lanes_that_are(rig):
    await rig.source.feed(UP)
    await rig.source.feed(UP)
    assert rig.count("connected") == 1
    await rig.source.feed(DOWN)
    await rig.source.feed(DOWN)
    assert rig.count("connected") == 0


async def test_an_engine_replaced_while_its_last_words_wait_keeps_its_replay(rig):
    """The old process's batches are read when its successor already answers for it."""
    rig.engine.has(0, 1, life="b")
    await rig.source.feed(UP, raw(1), raw(2))
    assert rig.sink.log[-3:] == ["PURGE", "1-a", "2-a"]
    assert rig.intake.replay_foreign
    await rig.source.feed(DOWN, UP)
    assert rig.sink.log[-3:] == ["PURGE", "0-b", "1-b"]
    assert not rig.intake.replay_foreign
    rig.engine.has(0, 1, 2, 3, life="b")
    await rig.source.feed(raw(3, "b"))
    assert rig.sink.log[-3:] == ["1-b", "2-b", "3-b"]


async def test_what_came_after_a_late_restart_is_asked_for_until_it_is_there(rig):
    """The retry finds another process, and its replay breaks off: the rest is not forgotten."""
    await rig.source.feed(UP, raw(0))
    rig.engine.fails = [ReplayFault.NO_ANSWER, None, ReplayFault.CUT_SHORT]
    rig.engine.fail_after = 1
    await rig.source.feed(DOWN, UP)
    rig.engine.has(0, 1, 2, life="b")
    for _ in range(4):
        rig.now += 400.0
        await rig.source.feed()
    assert rig.sink.log == ["0-a", "PURGE", "0-b", "1-b", "2-b"]


async def in_the_middle(rig: Rig, *items: object) -> None:
    """Feed ``items`` and come back while the first batch is being applied, in slices of 1 s."""
    rig.sink.slices = 5
    rig.sink.on_slice = lambda: setattr(rig, "now", rig.now + 1.0)
    rig.source.items.put_nowait(list(items))
    async with asyncio.timeout(5):
        while rig.sink.slices_begun < 2:
            await asyncio.sleep(0)
    assert rig.sink.slices_begun < 5


async def test_others_have_turns_inside_a_batch_and_its_followers_wait(plain):
    await in_the_middle(plain, UP, raw(0), raw(1))
    assert plain.sink.log == []
    await plain.source.feed()
    assert plain.sink.log == ["0-a", "1-a"]
    assert plain.sink.slices_begun == 10


async def test_another_process_is_believed_when_the_batch_at_hand_is_done(plain):
    await in_the_middle(plain, UP, raw(0))
    plain.intake.other_process()
    assert plain.sink.log == []
    await plain.source.feed()
    assert plain.sink.log == ["0-a", "PURGE"]
    assert plain.intake.restarts.total == 1
    await plain.source.feed(raw(1, "b"))
    assert plain.sink.log == ["0-a", "PURGE", "1-b"]
    assert plain.intake.restarts.total == 1


async def test_a_batch_that_a_cancellation_cuts_counts_as_lost(plain):
    """Its number is taken: nobody would ask for it again."""
    await in_the_middle(plain, UP, raw(0))
    await plain.close()
    assert plain.task.cancelled()
    assert plain.sink.log == ["LOST"]
    assert plain.intake.last_seq == 0


async def test_a_replayed_batch_is_sliced_as_a_live_one(rig):
    rig.engine.has(0, 1)
    await in_the_middle(rig, UP, raw(2))
    assert not rig.intake.settled.is_set()
    await rig.source.feed()
    assert rig.sink.log == ["0-a", "1-a", "2-a"]
    assert rig.intake.settled.is_set()
