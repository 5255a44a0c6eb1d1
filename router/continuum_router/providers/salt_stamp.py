"""Puts the router's salt into a request's body (decisions C24, C41, P7; docs/decisions/0034).

Only what has a prefix key is stamped, and a request with a salt of its own has none. The body's
bytes stay as the client sent them, with one field more at the end of the object.
"""

import re
from collections.abc import Mapping

from continuum_router.backends.pool import Backend
from continuum_router.config.backends import BackendType
from continuum_router.request import ChatRequest, Endpoint
from continuum_shared.cache_salt import SaltIssuer

FIELD = "cache_salt"

_GENERATING = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES})
_ENDPOINTS: Mapping[BackendType, frozenset[Endpoint]] = {
    BackendType.VLLM: _GENERATING,
    BackendType.SGLANG: _GENERATING,
    # Its server refuses fields that it does not know; only its chats have this one.
    BackendType.TRTLLM: frozenset({Endpoint.CHAT}),
}
"""Which requests each engine takes a salt with."""

_EMPTY = re.compile(rb'"cache_salt"\s*:\s*(null)')


class SaltStamp:
    """Stamps the requests of one configuration."""

    __slots__ = ("_issuer",)

    def __init__(self, issuer: SaltIssuer) -> None:
        self._issuer = issuer

    def stamp(self, body: bytes, request: ChatRequest, backend: Backend) -> bytes:
        """Return `body`, the JSON object that `request` is for `backend`, with its salt.

        The same bytes when this request takes none: no prefix key, a salt of the client's own, or
        an engine that would not know the field.
        """
        endpoints = _ENDPOINTS.get(backend.type)
        key = request.prefix
        if endpoints is None or key is None or request.endpoint not in endpoints:
            return body
        salt = self._issuer.issue(
            key, backend=backend.name, model=backend.real_name(request.model)
        ).encode("ascii")
        given = request.body.get(FIELD, request)
        if given is request:
            return _appended(body, salt)
        # An empty text is the client's mistake, and the engine's to tell.
        return _in_place(body, salt) if given is None else body


def _appended(body: bytes, salt: bytes) -> bytes:
    end = body.rindex(b"}")  # only white space follows an object
    return b'%b,"cache_salt":"%b"%b' % (body[:end], salt, body[end:])


def _in_place(body: bytes, salt: bytes) -> bytes:
    """Replace the `null` of a client that fills in every field."""
    # An escaped name could stand for ours, and so could one in an inner object.
    if body.count(b'"cache_salt"') == 1 and b"\\u" not in body:
        found = _EMPTY.search(body)
        if found is not None:
            return b'%b"%b"%b' % (body[: found.start(1)], salt, body[found.end(1) :])
    # Of a name that comes twice every reader takes the last.
    return _appended(body, salt)
