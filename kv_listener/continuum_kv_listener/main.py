"""The life of the listener process: start order, signals, orderly end."""

import asyncio
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from aiohttp import web

from continuum_kv_listener.assemble import Listener, World
from continuum_kv_listener.config import ListenerConfig
from continuum_kv_listener.engine_text import TokenizerFileError
from continuum_kv_listener.serve_sse import ServeTimes
from continuum_kv_listener.sources.publisher_acl import UnresolvedPublisher
from continuum_shared.config.kinds import ListenAddress
from continuum_shared.config.report import Report
from continuum_shared.logs import (
    LogFormat,
    LogLevel,
    LogSettings,
    fields,
    levels_from_env,
    setup_logging,
)
from continuum_shared.version import __version__

log = logging.getLogger("continuum_kv_listener.main")

STOP_SECONDS = 5.0
"""How long open streams get to take what is left for them."""


class StartFailed(Exception):
    """The listener cannot start; the text is for the operator."""


class Daemon:
    """One running listener: ``start``, then ``stop``. Tests use it as the command does."""

    def __init__(
        self, config: ListenerConfig, world: World, *, times: ServeTimes | None = None
    ) -> None:
        self.listener = Listener(config, world)
        self._listen = config.listen
        self._web = web.AppRunner(
            self.listener.http(times).application(),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=STOP_SECONDS,
        )

    @property
    def address(self) -> ListenAddress:
        """Where it listens, with the port that the system chose."""
        if self._listen.socket_path or not self._web.addresses:
            return self._listen
        return ListenAddress(host=self._listen.host, port=self._web.addresses[0][1])

    async def start(self) -> None:
        """Listen, then start the sources. Raises StartFailed."""
        await self._web.setup()
        listen = self._listen
        site: web.BaseSite = (
            web.UnixSite(self._web, listen.socket_path)
            if listen.socket_path
            else web.TCPSite(self._web, listen.host, listen.port)
        )
        try:
            await site.start()
            await self.listener.start()
        except OSError as error:
            await self.stop()
            raise StartFailed(f"cannot listen on {listen}: {_reason(error)}") from None
        except (UnresolvedPublisher, TokenizerFileError) as error:
            await self.stop()
            raise StartFailed(str(error)) from None

    async def stop(self) -> None:
        """End the streams cleanly, then everything else."""
        self.listener.end_streams()
        await self._web.cleanup()
        await self.listener.stop()


def _reason(error: OSError) -> str:
    """The system's words alone: asyncio wraps them in a sentence of its own."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (error.strerror or "the address cannot be used").lower()


async def serve(config: ListenerConfig, report: Report) -> None:
    """Run a listener until SIGTERM or SIGINT. Raises StartFailed."""
    for problem in report.warnings:
        log.warning(
            "Configuration warning",
            extra=fields(
                path=problem.path, line=problem.line, problem=problem.message, hint=problem.hint
            ),
        )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    daemon = Daemon(config, World(rng=random.Random()))
    await daemon.start()
    log.info(
        "Listener started",
        extra=fields(version=__version__, listen=str(daemon.address), sources=len(config.sources)),
    )
    await stop.wait()
    log.info("Stopping")
    await daemon.stop()
    log.info("Listener stopped")


def run(
    config: ListenerConfig, report: Report, *, env: Mapping[str, str], err: TextIO = sys.stderr
) -> int:
    """Run the listener in this process. Returns the exit code: 0 after a clean end, else 1."""
    section = config.logging
    level, targets, complaint = levels_from_env(LogLevel(section.level.value), env)
    queue = setup_logging(
        LogSettings(
            level=level,
            format=LogFormat(section.format.value),
            queue_capacity=section.queue_capacity,
            queue_capacity_bytes=section.queue_capacity_bytes,
            targets=targets,
        )
    )
    if complaint is not None:
        log.warning(complaint)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve(config, report))
    except StartFailed as failed:
        print(f"continuum-kv-listener: {failed}", file=err)
        return 1
    finally:
        queue.stop()
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed, else asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
