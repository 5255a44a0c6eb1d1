"""The replay client against a real ROUTER, in both frame layouts, and against recorded frames."""

import asyncio
import base64
import json
import threading

import pytest
import zmq

from continuum_kv_listener.engine_events import DropReason
from continuum_kv_listener.replay import ReplayClient, ReplayError, ReplayFault, ReplaySettings
from support.kv_publisher import KvPublisher, ReplayLayout, free_port
from support.source_tree import ROOT

WIRE = ROOT / "tests" / "fixtures" / "wire"


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(0)


@pytest.fixture(params=list(ReplayLayout))
def publisher(request):
    made = KvPublisher(layout=request.param)
    yield made
    made.close()


def client(context, endpoint: str, drops: list[DropReason] | None = None, **times) -> ReplayClient:
    settings = ReplaySettings(source="s", endpoint=endpoint, **times)
    return ReplayClient(
        settings, context=context, on_drop=(drops if drops is not None else []).append
    )


async def all_of(
    client: ReplayClient, start: int, out: list[tuple[int, bytes]] | None = None
) -> list[tuple[int, bytes]]:
    out = [] if out is None else out
    async with client.ask(start) as answers:
        async for chunk in answers:
            out += [(raw.seq, raw.payload) for raw in chunk]
    return out


async def test_everything_from_the_start(context, publisher):
    for n in range(200):
        publisher.lose_payload(b"p%d" % n)
    got = await all_of(client(context, publisher.replay_endpoint), 0)
    assert got == [(n, b"p%d" % n) for n in range(200)]
    assert publisher.requests == [0]


async def test_the_start_is_inclusive(context, publisher):
    for n in range(5):
        publisher.lose_payload(b"p%d" % n)
    got = await all_of(client(context, publisher.replay_endpoint), 3)
    assert got == [(3, b"p3"), (4, b"p4")]


async def test_beyond_the_newest_there_is_only_the_end(context, publisher):
    publisher.lose_payload(b"p")
    assert await all_of(client(context, publisher.replay_endpoint), 100_000) == []


async def test_leaving_early_is_clean_and_the_next_request_starts_fresh(context, publisher):
    for n in range(500):
        publisher.lose_payload(b"p%d" % n)
    asker = client(context, publisher.replay_endpoint)
    async with asker.ask(0) as answers:
        async for chunk in answers:
            assert chunk[0].seq == 0
            break
    assert [seq for seq, _ in await all_of(asker, 498)] == [498, 499]


async def test_nobody_there(context):
    asker = client(context, f"tcp://127.0.0.1:{free_port()}", first_answer=0.1)
    with pytest.raises(ReplayError) as caught:
        await all_of(asker, 0)
    assert caught.value.fault is ReplayFault.NO_ANSWER


async def test_an_endpoint_that_cannot_be(context):
    with pytest.raises(ReplayError) as caught:
        await all_of(client(context, "nothing://here"), 0)
    assert caught.value.fault is ReplayFault.BAD_ENDPOINT


class Scripted:
    """A ROUTER that answers one request with the given messages."""

    def __init__(self, context, messages: list[list[bytes]]) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.request: list[bytes] = []
        self.thread = threading.Thread(target=self._serve, args=(messages,))
        self.thread.start()

    def _serve(self, messages: list[list[bytes]]) -> None:
        if self.socket.poll(5000):
            identity, *self.request = self.socket.recv_multipart()
            for frames in messages:
                self.socket.send_multipart([identity, *frames])
        self.socket.close(1000)


async def test_an_answer_that_breaks_off(context):
    router = Scripted(context, [[b"", b"t", (0).to_bytes(8, "big"), b"p"]])
    asker = client(context, f"tcp://127.0.0.1:{router.port}", next_answer=0.1)
    seen: list[tuple[int, bytes]] = []
    with pytest.raises(ReplayError) as caught:
        await all_of(asker, 0, seen)
    assert caught.value.fault is ReplayFault.CUT_SHORT
    assert seen == [(0, b"p")]
    router.thread.join()


async def test_strange_frames_cost_themselves(context):
    seq = (0).to_bytes(8, "big")
    router = Scripted(
        context,
        [
            [b"", b"p"],
            [b"", b"t", seq[:7], b"p"],
            [b"", b"a", b"t", seq, b"p"],
            [b"", b"t", seq, b"good"],
            [b"", b"\xff" * 8, b""],
        ],
    )
    drops: list[DropReason] = []
    asker = client(context, f"tcp://127.0.0.1:{router.port}", drops)
    assert await all_of(asker, 0) == [(0, b"good")]
    assert drops == [DropReason.BAD_FRAMES] * 3
    router.thread.join()


@pytest.mark.parametrize(
    "recording",
    ["vllm-0.32.0/replay_all.jsonl", "vllm-0.32.0/replay.jsonl", "vllm-0.23.0/replay.jsonl"],
)
async def test_recorded_answers(context, recording):
    """Frames that real engines sent; the request is the recorded one, byte for byte."""
    lines = [json.loads(line) for line in (WIRE / recording).read_text().splitlines()]
    frames = [[base64.b64decode(f) for f in line["frames"]] for line in lines]
    first = next(n for n, line in enumerate(lines) if line.get("socket") == "dealer")
    answers = []
    for line, parts in zip(lines[first + 1 :], frames[first + 1 :], strict=True):
        if line["dir"] != "answer":
            break
        answers.append(parts)
    start = int.from_bytes(frames[first][-1], "big")
    router = Scripted(context, answers)
    drops: list[DropReason] = []
    got = await all_of(client(context, f"tcp://127.0.0.1:{router.port}", drops), start)
    router.thread.join()
    assert router.request == frames[first]
    assert [seq for seq, _ in got] == list(range(start, start + len(answers) - 1))
    assert [payload for _, payload in got] == [parts[-1] for parts in answers[:-1]]
    assert drops == []


async def test_a_cancelled_request_closes_its_socket(context, publisher):
    publisher.silent = True
    task = asyncio.get_running_loop().create_task(
        all_of(client(context, publisher.replay_endpoint), 0)
    )
    while not publisher.requests:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    context.term()  # hangs if a socket were still open


async def test_a_number_beyond_reason_costs_itself(context):
    """Followed, it would make duplicates of every batch that comes."""
    router = Scripted(
        context,
        [
            [b"", b"t", (2**63).to_bytes(8, "big"), b"p"],
            [b"", b"t", b"\xff" * 7 + b"\xfe", b"p"],
            [b"", b"t", (4).to_bytes(8, "big"), b"good"],
            [b"", b"t", (4).to_bytes(8, "big"), b"again"],
            [b"", b"t", (3).to_bytes(8, "big"), b"before"],
            [b"", b"", b"\xff" * 8, b""],
        ],
    )
    drops: list[DropReason] = []
    asker = client(context, f"tcp://127.0.0.1:{router.port}", drops)
    assert await all_of(asker, 4) == [(4, b"good")]
    assert drops == [DropReason.BAD_FRAMES] * 2 + [DropReason.DUPLICATE] * 2


@pytest.mark.parametrize("frames", [[b"bad"], [b"t", (0).to_bytes(8, "big"), b"p"]])
async def test_an_endpoint_that_talks_for_ever_is_left(context, frames):
    """Live batches wait meanwhile, so neither nonsense nor repetition may hold the replay open."""
    stop = threading.Event()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")

    def talk() -> None:
        identity = router.recv_multipart()[0]
        while not stop.is_set():
            try:
                router.send_multipart([identity, b"", *frames], zmq.NOBLOCK)
            except zmq.ZMQError:
                stop.wait(0.001)
        router.close(0)

    thread = threading.Thread(target=talk)
    thread.start()
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.01)
            longest = max(longest, loop.time() - before)

    watcher = asyncio.get_running_loop().create_task(watch())
    try:
        asker = client(context, f"tcp://127.0.0.1:{port}", first_answer=0.5, next_answer=0.5)
        async with asyncio.timeout(10):
            with pytest.raises(ReplayError):
                await all_of(asker, 0)
    finally:
        watcher.cancel()
        stop.set()
        thread.join(5)
    assert longest < 0.4
