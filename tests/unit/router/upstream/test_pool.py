"""The pool: send, take, reload, close."""

import asyncio
import ssl

import pytest

from continuum_router.backends.kinds import BackendType
from continuum_router.backends.pool import Backend
from continuum_router.errors import AttemptFailure, Cause, Stage
from continuum_shared.config.kinds import BackendUrl
from support.faults import dead_port
from support.scripted_backend import answers, closes_idle, hangs, reply, scripted
from support.source_tree import ROOT
from support.upstream_calls import RecordingSink, counts, pool, request, until

CERTIFICATE = ROOT / "tests/fixtures/tls/cert.pem"


async def get(upstream, backend, **options) -> bytes:
    with await upstream.send(backend, request(), connect_timeout=2, **options) as got:
        return await got.read(1000)


async def test_the_request_arrives_as_given():
    async with scripted(answers(reply())) as backend, pool() as upstream:
        await get(upstream, backend.backend())
    assert backend.requests[0].line == "POST /v1/x HTTP/1.1"
    assert backend.requests[0].body == b"{}"


async def test_connections_are_kept_for_each_backend():
    async with (
        scripted(answers(reply(b"1"))) as one,
        scripted(answers(reply(b"2"))) as two,
        pool() as upstream,
    ):
        for _ in range(3):
            assert await get(upstream, one.backend("one")) == b"1"
            assert await get(upstream, two.backend("two")) == b"2"
        assert (one.connections, two.connections) == (1, 1)
        assert sorted(upstream.connections()) == [
            (("one", "active"), 0),
            (("one", "idle"), 1),
            (("one", "waiting"), 0),
            (("two", "active"), 0),
            (("two", "idle"), 1),
            (("two", "waiting"), 0),
        ]


async def test_fresh():
    async with scripted(answers(reply())) as backend, pool() as upstream:
        await get(upstream, backend.backend())
        await get(upstream, backend.backend(), fresh=True)
        assert backend.connections == 2


async def test_sent_is_called_once():
    calls = []
    async with scripted(answers(reply())) as backend, pool() as upstream:
        await get(upstream, backend.backend(), on_sent=lambda: calls.append(1))
        await get(upstream, backend.backend(), on_sent=lambda: calls.append(2))
    assert calls == [1, 2]


async def test_a_connect_failure_says_so():
    with dead_port() as port:
        backend = Backend(
            name="b",
            type=BackendType.GENERIC,
            url=BackendUrl.parse(f"http://127.0.0.1:{port}"),
        )
        async with pool() as upstream:
            with pytest.raises(AttemptFailure) as caught:
                await get(upstream, backend)
    assert (caught.value.stage, caught.value.cause) == (Stage.CONNECTING, Cause.REFUSED)


async def test_the_cap_is_the_backends():
    async with scripted(answers(reply(), delay=0.02)) as backend, pool() as upstream:
        target = backend.backend(max_connections=2)
        assert await asyncio.gather(*[get(upstream, target) for _ in range(10)]) == [b"{}"] * 10
    assert backend.connections == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_tls(host):
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(CERTIFICATE, CERTIFICATE.with_name("key.pem"))
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    big = b"k" * 3_000_000
    async with (
        scripted(answers(reply(big)), host=host, tls=serving) as backend,
        pool(tls=lambda _: trusting) as upstream,
    ):
        sent = []
        for _ in range(2):
            with await upstream.send(
                backend.backend(),
                request(big),
                connect_timeout=2,
                on_sent=lambda: sent.append(1),
            ) as got:
                assert await got.read(len(big)) == big
        assert sent == [1, 1]
        assert backend.connections == 1
        assert backend.requests[1].body == big
        await upstream.close()


async def test_an_https_backend_is_checked_against_the_systems_trust():
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(CERTIFICATE, CERTIFICATE.with_name("key.pem"))
    async with scripted(hangs(), tls=serving) as backend, pool() as upstream:
        with pytest.raises(AttemptFailure) as caught:
            await get(upstream, backend.backend())
    assert caught.value.cause is Cause.TLS


async def test_unix_socket(tmp_path):
    path = str(tmp_path / "s")
    async with scripted(answers(reply(b"u")), unix_path=path) as backend, pool() as upstream:
        for _ in range(2):
            assert await get(upstream, backend.backend()) == b"u"
        assert backend.connections == 1


async def test_take_gives_an_idle_connection_to_a_synchronous_caller():
    async with scripted(answers(reply(b"sync"))) as backend, pool() as upstream:
        target = backend.backend()
        assert upstream.take(target) is None
        await get(upstream, target)
        connection = upstream.take(target)
        assert connection is not None
        sink = RecordingSink()
        connection.start(request(), sink)
        assert counts(upstream) == {"active": 1, "idle": 0, "waiting": 0}
        await sink.finished.wait()
        assert sink.body == b"sync"
        assert counts(upstream) == {"active": 0, "idle": 1, "waiting": 0}


async def test_idle_connections_are_swept():
    async with scripted(answers(reply())) as backend, pool(idle_limit=0.05) as upstream:
        await get(upstream, backend.backend())
        assert counts(upstream)["idle"] == 1
        await until(lambda: counts(upstream)["idle"] == 0)
        await until(lambda: backend.open == 0)


async def test_a_backend_that_closes_idle_connections_leaves_none_behind():
    async with scripted(closes_idle(0.03, reply())) as backend, pool() as upstream:
        await get(upstream, backend.backend())
        await until(lambda: counts(upstream)["idle"] == 0)
        assert await get(upstream, backend.backend()) == b"{}"
        assert backend.connections == 2


async def test_a_removed_backend_is_forgotten():
    async with scripted(answers(reply())) as one, scripted(hangs()) as two, pool() as upstream:
        await get(upstream, one.backend("one"))
        task = asyncio.create_task(get(upstream, two.backend("two")))
        await until(lambda: len(two.requests) == 1)
        upstream.keep_only(["two"])
        await until(lambda: one.open == 0)
        assert two.open == 1
        upstream.forget("two")
        upstream.forget("unknown")
        assert two.open == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: two.open == 0)


async def test_a_changed_address_gets_new_connections():
    async with (
        scripted(answers(reply(b"1"))) as old,
        scripted(answers(reply(b"2"))) as new,
        pool() as upstream,
    ):
        assert await get(upstream, old.backend("b")) == b"1"
        assert await get(upstream, new.backend("b")) == b"2"
        await until(lambda: old.open == 0)


async def test_what_waits_for_an_address_that_changes_still_gets_there():
    """A reload moves the backend while one call is under way, one waits, one is connecting."""
    async with (
        scripted(answers(reply(b"1"), delay=0.05)) as old,
        scripted(answers(reply(b"2"))) as new,
        pool() as upstream,
    ):
        target = old.backend("b", max_connections=2)
        busy = asyncio.create_task(get(upstream, target))
        await until(lambda: len(old.requests) == 1)
        calls = [busy, *(asyncio.create_task(get(upstream, target)) for _ in range(2))]
        await until(lambda: counts(upstream) == {"active": 2, "idle": 0, "waiting": 1})
        assert await get(upstream, new.backend("b")) == b"2"
        assert await asyncio.gather(*calls) == [b"1"] * 3
        await until(lambda: old.open == 0)


async def test_close_ends_everything():
    async with scripted(hangs()) as backend, pool() as upstream:
        target = backend.backend(max_connections=1)
        busy = asyncio.create_task(get(upstream, target))
        queued = asyncio.create_task(get(upstream, target))
        await until(lambda: counts(upstream) == {"active": 1, "idle": 0, "waiting": 1})
        await upstream.close()
        for task, stage, cause in (
            (busy, Stage.AWAITING_HEAD, Cause.ABORTED),
            (queued, Stage.CONNECTING, Cause.POOL_CLOSED),
        ):
            with pytest.raises(AttemptFailure) as caught:
                await task
            assert (caught.value.stage, caught.value.cause) == (stage, cause)
        with pytest.raises(AttemptFailure) as caught:
            await get(upstream, target)
        assert caught.value.cause is Cause.POOL_CLOSED
        await until(lambda: backend.open == 0)


async def test_close_ends_what_a_removed_backend_still_does():
    async with scripted(hangs()) as backend, pool() as upstream:
        target = backend.backend(max_connections=1)
        calls = [asyncio.create_task(get(upstream, target)) for _ in range(2)]
        await until(lambda: counts(upstream) == {"active": 1, "idle": 0, "waiting": 1})
        upstream.forget(target.name)
        await upstream.close()
        for task, cause in zip(calls, (Cause.ABORTED, Cause.POOL_CLOSED), strict=True):
            with pytest.raises(AttemptFailure) as caught:
                await task
            assert caught.value.cause is cause
        await until(lambda: backend.open == 0)
