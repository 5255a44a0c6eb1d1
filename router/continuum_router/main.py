"""The life of the router process: start order, signals, drain, stop order."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from continuum_router.assemble import (
    State,
    adopt_health,
    before_clients,
    build_server,
    build_snapshot,
    build_state,
    check_tls_files,
    start_tasks,
    stop_state,
)
from continuum_router.backends.credentials import TlsFileError
from continuum_router.config.root import Config
from continuum_router.config_watch import ConfigWatch
from continuum_router.reload import Read, Reloader, Trigger
from continuum_router.runtime import Runtime
from continuum_shared.backoff import Backoff
from continuum_shared.config.kinds import ListenAddress
from continuum_shared.config.report import Report
from continuum_shared.logs import LogQueue, fields, start_logging
from continuum_shared.tasks import Supervisor
from continuum_shared.version import __version__

log = logging.getLogger("continuum_router.main")

BACKLOG = 1024
GC_THRESHOLD = 50_000
STOP_SECONDS = 0.25
"""How long what outlived the drain is still waited for, before it is cancelled."""


class StartFailed(Exception):
    """The router cannot start; the text is for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """The file that the configuration came from, and how it is read anew (raises ConfigError).

    `digest` is of the content that was read at the start, taken just before.
    """

    path: Path
    digest: bytes | None
    read: Read


class Router:
    """One running router: `start`, then `drain`, then `stop`. Tests use it as the command does.

    `file` is what a reload reads; None when the configuration came from the command line.
    """

    def __init__(self, config: Config, file: ConfigFile | None = None) -> None:
        self._config = config
        self.state: State = build_state(config)
        self.runtime = Runtime(build_snapshot(config, self.state))
        self._file = file
        self.reloader = Reloader(self.runtime, self.state, None if file is None else file.read)
        self._server = build_server(self.runtime, self.state)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=STOP_SECONDS)
        self._site: web.BaseSite | None = None

    @property
    def address(self) -> ListenAddress:
        """Where it listens, with the port that the system chose."""
        listen = self._config.server.listen
        if listen.socket_path or not self._runner.addresses:
            return listen
        return ListenAddress(host=listen.host, port=self._runner.addresses[0][1])

    async def start(self) -> None:
        """Listen, then begin what runs beside.

        Raises StartFailed when the address is not free or a certificate cannot be read.
        """
        listen = self._config.server.listen
        try:
            check_tls_files(self.runtime.current)
        except TlsFileError as err:
            await stop_state(self.state)
            raise StartFailed(str(err)) from None
        await adopt_health(self.runtime, self.state)
        section = self._config.health_checks
        if section.enabled and section.block_startup:
            await before_clients(self.runtime, self.state)
        await self._runner.setup()
        self._site = (
            web.UnixSite(self._runner, listen.socket_path, backlog=BACKLOG)
            if listen.socket_path
            else web.TCPSite(self._runner, listen.host, listen.port, backlog=BACKLOG)
        )
        try:
            await self._site.start()
        except OSError as err:
            await self._runner.cleanup()
            await stop_state(self.state)
            reason = (err.strerror or "the address cannot be used").lower()
            raise StartFailed(f"cannot listen on {listen}: {reason}") from None
        await start_tasks(self.runtime, self.state)
        if self._file is not None and self._config.server.watch_config:
            watch = ConfigWatch(
                self._file.path,
                self._file.digest,
                lambda: self.reloader.reload(Trigger.FILE),
            )
            self.state.supervisor.supervise("config-watch", watch.run, Backoff(1, 60))

    def reload_soon(self) -> None:
        """Reload in a task of its own; for a signal handler."""
        self.state.supervisor.spawn("reload", self._reload_by_signal())

    async def _reload_by_signal(self) -> None:
        await self.reloader.reload(Trigger.SIGNAL)

    async def drain(self) -> bool:
        """Stop accepting, say not ready, let running requests end (decisions H8).

        Connections that are open stay: what they still send is answered, with a close. Returns True
        when nothing was left to cancel.
        """
        self.runtime.draining = True
        if self._site is not None:
            await self._site.stop()
            self._site = None
        try:
            async with asyncio.timeout(self._config.server.drain_timeout):
                await self.state.active.wait_none()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Cancel what still runs and close everything, clients first."""
        self.runtime.draining = self.runtime.stopping = True
        await self._runner.cleanup()
        await stop_state(self.state)


async def serve(
    config: Config, report: Report, queue: LogQueue, file: ConfigFile | None = None
) -> None:
    """Run a router until SIGTERM or SIGINT; a second signal ends the drain. SIGHUP reloads.

    Raises StartFailed.
    """
    for problem in report.warnings:
        log.warning(
            "Configuration warning",
            extra=fields(
                path=problem.path, line=problem.line, problem=problem.message, hint=problem.hint
            ),
        )
    router = Router(config, file)
    queue.register_metrics(router.state.metrics)
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, router.reload_soon)
    if not await _started(router, stop):
        return
    # What was made so far lives for ever: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    log.info(
        "Router started",
        extra=fields(
            version=__version__,
            listen=str(router.address),
            backends=len(config.backends),
            strategy=config.selection_strategy.value,
            kv_cache_index=config.kv_cache_index.enabled,
        ),
    )
    await stop.wait()
    log.info("Draining", extra=fields(active=router.state.active.now))
    clean = await _first(router.drain, hurry.wait, router)
    await router.stop()
    log.info("Router stopped", extra=fields(clean=clean))


async def _started(router: Router, stop: asyncio.Event) -> bool:
    """Start the router; False when a signal came first: silent backends must not hold it up."""
    # Of its own: a failing start stops the router's tasks, and must not stop itself with them.
    tasks = Supervisor("start")
    starting = tasks.spawn("start", _start(router))
    stopped = tasks.spawn("stopped", stop.wait())
    try:
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await tasks.stop()
    if starting.cancelled():
        await router.stop()
        log.info("Stopped before the start was over")
        return False
    if (failed := starting.result()) is not None:
        raise failed
    return True


async def _start(router: Router) -> StartFailed | None:
    """Start it; what goes wrong is the result, not a crash of the task."""
    try:
        await router.start()
    except StartFailed as failed:
        return failed
    return None


async def _first(
    drain: Callable[[], Awaitable[bool]], hurry: Callable[[], Awaitable[bool]], router: Router
) -> bool:
    """Drain, unless a second signal comes first. True when the drain ended by itself, cleanly."""
    tasks = router.state.supervisor
    draining = tasks.spawn("drain", _as_coroutine(drain))
    hurried = tasks.spawn("hurry", _as_coroutine(hurry))
    await asyncio.wait((draining, hurried), return_when=asyncio.FIRST_COMPLETED)
    clean = draining.done() and draining.result()
    await tasks.cancel("drain")
    await tasks.cancel("hurry")
    return clean


async def _as_coroutine(make: Callable[[], Awaitable[bool]]) -> bool:
    return await make()


def run(
    config: Config,
    report: Report,
    *,
    env: Mapping[str, str],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    file: ConfigFile | None = None,
) -> int:
    """Run the router in this process. Returns the exit code: 0 after a clean end, 1 on failure.

    `loop_factory` makes the event loop; None takes asyncio's own. `file` is what a reload reads.
    """
    queue = start_logging(config.logging, env)
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(serve(config, report, queue, file))
    except StartFailed as failed:
        log.error("Start failed", extra=fields(reason=str(failed)))  # noqa: TRY400
        print(f"continuum-router: {failed}", file=sys.stderr)
        return 1
    finally:
        queue.stop()
    return 0
