"""One backend's probe: sent on a session of its own, never through the proxied pool (S2).

Only the head of the answer is read: a body that has not arrived with it, a catalogue perhaps, is
dropped with its connection. Nothing that a backend says reaches a log.
"""

import asyncio
import ssl
from collections.abc import Callable

import aiohttp

from continuum_router.backends.credentials import TlsFileError, tls_context
from continuum_router.backends.health import Observation, ProbeError, ProbeOutcome
from continuum_router.backends.pool import Backend
from continuum_router.backends.probe_plan import ProbePlan

MAX_HEAD = 64 * 1024
"""Bytes of an answer's head that are looked at (S2 "unix socket backends")."""

VERDICT_SECONDS = 300.0
"""How long a catalogue's verdict is kept (S2 "catalogue-sized fallbacks")."""


class Prober:
    """Probes one backend under one configuration; a changed one gets a new prober, so that no
    verdict and no result of before applies (S2). `clock` is monotonic seconds. `asked` turns True
    with the first probe.
    """

    def __init__(self, backend: Backend, plan: ProbePlan, clock: Callable[[], float]) -> None:
        self.backend = backend
        self.plan = plan
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | None = None
        self._verdicts: dict[str, tuple[float, Observation]] = {}
        self._asking: str | None = None
        self.asked = False

    async def probe(self, *, anew: bool = False) -> Observation:
        """Ask once. `anew` asks a catalogue even if its verdict is remembered (the start's rounds).

        Never raises for what the backend does; a cancellation passes through.
        """
        self.asked = True
        began = self._clock()
        try:
            async with asyncio.timeout(self.plan.timeout):
                return await self._ask(anew)
        except TimeoutError:
            return self._remember(_failure(ProbeError.TIMEOUT, self._clock() - began))
        except TlsFileError:
            return _failure(ProbeError.TLS, None)
        except (aiohttp.ClientSSLError, ssl.SSLError):
            return self._remember(_failure(ProbeError.TLS, None))
        except (aiohttp.ClientConnectionError, OSError):
            return self._remember(_failure(ProbeError.CONNECT, None))
        except (aiohttp.ClientError, ValueError):
            return self._remember(_failure(ProbeError.PROTOCOL, None))

    async def close(self) -> None:
        """Close the session; the prober can be used again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _ask(self, anew: bool) -> Observation:
        plan = self.plan
        self._asking = None
        for path in plan.paths[:-1]:
            seen = await self._request(path, anew)
            if seen.status is None or not plan.goes_on(seen.status):
                return seen
        return await self._request(plan.paths[-1], anew)

    async def _request(self, path: str, anew: bool) -> Observation:
        plan = self.plan
        catalogue = path in plan.catalogues
        if catalogue and not anew:
            known = self._verdicts.get(path)
            if known is not None and self._clock() - known[0] < VERDICT_SECONDS:
                return known[1]
        self._asking = path if catalogue else None
        began = self._clock()
        url = self.backend.url
        origin = f"http://{url.authority}" if url.socket_path else str(url)
        async with self._open().request(
            plan.method,
            origin + path,
            data=plan.body or None,
            headers=plan.headers,
            allow_redirects=False,
            ssl=self._context() if url.tls else True,
            server_hostname=self.backend.tls.server_name if url.tls else None,
        ) as answer:
            head = sum(len(name) + len(value) + 4 for name, value in answer.raw_headers)
            if head > MAX_HEAD:
                answer.close()
                return self._remember(_failure(ProbeError.PROTOCOL, self._clock() - began))
            seen = plan.judge(path, answer.status, self._clock() - began)
        return self._remember(seen)

    def _remember(self, seen: Observation) -> Observation:
        """Keep a catalogue's verdict, errors included: exactly what happened (S2)."""
        path, self._asking = self._asking, None
        if path is not None:
            kept = Observation(
                outcome=seen.outcome,
                error=seen.error,
                status=seen.status,
                latency=seen.latency,
                fresh=False,
            )
            self._verdicts[path] = (self._clock(), kept)
        return seen

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            path = self.backend.url.socket_path
            # A connection each: a probe also shows that new ones are taken, and nothing is sent
            # twice because a kept one had died.
            connector: aiohttp.BaseConnector = (
                aiohttp.UnixConnector(path, force_close=True)
                if path
                else aiohttp.TCPConnector(force_close=True)
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers={"Accept-Encoding": "gzip"},
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=MAX_HEAD,
                max_line_size=MAX_HEAD,
                max_field_size=MAX_HEAD,
            )
        return self._session

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = tls_context(self.backend.tls)
        return self._tls


def _failure(error: ProbeError, latency: float | None) -> Observation:
    return Observation(outcome=ProbeOutcome.FAILED, error=error, latency=latency)
