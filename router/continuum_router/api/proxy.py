"""Everything generating beside chats and completions: passed on as it is, to where its model is.

The same stops as a chat (architecture section 4); the body is read only for what routing needs. Its
model may be absent where only one is served. Requests of `/v1/responses` that continue a response
go to the backend that made it.
"""

from collections.abc import Mapping
from dataclasses import replace

from aiohttp import hdrs, web

from continuum_router.api.client_body import read_body
from continuum_router.api.client_sink import WebSink
from continuum_router.api.form import read_form, read_opaque
from continuum_router.api.scope import Scope
from continuum_router.backends.pool import Backend, Pool
from continuum_router.errors import BadRequest, NotFound
from continuum_router.providers.json_scan import ResponseIdTap
from continuum_router.providers.prepare import sort_headers
from continuum_router.request import (
    ChatRequest,
    Endpoint,
    missing_model,
    parse_generate,
    parse_opaque,
)
from continuum_router.routing.response_homes import ResponseHomes
from continuum_router.runtime import Runtime, Snapshot
from continuum_router.upstream.outcome import Call

BODILESS = frozenset({"GET", "DELETE"})

_JSON_TYPES = frozenset({"", "application/json", "text/json"})


class Proxy:
    """Handler of one endpoint. `homes` is for `/v1/responses`."""

    def __init__(
        self,
        runtime: Runtime,
        endpoint: Endpoint,
        *,
        homes: ResponseHomes | None = None,
    ) -> None:
        self._runtime = runtime
        self._endpoint = endpoint
        self._homes = homes

    async def __call__(self, request: web.BaseRequest, scope: Scope) -> web.StreamResponse:
        """Answer one request from one snapshot. Raises RouterError for what is refused."""
        snap = self._runtime.current
        scope.routing_headers = snap.routing_headers
        inbound = sort_headers(
            request.raw_headers,
            query=request.rel_url.raw_query_string,
            trusted=snap.trusted_proxies.trusts(request.remote),
        )
        parsed = await self._read(request, scope, snap)
        scope.model = parsed.model or None
        only = self._only(parsed, scope, snap.dispatcher.pool)
        if snap.key_scoper is not None:
            wide = snap.key_scoper.widen(parsed.hash_key, parsed.body, inbound)
            parsed = replace(parsed, hash_key=wide)
        holdings = None
        if snap.lookup is not None and parsed.prefix is not None:
            holdings = snap.lookup.holdings(parsed.prefix)
        sink = scope.sink = WebSink(
            request,
            more_headers=scope.headers,
            closing=lambda: self._runtime.draining or not request.content.is_eof(),
        )
        piecer, pieces = snap.dispatcher.piecer, None
        if piecer is not None and piecer.is_long(parsed.raw):
            pieces = await piecer.of_long(parsed, piecer.tenant(inbound))
        tap = ResponseIdTap() if self._endpoint is Endpoint.RESPONSES else None
        try:
            await snap.dispatcher.run(
                Call(
                    request=parsed,
                    inbound=inbound,
                    holdings=holdings,
                    sink=sink,
                    request_id=scope.request_id,
                    outcome=scope.outcome,
                    only=only,
                    taps=() if tap is None else (tap,),
                    client=request.remote,
                    pieces=pieces,
                )
            )
        finally:
            # A client that left has seen the id too, and may come back with it.
            self._note_home(tap, scope)
        assert sink.response is not None
        return sink.response

    async def _read(self, request: web.BaseRequest, scope: Scope, snap: Snapshot) -> ChatRequest:
        endpoint, limit = self._endpoint, snap.max_body_bytes
        if scope.method in BODILESS and not request.body_exists:
            return parse_opaque(endpoint, b"", path=scope.path, method=scope.method)
        kind = request.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            return await read_form(request, endpoint, scope, limit)
        if endpoint is Endpoint.PASSTHROUGH and kind not in _JSON_TYPES:
            return await read_opaque(request, endpoint, scope, limit)
        raw = await read_body(request, limit)
        if endpoint is Endpoint.PASSTHROUGH and raw.lstrip()[:1] != b"{":
            return parse_opaque(endpoint, raw, path=scope.path, method=scope.method)
        if not raw and scope.path != endpoint.path:
            return parse_opaque(endpoint, raw, path=scope.path, method=scope.method)
        parsed = parse_generate(endpoint, raw, snap.request_rules)
        return replace(parsed, path=scope.path, method=scope.method)

    def _only(self, parsed: ChatRequest, scope: Scope, pool: Pool) -> Backend | None:
        """The backend that alone can serve a request. Raises what tells that none can."""
        if self._homes is not None:
            stored = scope.path != self._endpoint.path
            home = self._home(_response_of(parsed.body, scope.path, self._endpoint), pool)
            if home is not None:
                return home
            if stored:
                if len(pool.routable) == 1:
                    return pool.routable[0]
                raise NotFound("No such response is known here.", code="response_not_found")
        must_name = self._endpoint is not Endpoint.PASSTHROUGH
        if must_name and not parsed.model and pool.model_choice:
            raise missing_model()
        return None

    def _home(self, response_id: str | None, pool: Pool) -> Backend | None:
        name = self._homes.home_of(response_id) if self._homes and response_id else None
        backend = pool.by_name.get(name) if name is not None else None
        return backend if backend in pool.routable else None

    def _note_home(self, tap: ResponseIdTap | None, scope: Scope) -> None:
        backend = scope.outcome.backend
        if tap is not None and self._homes is not None and tap.found and backend is not None:
            self._homes.remember(tap.found, backend)


def _response_of(body: Mapping[str, object], path: str, endpoint: Endpoint) -> str | None:
    """The id of the response that a request continues, or that its path names."""
    if path != endpoint.path:
        return path.removeprefix(endpoint.path).split("/")[1]
    previous = body.get("previous_response_id")
    if previous is None or isinstance(previous, str):
        return previous
    raise BadRequest(
        "Invalid type for 'previous_response_id': expected a string.",
        param="previous_response_id",
        code="invalid_type",
    )
