"""One warning when no engine has ever connected to a source (user report K14).

Both ends bind, both connect, or there is no engine: three dead set-ups that look alike from here.
"""

import logging

from continuum_shared.logs import fields

log = logging.getLogger("continuum_kv_listener.silence")

TELL_SECONDS = 20.0
"""After the start. The page says it at once."""
BOTH_BIND = "does the engine bind this endpoint too? Then set zmq_mode: connect"
NOBODY_CONNECTS = "an engine whose endpoint has a * binds as this source does: zmq_mode: connect"
NOBODY_BINDS = "an engine whose endpoint names a host connects as this source does: zmq_mode: bind"


class Silence:
    """Watches one source from its start. Times are seconds of one clock."""

    __slots__ = ("_binds", "_due", "_endpoint", "_name")

    def __init__(self, name: str, endpoint: str, *, binds: bool, now: float) -> None:
        self._name = name
        self._endpoint = endpoint
        self._binds = binds
        self._due: float | None = now + TELL_SECONDS

    def sooner(self, until: float | None) -> float | None:
        """When :meth:`note` should be called again, if that is before ``until``."""
        if self._due is None or until is None:
            return until if self._due is None else self._due
        return min(until, self._due)

    def note(self, now: float, *, connected: bool, error: str | None) -> None:
        """Whether a publisher has ever been connected by now, and the last error."""
        if self._due is None:
            return
        if connected:
            self._due = None
        elif now >= self._due:
            self._due = None
            bound = NOBODY_CONNECTS if error is None else BOTH_BIND
            log.warning(
                "No engine has connected to this source since its start",
                extra=fields(
                    source=self._name,
                    endpoint=self._endpoint,
                    reason=error,
                    hint=bound if self._binds else NOBODY_BINDS,
                ),
            )
