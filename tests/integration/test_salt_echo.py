"""Salt echo through a whole router: what engines are sent, and what clients must not send."""

import json

import pytest

from continuum_router.config.root import Config, parse_config
from continuum_shared.cache_salt import SaltVerifier
from continuum_shared.prefix_key import KeyTag, KeyText, derive
from support.edge import running
from support.scripted_backend import answers, reply, scripted

SECRET = "the-secret-of-this-test-canary"
SYSTEM = "You are a helpful assistant."
KEY = derive("m", KeyText(tag=KeyTag.SYSTEM, text=SYSTEM), 1024)
BODY = {
    "model": "m",
    "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "hi"}],
}


def _config(*backends: tuple[str, str], more: str = "") -> Config:
    entries = "".join(
        f"- {{name: b{number}, type: {kind}, url: '{url}', models: [m]}}\n"
        for number, (kind, url) in enumerate(backends, start=1)
    )
    text = (
        f"backends:\n{entries}server: {{listen: '127.0.0.1:0'}}\n"
        "health_checks: {enabled: false}\n"
        "prefix_routing: {enabled: true, salt_echo: {enabled: true, secret_env: SALT}}\n" + more
    )
    config, report = parse_config(text, path="r.yaml", env={"SALT": SECRET})
    assert config is not None, str(report)
    return config


def _salt(body: bytes) -> str:
    salt = json.loads(body)["cache_salt"]
    assert isinstance(salt, str)
    return salt


async def test_a_retry_on_another_backend_carries_that_backends_salt() -> None:
    """Decisions C24: the failed attempt's salt would be worthless on the second backend."""
    more = "retry: {initial_delay: 1ms}\n"
    async with (
        scripted(answers(reply(status="503 Busy"))) as one,
        scripted(answers(reply(status="503 Busy"))) as two,
        running(_config(("vllm", one.url), ("sglang", two.url), more=more)) as edge,
    ):
        answer = await edge.post(BODY)
    assert answer.status == 503
    first, second = _salt(one.requests[0].body), _salt(two.requests[0].body)
    assert first != second
    for salt, name in ((first, "b1"), (second, "b2")):
        assert SaltVerifier([SECRET], backend=name).verify(salt, ["m"]) == KEY
    for request in one.requests + two.requests:
        assert json.loads(request.body) == {**BODY, "cache_salt": _salt(request.body)}


@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_not_ours_passes_untouched(stream: bool) -> None:
    async with (
        scripted(answers(reply())) as one,
        running(_config(("vllm", one.url))) as edge,
    ):
        await edge.post({**BODY, "cache_salt": "mine", "stream": stream})
        refused = await edge.post({**BODY, "cache_salt": "cr1.mine", "stream": stream})
    assert _salt(one.requests[0].body) == "mine"
    assert (refused.status, refused.error["code"]) == (400, "reserved_salt")
    assert len(one.requests) == 1


async def test_engines_that_know_no_salts_get_the_clients_bytes() -> None:
    async with (
        scripted(answers(reply())) as one,
        running(_config(("generic", one.url))) as edge,
    ):
        await edge.post(BODY)
        body = one.requests[0].body
        assert json.loads(body) == BODY
        metrics = (await edge.get("/metrics")).body
    assert SECRET.encode() not in metrics


@pytest.mark.parametrize("stream", [True, False])
async def test_every_request_of_a_kept_connection_is_stamped(stream: bool) -> None:
    """Whichever way a request takes through the router; the second one finds all connections."""
    async with (
        scripted(answers(reply())) as one,
        running(_config(("vllm", one.url))) as edge,
    ):
        for _ in range(3):
            await edge.post({**BODY, "stream": stream})
    for request in one.requests:
        assert SaltVerifier([SECRET], backend="b1").verify(_salt(request.body), ["m"]) == KEY
        assert request.header("content-length") == str(len(request.body))
    assert len(one.requests) == 3
