"""Decisions H12: backends over TLS, and how the router shows them who it is."""

import base64
import ssl

import pytest

from continuum_router.main import Router, StartFailed
from support.edge import edge_config, running
from support.scripted_backend import answers, reply, scripted
from support.source_tree import ROOT

CERT = ROOT / "tests/fixtures/tls/cert.pem"
KEY = CERT.with_name("key.pem")


def _serving(*, mutual: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERT, KEY)
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(CERT)
    return context


def _entry(url: str, tls: str, more: str = "") -> str:
    return f"backends: [{{name: b1, url: '{url}', models: [m], tls: {tls}{more}}}]"


@pytest.mark.parametrize(
    ("tls", "status"),
    [
        (f"{{ca_file: '{CERT}'}}", 200),
        (f"{{ca_file: '{CERT}', server_name: localhost}}", 200),
        (f"{{ca_file: '{CERT}', server_name: other.example}}", 502),
        ("{}", 502),
        ("{insecure_skip_verify: true}", 200),
    ],
)
async def test_who_is_trusted(tls: str, status: int) -> None:
    async with scripted(answers(reply()), tls=_serving()) as backend:
        more = "retry: {max_attempts: 1}"
        async with running(edge_config(_entry(backend.url, tls), more)) as edge:
            assert (await edge.post({"model": "m"}, path="/v1/embeddings")).status == status
    assert len(backend.requests) == (1 if status == 200 else 0)


@pytest.mark.parametrize("shown", [True, False])
async def test_mutual_tls(shown: bool) -> None:
    pair = f", client_cert: '{CERT}', client_key: '{KEY}'" if shown else ""
    async with scripted(answers(reply()), tls=_serving(mutual=True)) as backend:
        text = _entry(backend.url, f"{{ca_file: '{CERT}'{pair}}}")
        async with running(edge_config(text, "retry: {max_attempts: 1}")) as edge:
            answer = await edge.post({"model": "m"}, path="/v1/embeddings")
            assert answer.status == (200 if shown else 502)


async def test_a_model_list_over_tls() -> None:
    listed = reply(b'{"data":[{"id":"found"}]}')
    async with scripted(answers(listed), tls=_serving()) as backend:
        text = f"backends: [{{name: b1, url: '{backend.url}', tls: {{ca_file: '{CERT}'}}}}]"
        async with running(edge_config(text)) as edge:
            await edge.router.state.catalog.refresh(edge.router.runtime.current.dispatcher.pool)
            data = (await edge.get("/v1/models")).json["data"]
    assert [entry["id"] for entry in data] == ["found"]


@pytest.mark.parametrize(
    ("more", "headers"),
    [
        (", api_key: k", {"Authorization": "Bearer k", "OpenAI-Organization": None}),
        (", api_key: k, organization: o", {"OpenAI-Organization": "o"}),
        (
            ", api_key: 'u:p', auth_scheme: basic",
            {"Authorization": "Basic " + base64.b64encode(b"u:p").decode()},
        ),
        (", api_key: k, auth_scheme: 'header:X-Key'", {"X-Key": "k", "Authorization": None}),
    ],
)
async def test_credentials(more: str, headers: dict[str, str | None]) -> None:
    async with scripted(answers(reply())) as backend:
        text = f"backends: [{{name: b1, url: '{backend.url}', models: [m]{more}}}]"
        async with running(edge_config(text)) as edge:
            sent = {"Authorization": "Bearer the-clients"}
            await edge.post({"model": "m"}, path="/v1/embeddings", headers=sent)
    (seen,) = backend.requests
    assert {name: seen.header(name) for name in headers} == headers


async def test_a_certificate_that_cannot_be_read_stops_the_start() -> None:
    router = Router(edge_config(_entry("https://h", "{ca_file: /nowhere.pem}")))
    with pytest.raises(StartFailed, match=r"tls.ca_file: no such file.*\(backend b1\)"):
        await router.start()
