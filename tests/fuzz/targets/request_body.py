"""JSON bodies of every generating endpoint: read or refused, never anything else."""

import contextlib

from continuum_router.errors import BadRequest
from continuum_router.request import Endpoint, RequestRules, parse_generate
from fuzz.target import Target, plain

_ENDPOINTS = (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.EMBEDDINGS)
_RULES = RequestRules(aliases={"alias": "m"})


def run(data: bytes) -> None:
    for endpoint in _ENDPOINTS:
        with contextlib.suppress(BadRequest):
            parsed = parse_generate(endpoint, data, _RULES)
            assert parsed.raw == data
            assert len(parsed.model) <= 256


TARGET = Target(
    name="request_body",
    opened=plain(run),
    seeds=(
        b'{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]}',
        b'{"model":"alias","messages":[{"role":"user","content":[{"type":"text","text":"t"}]}]}',
        b'{"model":"m","prompt":["a","b"],"stream":true,"cache_salt":"s"}',
        b'{"model":"m","prompt":[1,2,3],"extra_key":"k"}',
        b'{"model":"m","input":[{"role":"user","content":"i"}],"previous_response_id":"r"}',
        b'{"input":"text","instructions":"do"}',
    ),
    tokens=(
        b'"messages":',
        b'"content":',
        b'"role":"system"',
        b'"prompt":',
        b'"input":',
        b'"cache_salt":"cr1."',
        b'"stream":',
        b"null",
        b"true",
        b"NaN",
        b"1e999",
        b"[[[[",
        b"\\ud800",
        b"\xed\xa0\x80",
        b"[" * 1500,
        b'"',
        b"{",
        b"}",
        b",",
    ),
    watched=("continuum_router.request", "continuum_shared.prefix_key"),
    smoke=5000,
    max_size=4096,
)
