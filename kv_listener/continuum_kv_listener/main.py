"""The life of the listener process: start order, signals, orderly end."""

import asyncio
import logging
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TextIO

from aiohttp import web

from continuum_kv_listener.assemble import Listener, World
from continuum_kv_listener.config import ListenerConfig
from continuum_kv_listener.engine_text import TokenizerFileError
from continuum_kv_listener.serve_sse import ServeTimes
from continuum_kv_listener.server_certificate import CertificateError, ServerCertificate
from continuum_kv_listener.sources.publisher_acl import UnresolvedPublisher
from continuum_shared.config.kinds import ListenAddress
from continuum_shared.config.report import Report
from continuum_shared.logs import LogQueue, fields, start_logging
from continuum_shared.version import __version__

log = logging.getLogger("continuum_kv_listener.main")

BACKLOG = 1024
FILES = 65_536
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
        self._certificate: ServerCertificate | None = None
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
        try:
            self._certificate = self.listener.certificate()
        except CertificateError as error:
            await self.listener.stop()
            raise StartFailed(str(error)) from None
        await self._web.setup()
        listen = self._listen
        tls = None if self._certificate is None else self._certificate.context
        site: web.BaseSite = (
            web.UnixSite(self._web, listen.socket_path, ssl_context=tls, backlog=BACKLOG)
            if listen.socket_path
            else web.TCPSite(self._web, listen.host, listen.port, ssl_context=tls, backlog=BACKLOG)
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

    def renew(self) -> None:
        """Look at the certificate's files now; everything else needs a restart."""
        if self._certificate is not None:
            self._certificate.renew()

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


def raise_file_limit() -> None:
    """Let the process open as many files as the system allows it: each stream is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a sandbox may forbid it; then the old limit holds
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def serve(
    config: ListenerConfig, report: Report, env: Mapping[str, str], queue: LogQueue
) -> None:
    """Run a listener until SIGTERM or SIGINT; SIGHUP renews the certificate. Raises StartFailed."""
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
    daemon = Daemon(config, World(rng=random.Random(), env=env))
    queue.register_metrics(daemon.listener.metrics)
    loop.add_signal_handler(signal.SIGHUP, daemon.renew)
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
    queue = start_logging(config.logging, env)
    raise_file_limit()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve(config, report, env, queue))
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
