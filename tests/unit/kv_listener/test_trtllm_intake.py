import asyncio

import pytest

from continuum_kv_listener.engine_events import DropReason
from continuum_kv_listener.listener_metrics import ListenerMetrics
from continuum_kv_listener.pipeline import OnGap, Pipeline
from continuum_kv_listener.trtllm_chains import TrtllmChains
from continuum_kv_listener.trtllm_client import PollError, PollFault
from continuum_kv_listener.trtllm_intake import TrtllmIntake
from continuum_shared.metrics import Metrics
from continuum_shared.prefix_key import PrefixKey
from support.trtllm_server import block, created, numbered, removed, stored, updated

A, B = PrefixKey(b"a" * 32), PrefixKey(b"b" * 32)
ROOT_A = stored(None, block(1, salt="cr1.a"))
ROOT_B = stored(None, block(2, salt="cr1.b"))


class Script:
    """A poller that answers what it is given, and a source around it."""

    url = "http://h/kv_cache_events"

    def __init__(self, interval=0.5):
        self.answers = []
        self.now = 0.0
        self.metrics = Metrics()
        families = ListenerMetrics(self.metrics)
        keys = {"cr1.a": (A,), "cr1.b": (B,)}
        self.chains = TrtllmChains(verify_salt=lambda salt, _: keys.get(salt))
        self.restarts = 0
        self.pipeline = Pipeline(
            engine="trtllm",
            tracker=self.chains,
            metrics=families.intake("s"),
            clock=self.clock,
            on_restart=self.restarted,
            on_gap=OnGap.PURGE,
        )
        self.records = []
        self.pipeline.publish_to(self)
        self.intake = TrtllmIntake(
            self,
            name="s",
            interval=interval,
            chains=self.chains,
            sink=self.pipeline,
            metrics=families.intake("s"),
            polls=families.polls_of("s"),
            clock=self.clock,
        )

    def clock(self):
        self.now += 0.2
        return self.now

    def restarted(self, _now):
        self.restarts += 1

    def publish(self, events):
        self.records.extend(event.action.value for event in events)

    async def poll(self):
        answer = self.answers.pop(0)
        if isinstance(answer, PollFault):
            raise PollError(answer)
        return answer

    async def feed(self, *answers):
        """Poll once for each answer; what is held then."""
        self.answers.extend(answers)
        while self.answers:
            await self.intake.poll_once()
        self.pipeline.flush()
        return {key: (tokens, warm) for key, tokens, warm in self.chains.snapshot()}

    def polls(self, result):
        return self.value(f'continuum_listener_polls_total{{result="{result}",source="s"}}')

    def value(self, line):
        for sample in self.metrics.exposition().decode().splitlines():
            name, _, value = sample.rpartition(" ")
            if name == line:
                return float(value)
        raise AssertionError(line)


@pytest.fixture
def script():
    return Script()


async def test_answers_are_applied_in_order(script):
    held = await script.feed(numbered([created(), ROOT_A]), b"[]", numbered([ROOT_B], 2))
    assert held == {A: (32, False), B: (32, False)}
    assert (script.intake.last_seq, script.intake.gaps, script.restarts) == (2, 0, 0)
    assert (script.polls("events"), script.polls("empty")) == (2, 1)
    assert script.intake.settled.is_set()
    assert "cache_purged" not in script.records


async def test_an_answer_that_comes_twice_counts_once(script):
    answer = numbered([created(), ROOT_A, stored(1, block(3))])
    held = await script.feed(answer, answer, numbered([removed(3)], 3))
    assert held == {A: (32, False)}
    assert script.pipeline.drops == {DropReason.DUPLICATE: 3}
    assert script.restarts == 0


async def test_a_gap_drops_what_was_known_and_goes_on_with_the_event(script):
    held = await script.feed(numbered([created(), ROOT_A]), numbered([ROOT_B], 9))
    assert held == {B: (32, False)}
    assert (script.intake.gaps, script.intake.lost, script.intake.last_seq) == (1, 7, 9)
    assert script.records == ["cache_created", "cache_purged", "cache_created"]
    assert await script.feed(numbered([removed(2)], 10)) == {}
    assert script.intake.gaps == 1


async def test_the_first_contact_in_mid_stream_is_no_gap(script):
    assert await script.feed(numbered([ROOT_A], 500)) == {A: (32, False)}
    assert (script.intake.gaps, script.intake.lost) == (0, 0)


@pytest.mark.parametrize("fault", list(PollFault))
async def test_a_fault_keeps_the_place(script, fault):
    held = await script.feed(numbered([ROOT_A], 4), fault, numbered([ROOT_B], 5))
    assert held == {A: (32, False), B: (32, False)}
    assert (script.intake.gaps, script.restarts, script.polls(fault.value)) == (0, 0, 1)
    assert "cache_purged" not in script.records


@pytest.mark.parametrize("body", [b"", b"<html>", b'[{"event_id": 5', b"{}"])
async def test_a_body_that_is_no_list_keeps_the_place(script, body):
    held = await script.feed(numbered([ROOT_A], 4), body, numbered([ROOT_B], 5))
    assert held == {A: (32, False), B: (32, False)}
    assert script.pipeline.drops == {DropReason.UNDECODABLE_BATCH: 1}
    assert script.polls("bad_answer") == 1


async def test_what_a_cut_answer_held_is_missed_by_number(script):
    held = await script.feed(
        numbered([ROOT_A], 4), PollFault.CUT_SHORT, numbered([stored(1, block(3)), ROOT_B], 7)
    )
    assert held == {B: (32, False)}
    assert (script.intake.gaps, script.intake.lost) == (1, 2)


async def test_a_restarted_engine_with_the_same_first_words(script):
    first = numbered([created(), ROOT_A])
    held = await script.feed(first, PollFault.UNREACHABLE, numbered([created()]))
    assert held == {}
    assert (script.restarts, script.intake.restarts.total) == (1, 1)
    assert await script.feed(numbered([ROOT_B], 1)) == {B: (32, False)}
    assert script.restarts == 1


async def test_a_restart_that_was_never_seen_down(script):
    held = await script.feed(numbered([created(), ROOT_A], 70), numbered([created(), ROOT_B], 0))
    assert held == {B: (32, False)}
    assert script.restarts == 1


async def test_created_in_mid_stream_resets(script):
    held = await script.feed(numbered([ROOT_A, created(), ROOT_B], 4))
    assert held == {B: (32, False)}
    assert (script.restarts, script.intake.gaps) == (0, 0)


async def test_ranks_begin_one_after_the_other(script):
    held = await script.feed(
        numbered([created(), ROOT_A], attention_dp_rank=0),
        numbered([created(), ROOT_B], attention_dp_rank=1),
    )
    assert held == {A: (32, False), B: (32, False)}
    held = await script.feed(numbered([created()], attention_dp_rank=0))
    assert held == {A: (32, False), B: (32, False)}  # the very same words: delivered twice
    await script.feed(PollFault.UNREACHABLE)
    held = await script.feed(
        numbered([created(), ROOT_A], attention_dp_rank=0),
        numbered([created()], attention_dp_rank=1),
    )
    assert (held, script.restarts) == ({A: (32, False)}, 1)


async def test_a_gap_of_one_rank_drops_all_but_disturbs_no_other(script):
    await script.feed(numbered([created(), ROOT_A], attention_dp_rank=0))
    await script.feed(numbered([created()], attention_dp_rank=1))
    held = await script.feed(numbered([ROOT_B], 5, attention_dp_rank=1))
    assert held == {B: (32, False)}
    await script.feed(numbered([stored(1, block(3))], 2, attention_dp_rank=0))
    assert script.intake.gaps == 1
    assert script.pipeline.drops == {DropReason.UNKNOWN_BLOCK: 1}


async def test_only_the_widest_window_counts(script):
    wide, narrow = {"window_size": 4096}, {"window_size": 128}
    held = await script.feed(
        numbered([created()], 0, **narrow),
        numbered([created()], 1, **wide),
        numbered([ROOT_A], 2, **wide),
        numbered([ROOT_B, removed(1)], 3, **narrow),
    )
    assert held == {A: (32, False)}
    assert script.chains.stats.ignored_group_events_total == 2
    held = await script.feed(numbered([ROOT_B], 5, window_size=8192))
    assert held == {B: (32, False)}


async def test_malformed_events_cost_themselves_and_keep_their_number(script):
    held = await script.feed(
        numbered([ROOT_A, {"type": "stored", "blocks": [None]}, {"type": "new"}, ROOT_B, None])
    )
    assert held == {A: (32, False), B: (32, False)}
    assert (script.intake.gaps, script.intake.last_seq) == (0, 4)
    assert script.pipeline.drops == {
        DropReason.MALFORMED_EVENT: 2,
        DropReason.UNKNOWN_TAG: 1,
    }


async def test_each_kind_of_event_is_counted(script):
    await script.feed(numbered([created(), ROOT_A, updated(1, 1), removed(1)]))
    for kind in ("cleared", "stored", "moved", "removed"):
        line = f'continuum_listener_events_total{{source="s",type="{kind}"}}'
        assert script.value(line) == 1


async def test_the_pause_grows_while_nothing_answers_and_is_even_again_after(script):
    pauses = []
    for _ in range(12):
        script.answers.append(PollFault.UNREACHABLE)
        pauses.append(await script.intake.poll_once())
    assert 0.25 <= pauses[0] <= 0.5
    assert 15 <= pauses[-1] <= 30
    script.answers.append(b"[]")
    assert await script.intake.poll_once() == 0.5
    script.answers.append(PollFault.TIMEOUT)
    assert await script.intake.poll_once() <= 0.5


async def test_what_the_page_asks_about_the_connection(script, caplog):
    intake = script.intake
    assert (intake.connected, intake.ever_connected, intake.peers) == (False, False, 0)
    await script.feed(PollFault.REFUSED, PollFault.REFUSED)
    assert (intake.last_error, await intake.health()) == ("refused", False)
    await script.feed(b"[]")
    assert (intake.connected, intake.last_error, intake.peers) == (True, None, 1)
    assert (intake.down_since, intake.connections, intake.last_batch_at) == (None, 1, None)
    assert await intake.health()
    await script.feed(PollFault.REDIRECT)
    assert (intake.connected, intake.last_error) == (False, "redirect")
    assert intake.down_since is not None
    assert script.value('continuum_listener_connected{source="s"}') == 0
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["Events are not answered"] * 2


async def test_one_bad_answer_is_no_lost_connection_but_two_are(script, caplog):
    for _ in range(3):
        await script.feed(b"[]", b"<html>")
        assert (script.intake.connected, script.intake.last_error) == (True, "bad_answer")
    assert [r for r in caplog.records if r.levelname == "WARNING" and "answered" in r.message] == []
    await script.feed(PollFault.CUT_SHORT)
    assert (script.intake.connected, script.intake.last_error) == (False, "cut_short")
    await script.feed(b"[]")
    assert (script.intake.connected, script.intake.connections) == (True, 2)


async def test_an_answer_beyond_the_bound_is_counted_as_such(script):
    await script.feed(PollFault.TOO_LARGE)
    assert script.pipeline.drops == {DropReason.OVERSIZED: 1}


@pytest.mark.parametrize(
    "body",
    [
        numbered([stored(None, block(number, 1, salt="cr1.a")) for number in range(50)]),
        numbered([stored(None, *[{} for _ in range(500)])]),
    ],
    ids=["many elements", "many faults in one"],
)
async def test_other_tasks_get_their_turn_within_one_answer(script, body):
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.get_running_loop().create_task(other())
    await script.feed(body)
    task.cancel()
    assert turns >= 50
