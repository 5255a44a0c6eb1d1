"""`continuum-router engine-sim`: an engine without a model, with everything around it real.

It speaks the OpenAI API, keeps a real block cache, takes real time and publishes real events.
`SimEngine` is the same engine inside another process, for tests.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from continuum_router.demo.block_cache import BlockCache, ResidentChain
from continuum_router.demo.sim_events import (
    Encoding,
    EventWire,
    HashForm,
    SimEventPublisher,
    ZmqMode,
)
from continuum_router.demo.sim_http import SimHttp, SimRecord
from continuum_router.demo.sim_request import SimLimits
from continuum_router.demo.sim_scheduler import SimScheduler, SimTiming

EXAMPLE = """example:
  continuum-router engine-sim --port 8101 --model demo \\
      --zmq 'tcp://127.0.0.1:5557' --zmq-mode bind --replay 'tcp://127.0.0.1:5558'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """Everything that one simulated engine is made of. Port 0 lets the system choose."""

    host: str = "127.0.0.1"
    port: int = 0
    models: tuple[str, ...] = ("demo",)
    blocks: int = 2048
    block_size: int = 16
    max_model_len: int = 8192
    timing: SimTiming = field(default_factory=SimTiming)
    wire: EventWire = field(default_factory=EventWire)


@dataclass(slots=True, kw_only=True)
class _Running:
    """What exists while the engine runs."""

    cache: BlockCache
    publisher: SimEventPublisher
    http: SimHttp
    runner: web.AppRunner


class SimEngine:
    """One engine. `start` after `stop` or `kill` gives a fresh one at the same addresses.

    `clock` is the monotonic clock of abort times, `wall` gives seconds since the epoch.
    """

    def __init__(
        self,
        config: SimConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._clock = clock
        self._wall = wall
        self._now: _Running | None = None
        self._port = config.port
        self._wire = config.wire

    @property
    def port(self) -> int:
        """The HTTP port; the real one once the engine has started."""
        return self._port

    @property
    def url(self) -> str:
        """The HTTP address, such as ``http://127.0.0.1:8101``."""
        return f"http://{self._config.host}:{self._port}"

    @property
    def zmq_endpoint(self) -> str | None:
        """Where events are published; a port `*` is resolved once the engine has started."""
        return self._wire.endpoint

    @property
    def replay_endpoint(self) -> str | None:
        """Where replays are answered; a port `*` is resolved once the engine has started."""
        return self._wire.replay_endpoint

    @property
    def record(self) -> SimRecord:
        """Requests since the start. Raises RuntimeError when the engine does not run."""
        return self._running().http.record

    async def start(self) -> None:
        """Open all sockets. Raises OSError when an address cannot be used."""
        if self._now is not None:
            raise RuntimeError("the engine runs already")
        config = self._config
        cache = BlockCache(config.blocks, config.block_size)
        publisher = SimEventPublisher(self._wire, self._wall)
        http = SimHttp(
            limits=SimLimits(models=config.models, max_model_len=config.max_model_len),
            cache=cache,
            scheduler=SimScheduler(cache, config.timing, publisher.publish, self._clock),
            publisher=publisher,
            clock=self._clock,
            wall=self._wall,
        )
        runner = web.AppRunner(
            http.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0
        )
        publisher.open()
        try:
            await runner.setup()
            site = web.TCPSite(runner, config.host, self._port, reuse_address=True)
            await site.start()
        except BaseException:
            publisher.close()
            await runner.cleanup()
            raise
        self._port = runner.addresses[0][1]
        self._wire = _resolved(self._wire, publisher)
        self._now = _Running(cache=cache, publisher=publisher, http=http, runner=runner)

    async def stop(self) -> None:
        """End in order: running answers get a second to finish. Repeats do nothing."""
        if (running := self._now) is None:
            return
        self._now = None
        await running.runner.cleanup()
        running.publisher.close()

    async def kill(self) -> None:
        """End as a crash does: every connection is dropped in the middle of whatever it did."""
        if (running := self._now) is None:
            return
        self._now = None
        running.publisher.close()
        server = running.runner.server
        for handler in () if server is None else server.connections:
            if handler.transport is not None:
                handler.transport.abort()
        await running.runner.cleanup()

    def resident_chains(self) -> list[ResidentChain]:
        """What the cache really holds. Raises RuntimeError when the engine does not run."""
        return self._running().cache.resident_chains()

    def reset_prefix_cache(self) -> bool:
        """As POST /reset_prefix_cache: False while sequences hold blocks."""
        return self._running().cache.reset()

    def _running(self) -> _Running:
        if self._now is None:
            raise RuntimeError("the engine does not run")
        return self._now


def _resolved(wire: EventWire, publisher: SimEventPublisher) -> EventWire:
    """The wire with the addresses that it got, so that a restart comes back at the same ones."""
    mode = wire.mode
    if wire.endpoint is not None and publisher.endpoint != wire.endpoint:
        mode = ZmqMode.BIND
    return EventWire(
        endpoint=publisher.endpoint,
        replay_endpoint=publisher.replay_endpoint,
        mode=mode,
        topic=wire.topic,
        encoding=wire.encoding,
        hash_form=wire.hash_form,
        replay_topic=wire.replay_topic,
    )


def parser() -> argparse.ArgumentParser:
    """The command line of `engine-sim`."""
    args = argparse.ArgumentParser(
        prog="continuum-router engine-sim",
        description="A simulated engine: OpenAI API, block KV cache, KV events on ZMQ.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    args.add_argument("--host", default="127.0.0.1")
    args.add_argument("--port", type=int, default=0, help="0: any free port")
    args.add_argument("--model", action="append", help="served name; repeatable (default demo)")
    args.add_argument("--blocks", type=int, default=2048, help="physical KV blocks")
    args.add_argument("--block-size", type=int, default=16, help="tokens a block")
    args.add_argument("--max-model-len", type=int, default=8192, help="prompt and answer, tokens")
    args.add_argument("--max-num-seqs", type=int, default=256, help="sequences at a time")
    args.add_argument("--prefill-us-per-token", type=float, default=0.0)
    args.add_argument("--decode-ms", type=float, default=0.0, help="per token of an answer")
    args.add_argument("--zmq", help="event endpoint; a port * or 0 is any free one")
    args.add_argument("--zmq-mode", type=ZmqMode, choices=list(ZmqMode), default=ZmqMode.AUTO)
    args.add_argument("--replay", help="replay endpoint, always bound")
    args.add_argument("--topic", default="kv-events")
    args.add_argument("--encoding", type=Encoding, choices=list(Encoding), default=Encoding.MAP)
    args.add_argument("--hashes", type=HashForm, choices=list(HashForm), default=HashForm.INT)
    args.add_argument(
        "--replay-without-topic", action="store_true", help="answer replays as old engines do"
    )
    return args


def config_from(args: argparse.Namespace) -> SimConfig:
    """SimConfig from parsed arguments. Raises ValueError for numbers that make no engine."""
    for name in ("blocks", "block_size", "max_model_len", "max_num_seqs"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    if args.prefill_us_per_token < 0 or args.decode_ms < 0:
        raise ValueError("times must not be negative")
    return SimConfig(
        host=args.host,
        port=args.port,
        models=tuple(args.model or ["demo"]),
        blocks=args.blocks,
        block_size=args.block_size,
        max_model_len=args.max_model_len,
        timing=SimTiming(
            prefill_seconds_per_token=args.prefill_us_per_token / 1e6,
            decode_seconds=args.decode_ms / 1e3,
            max_running=args.max_num_seqs,
        ),
        wire=EventWire(
            endpoint=args.zmq,
            replay_endpoint=args.replay,
            mode=args.zmq_mode,
            topic=args.topic,
            encoding=args.encoding,
            hash_form=args.hashes,
            replay_topic=not args.replay_without_topic,
        ),
    )


def main(argv: Sequence[str]) -> int:
    """Run one engine until SIGTERM or SIGINT; exit codes 0, 1 (cannot start), 2 (usage).

    The first line on stdout is one JSON object with the addresses, printed once the engine
    answers: ``{"url", "zmq", "replay"}``.
    """
    arguments = parser().parse_args(argv)
    try:
        config = config_from(arguments)
    except ValueError as bad:
        print(f"engine-sim: {bad}", file=sys.stderr)
        return 2
    return asyncio.run(_serve(SimEngine(config)))


async def _serve(engine: SimEngine) -> int:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    try:
        await engine.start()
    except OSError as failure:
        print(f"engine-sim: cannot listen: {failure}", file=sys.stderr)
        return 1
    ready = {"url": engine.url, "zmq": engine.zmq_endpoint, "replay": engine.replay_endpoint}
    print(json.dumps(ready), flush=True)
    await ended.wait()
    await engine.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
