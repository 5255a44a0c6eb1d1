"""`/admin/*`: a running router looked at and steered (decisions P4, J9; S2).

Reads: `GET /admin/backends`, `GET /admin/config`. Writes: `POST /admin/reload`,
`POST /admin/models/refresh`, `POST /admin/backends/{name}/drain` and `/undrain`. Every write leaves
a line under the name `admin_audit`.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import orjson
from aiohttp import web

from continuum_router.api.admin_access import Denied, admin_verdict
from continuum_router.api.scope import Scope
from continuum_router.backends.conditions import Condition
from continuum_router.backends.fleet import Fleet
from continuum_router.config.model_aggregation import Deduplication
from continuum_router.errors import AdminRefused, AdminUnauthorized, NotFound, RefreshNotAllowed
from continuum_router.runtime import Runtime
from continuum_shared.logs import fields

audit = logging.getLogger("admin_audit")

PREFIX = "/admin/"
MAX_BODY = 64 * 1024


class ReloadAnswer(Protocol):
    """What a reload ends in; `reload_report.ReloadReport` fits."""

    @property
    def live(self) -> bool:
        """True when the candidate is in force."""

    def to_json(self) -> dict[str, object]:
        """The body of the answer."""


_WORDS: Mapping[Denied, str] = {
    Denied.NO_TOKEN: "This needs the admin token, as Authorization: Bearer TOKEN.",
    Denied.WRONG_TOKEN: "This is not the admin token.",
    Denied.NOT_LOCAL: "Without admin.token_env only programs on the router's own host may do this.",
    Denied.FORWARDED: "Without admin.token_env a request that a proxy passed on is not accepted.",
    Denied.FOREIGN_HOST: "Without admin.token_env the Host header must name this host.",
    Denied.NOT_JSON: "Send Content-Type: application/json.",
}


class Admin:
    """One handler for everything below `/admin/`; `reload` is what POST /admin/reload does."""

    def __init__(
        self, runtime: Runtime, fleet: Fleet, reload: Callable[[], Awaitable[ReloadAnswer]]
    ) -> None:
        given = runtime.current.config.admin.token_env
        self._tokens = [token.reveal().encode() for token in given]
        self._unix = bool(runtime.current.config.server.listen.socket_path)
        self._runtime = runtime
        self._fleet = fleet
        self._reload = reload

    async def __call__(self, request: web.BaseRequest, scope: Scope) -> web.StreamResponse:
        """Check the caller, then do what the path says. Raises RouterError."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        # A TCP client that has reset its connection already may have no address any more.
        peer = None if self._unix else request.remote or ""
        denied = admin_verdict(request.method, headers, peer, self._tokens)
        if denied is not None:
            kind = AdminUnauthorized if denied in _TOKEN_FAULTS else AdminRefused
            challenge = {"WWW-Authenticate": "Bearer"} if kind is AdminUnauthorized else {}
            raise kind(_WORDS[denied], headers=challenge)
        parts = scope.path.removeprefix(PREFIX).split("/")
        body = await self._do(request.method, parts)
        status = 200
        if isinstance(body, _Failed):
            status, body = body.status, body.body
        if request.method != "GET":
            audit.info(
                "Admin write",
                extra=fields(request_id=scope.request_id, path=scope.path, status=status),
            )
        return web.Response(
            status=status,
            body=orjson.dumps(body, option=orjson.OPT_INDENT_2),
            content_type="application/json",
            headers=scope.headers_map(),
        )

    async def _do(self, method: str, parts: Sequence[str]) -> object:
        match (method, *parts):
            case ("GET", "backends"):
                return {"backends": self._backends()}
            case ("GET", "config"):
                snap = self._runtime.current
                # Secrets are of a type that shows as *** wherever it goes.
                config = snap.config.model_dump(mode="json")
                return {"generation": snap.generation, "config": config}
            case ("POST", "reload"):
                report = await self._reload()
                return report.to_json() if report.live else _Failed(409, report.to_json())
            case ("POST", "models", "refresh"):
                return await self._refresh_models()
            case ("POST", "backends", name, "drain" | "undrain" as verb):
                return self._drain(name, draining=verb == "drain")
            case _:
                raise NotFound

    async def _refresh_models(self) -> object:
        if not self._runtime.current.config.model_aggregation.allow_force_refresh:
            raise RefreshNotAllowed
        await self._runtime.current.catalog.force()
        snap = self._runtime.current
        pool = snap.dispatcher.pool
        data = snap.catalog.listing(pool)
        strategy = snap.config.model_aggregation.deduplication_strategy
        if strategy is Deduplication.MERGE_BACKENDS:
            # Only admin callers see who serves a model (decisions E19).
            for entry in data:
                entry["backends"] = [b.name for b in pool.for_model(str(entry["id"]))]
        return {"object": "list", "data": data}

    def _drain(self, name: str, *, draining: bool) -> object:
        try:
            self._fleet.conditions.set_draining(name, draining)
        except KeyError:
            raise NotFound("There is no backend with this name.", param="name") from None
        return {"backend": name, "draining": draining, "in_flight": self._fleet.loads.get(name, 0)}

    def _backends(self) -> list[dict[str, object]]:
        fleet = self._fleet
        shown = []
        for name in fleet.conditions.names():
            found = fleet.conditions.get(name)
            if found is not None:
                shown.append({"name": name, **self._condition(found), **self._traffic(name)})
        return shown

    def _condition(self, found: Condition) -> dict[str, object]:
        now, machine = self._fleet.conditions.clock(), found.machine
        breaker = found.breaker
        return {
            "state": found.state.value,
            "successes": machine.successes,
            "failures": machine.failures,
            "last_error": machine.last_error.value,
            "last_status": machine.last_status,
            "credentials": machine.credentials.value,
            "checked_seconds_ago": _ago(machine.checked_at, now),
            "served_seconds_ago": _ago(found.last_success, now),
            "breaker": {
                "state": breaker.state(now).value,
                "failures": breaker.streak,
                "opened": breaker.opened,
            },
        }

    def _traffic(self, name: str) -> dict[str, object]:
        latency = self._fleet.latency(name)
        return {
            "in_flight": self._fleet.loads.get(name, 0),
            "success_rate": round(self._fleet.success_rate(name), 4),
            "latency_ms": None if latency is None else round(latency * 1000, 1),
        }


class _Failed:
    """A body that goes with an error status."""

    def __init__(self, status: int, body: object) -> None:
        self.status = status
        self.body = body


_TOKEN_FAULTS = frozenset({Denied.NO_TOKEN, Denied.WRONG_TOKEN})


def _ago(when: float | None, now: float) -> float | None:
    return None if when is None else round(now - when, 1)
