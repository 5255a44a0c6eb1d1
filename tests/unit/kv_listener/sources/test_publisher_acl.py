"""Who may publish: addresses, networks, names, and the answers to ZMQ's authentication."""

import asyncio
import ipaddress

import pytest
import zmq

from continuum_kv_listener.sources.publisher_acl import (
    ZAP_ENDPOINT,
    AdmissionDesk,
    PublisherAcl,
    UnresolvedPublisher,
    has_names,
    resolve_acl,
)

TEN = PublisherAcl(networks=(ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8")))


@pytest.mark.parametrize(
    ("acl", "address", "allowed"),
    [
        (PublisherAcl(), "127.0.0.1", True),
        (PublisherAcl(), "127.9.9.9", True),
        (PublisherAcl(), "::1", True),
        (PublisherAcl(), "::ffff:127.0.0.1", True),
        (PublisherAcl(), "10.0.0.1", False),
        (PublisherAcl(), "", False),
        (PublisherAcl(local=True), "", True),
        (PublisherAcl(), "not an address", False),
        (TEN, "10.1.2.3", True),
        (TEN, "::ffff:10.1.2.3", True),
        (TEN, "127.0.0.1", False),
        (TEN, "fd00::7", True),
        (TEN, "fe80::1%eth0", False),
    ],
)
def test_allows(acl, address, allowed):
    assert acl.allows(address) is allowed


async def test_no_entries_mean_loopback_only():
    assert await resolve_acl((), local=False) == PublisherAcl()


async def test_entries_are_addresses_networks_and_names():
    acl = await resolve_acl(("10.0.0.7", "192.168.0.0/16", "[::1]", "localhost"), local=False)
    assert acl.allows("10.0.0.7")
    assert not acl.allows("10.0.0.8")
    assert acl.allows("192.168.4.4")
    assert acl.allows("::1")
    assert acl.allows("127.0.0.1")
    assert not acl.allows("127.0.0.2")


async def test_a_name_without_an_address_is_refused():
    with pytest.raises(UnresolvedPublisher, match=r"allowed_publishers: 'no\.such\.invalid'"):
        await resolve_acl(("no.such.invalid",), local=False)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [((), False), (("10.0.0.7", "fd00::/8", "[::1]"), False), (("10.0.0.7", "gpu-1"), True)],
)
def test_whether_there_is_a_name(entries, expected):
    assert has_names(entries) is expected


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(0)


async def ask(context, domain: bytes, address: bytes) -> list[bytes]:
    """One ZAP request as libzmq makes it."""
    peer = context.socket(zmq.DEALER)
    peer.connect(ZAP_ENDPOINT)
    peer.send_multipart([b"", b"1.0", b"7", domain, address, b"", b"NULL"])
    for _ in range(200):
        if peer.poll(0):
            frames = peer.recv_multipart()
            peer.close(0)
            return frames
        await asyncio.sleep(0.01)
    raise AssertionError("no answer")


async def test_admission(context):
    desk = AdmissionDesk(context)
    admitted, refused = [], []
    desk.register("a", PublisherAcl(), admitted=admitted.append, refused=refused.append)
    running = asyncio.get_running_loop().create_task(desk.run())
    try:
        assert (await ask(context, b"a", b"127.0.0.1"))[3:6] == [b"200", b"OK", b"1"]
        assert (await ask(context, b"a", b"127.0.0.1"))[5] == b"2"
        assert (await ask(context, b"a", b"10.0.0.1"))[3:4] == [b"400"]
        assert (await ask(context, b"other", b"127.0.0.1"))[3:4] == [b"400"]
        assert admitted == [1, 2]
        assert refused == ["10.0.0.1"]
        told = []
        desk.on_refusal = told.append
        desk.update("a", TEN)
        desk.update("nobody", TEN)
        assert (await ask(context, b"a", b"10.0.0.1"))[3:4] == [b"200"]
        assert (await ask(context, b"a", b"127.0.0.1"))[3:4] == [b"400"]
        assert (await ask(context, b"nobody", b"10.0.0.1"))[3:4] == [b"400"]
        assert told == ["a"]
        desk.unregister("a")
        assert (await ask(context, b"a", b"127.0.0.1"))[3:4] == [b"400"]
    finally:
        running.cancel()
        await asyncio.wait([running])
        desk.close()
