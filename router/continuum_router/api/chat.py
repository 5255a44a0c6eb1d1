"""POST /v1/chat/completions and /v1/completions: the stops of architecture section 4, in order."""

from dataclasses import replace

from aiohttp import web

from continuum_router.api.access_log import AccessLog
from continuum_router.api.client_body import read_body
from continuum_router.api.client_sink import WebSink
from continuum_router.api.scope import Scope
from continuum_router.providers.prepare import sort_headers
from continuum_router.request import Endpoint, parse_generate
from continuum_router.runtime import Runtime
from continuum_router.upstream.outcome import Call


class Generate:
    """Handler of one generating endpoint."""

    def __init__(self, runtime: Runtime, endpoint: Endpoint, lines: AccessLog) -> None:
        self._runtime = runtime
        self._lines = lines
        self._endpoint = endpoint

    async def __call__(self, request: web.BaseRequest, scope: Scope) -> web.StreamResponse:
        """Answer one request from one snapshot. Raises RouterError for what is refused."""
        snap = self._runtime.current
        scope.routing_headers = snap.routing_headers
        inbound = sort_headers(
            request.raw_headers,
            query=request.rel_url.raw_query_string,
            trusted=snap.trusted_proxies.trusts(request.remote),
        )
        raw = await read_body(request, snap.max_body_bytes)
        parsed = parse_generate(self._endpoint, raw, snap.request_rules)
        scope.model = parsed.model
        self._lines.started(scope)
        if snap.key_scoper is not None:
            wide = snap.key_scoper.widen(parsed.hash_key, parsed.body, inbound)
            parsed = replace(parsed, hash_key=wide)
        holdings = None
        if snap.lookup is not None and parsed.prefix is not None:
            holdings = snap.lookup.holdings(parsed.prefix)
        sink = scope.sink = WebSink(
            request, more_headers=scope.headers, closing=lambda: self._runtime.draining
        )
        piecer, pieces = snap.dispatcher.piecer, None
        if piecer is not None and piecer.is_long(parsed.raw):
            pieces = await piecer.of_long(parsed, piecer.tenant(inbound))
        await snap.dispatcher.run(
            Call(
                request=parsed,
                inbound=inbound,
                holdings=holdings,
                sink=sink,
                request_id=scope.request_id,
                outcome=scope.outcome,
                client=request.remote,
                pieces=pieces,
            )
        )
        assert sink.response is not None
        return sink.response
