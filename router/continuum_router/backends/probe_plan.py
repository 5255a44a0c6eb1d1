"""What to ask a backend to learn its health, and what its answers mean. Pure (S2, E1, E9).

Either the backend's own `health_check`, sent exactly as it is written, or its type's way: a light
endpoint, and a catalogue that is asked only when the light one does not exist there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from continuum_router.backends.credentials import own_headers
from continuum_router.backends.health import (
    CredentialState,
    Observation,
    ProbeError,
    ProbeOutcome,
)
from continuum_router.backends.kinds import KINDS
from continuum_router.backends.pool import Backend
from continuum_router.config.health_checks import BackendHealthCheck, HealthChecksConfig

NOT_THERE = frozenset({404, 405})
"""Path or method not supported: the only answers that lead to the next endpoint (S2)."""

OWN_WARMUP = frozenset({503})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """One backend's probe under one configuration.

    `paths` are tried in order; those in `catalogues` are as large as a model list, so their verdict
    is kept for a while. `accept` None means 200 to 299. `proves_key` are the paths whose success
    proves the credential. `headers` may hold secrets. `timeout` bounds the whole probe, in seconds.
    """

    method: str
    paths: tuple[str, ...]
    timeout: float
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    accept: frozenset[int] | None = None
    warmup: frozenset[int] = OWN_WARMUP
    catalogues: frozenset[str] = frozenset()
    proves_key: frozenset[str] = frozenset()

    def accepts(self, status: int) -> bool:
        """Does this status mean healthy?"""
        return 200 <= status <= 299 if self.accept is None else status in self.accept

    def goes_on(self, status: int) -> bool:
        """Is the next path to be tried? A status that was listed as good is good first."""
        return status in NOT_THERE and not self.accepts(status) and status not in self.warmup

    def judge(self, path: str, status: int, latency: float) -> Observation:
        """What an answer's status says. Redirects are never followed: they are failures (E9)."""
        outcome, error, credentials = ProbeOutcome.FAILED, ProbeError.NONE, None
        if self.accepts(status):
            outcome = ProbeOutcome.OK
            if path in self.proves_key:
                credentials = CredentialState.VALID
        elif status in self.warmup:
            outcome, error = ProbeOutcome.WARMING, ProbeError.BUSY
        else:
            error = _error_of(status)
            if error is ProbeError.CREDENTIALS:
                credentials = CredentialState.INVALID
        return Observation(
            outcome=outcome, error=error, status=status, latency=latency, credentials=credentials
        )


def plan_for(
    backend: Backend, own: BackendHealthCheck | None, section: HealthChecksConfig
) -> ProbePlan:
    """The plan of one backend. Its key and headers go along, as they do with requests (H12)."""
    kind = KINDS[backend.type]
    first, *rest = kind.health_paths
    if first == "/health":
        first = section.endpoint
    headers = [("Accept", "application/json"), *own_headers(backend)]
    if own is None:
        fallbacks = tuple(path for path in rest if path != first)
        proving = kind.key_proof is not None and (
            not kind.key_proof or backend.url.host in kind.key_proof
        )
        return ProbePlan(
            method="GET",
            paths=(first, *fallbacks),
            timeout=section.timeout,
            headers=tuple(headers),
            catalogues=frozenset(path for path in fallbacks if path == kind.models_path),
            proves_key=frozenset({first}) if proving else frozenset(),
        )
    body = b""
    if own.body is not None:
        body = orjson.dumps(own.body)
        headers.append(("Content-Type", "application/json"))
    fallback = own.fallback_endpoints
    if fallback is None:
        fallback = tuple(rest) if own.endpoint is None else ()
    return ProbePlan(
        method=own.method.value,
        paths=(own.endpoint or first, *fallback),
        timeout=own.timeout or section.timeout,
        body=body,
        headers=tuple(headers),
        accept=None if own.accept_status is None else frozenset(own.accept_status),
        warmup=frozenset(own.warmup_status),
    )


def _error_of(status: int) -> ProbeError:
    if 300 <= status <= 399:
        return ProbeError.REDIRECT
    by_status: Mapping[int, ProbeError] = {
        401: ProbeError.CREDENTIALS,
        403: ProbeError.CREDENTIALS,
        404: ProbeError.NOT_FOUND,
        405: ProbeError.NOT_FOUND,
        429: ProbeError.BUSY,
        503: ProbeError.BUSY,
    }
    return by_status.get(status, ProbeError.STATUS)
