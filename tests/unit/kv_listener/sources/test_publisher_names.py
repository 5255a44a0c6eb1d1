import asyncio
import ipaddress

import pytest
import zmq

from continuum_kv_listener.config import ZmqMode
from continuum_kv_listener.engine_events import DropReason
from continuum_kv_listener.sources.publisher_acl import (
    AdmissionDesk,
    PublisherAcl,
    UnresolvedPublisher,
)
from continuum_kv_listener.sources.publisher_names import PublisherNames
from continuum_kv_listener.sources.zmq_source import Admission, ZmqEndpointSettings, ZmqSource
from support.kv_publisher import KvPublisher, free_port

OLD = PublisherAcl(networks=(ipaddress.ip_network("10.0.0.1"),))
NEW = PublisherAcl(networks=(ipaddress.ip_network("10.0.0.2"),))


async def test_a_publisher_whose_name_moves_is_let_in(running):
    """Real sockets: refused under its new address until the name is looked up again."""
    context = zmq.Context()
    desk = AdmissionDesk(context)
    elsewhere = PublisherAcl(networks=(ipaddress.ip_network("10.0.0.1"),))
    here = PublisherAcl(networks=(ipaddress.ip_network("127.0.0.1"),))
    resolve = Names(elsewhere, here)
    names = PublisherNames(desk, resolve=resolve, every=3600, soonest=0.1)
    names.keep("s", ("gpu-1",), local=False)
    drops = []
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    source = ZmqSource(
        ZmqEndpointSettings(name="s", endpoint=endpoint, mode=ZmqMode.BIND, handshake=0.3),
        context=context,
        on_drop=drops.append,
        admission=Admission(desk=desk, acl=elsewhere),
    )
    running(names)
    running(desk)
    publisher = None
    try:
        await source.receive(0)
        publisher = KvPublisher(connect_to=endpoint, replay=False)
        async with asyncio.timeout(10):
            while not source.ever_connected:
                await source.receive(0.05)
        assert DropReason.NOT_ALLOWED in drops
        assert len(resolve.asked) >= 2
    finally:
        if publisher is not None:
            publisher.close()
        source.close()
        desk.close()
        context.destroy(0)


class Desk:
    def __init__(self):
        self.on_refusal = None
        self.updates = []
        self.updated = asyncio.Event()

    def update(self, domain, acl):
        self.updates.append((domain, acl))
        self.updated.set()


class Names:
    """A resolver that answers what is listed, one answer after the other."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def __call__(self, entries, *, local):
        self.asked.append((entries, local))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise UnresolvedPublisher("gpu-1")
        return answer


@pytest.fixture
def running():
    tasks = []

    def run(task):
        tasks.append(asyncio.get_running_loop().create_task(task.run()))

    yield run
    for task in tasks:
        task.cancel()


async def test_a_refused_peer_makes_its_names_be_looked_up_soon(running):
    desk, resolve = Desk(), Names(NEW)
    names = PublisherNames(desk, resolve=resolve, every=3600, soonest=0)
    names.keep("a", ("gpu-1", "10.0.0.9"), local=False)
    names.keep("numbers", ("10.0.0.9",), local=False)
    running(names)
    desk.on_refusal("numbers")
    desk.on_refusal("unknown")
    await asyncio.sleep(0.01)
    assert resolve.asked == []
    desk.on_refusal("a")
    await asyncio.wait_for(desk.updated.wait(), 5)
    assert desk.updates == [("a", NEW)]
    assert resolve.asked == [(("gpu-1", "10.0.0.9"), False)]


async def test_a_flood_of_refusals_is_one_round(running):
    desk, resolve = Desk(), Names(NEW)
    names = PublisherNames(desk, resolve=resolve, every=3600, soonest=3600)
    names.keep("a", ("gpu-1",), local=True)
    running(names)
    for _ in range(3):
        desk.on_refusal("a")
        await asyncio.sleep(0.01)
    assert desk.updates == [("a", NEW)]


async def test_names_are_looked_up_again_and_again_without_a_refusal(running):
    desk, resolve = Desk(), Names(OLD, NEW)
    names = PublisherNames(desk, resolve=resolve, every=0.01, soonest=0)
    names.keep("a", ("gpu-1",), local=False)
    running(names)
    async with asyncio.timeout(5):
        while len(desk.updates) < 2:
            await asyncio.sleep(0.01)
    assert desk.updates[:2] == [("a", OLD), ("a", NEW)]


async def test_a_list_that_is_added_during_a_round_does_not_end_it(running):
    """A discovered source is built whenever its engine answers."""
    desk, resolve = Desk(), Names(NEW)

    async def meanwhile(entries, *, local):
        names.keep("found", ("gpu-2",), local=False)
        return await resolve(entries, local=local)

    names = PublisherNames(desk, resolve=meanwhile, every=0.01, soonest=0)
    names.keep("a", ("gpu-1",), local=False)
    running(names)
    async with asyncio.timeout(5):
        while ("found", NEW) not in desk.updates:
            await asyncio.sleep(0.01)
    assert desk.updates[0] == ("a", NEW)


async def test_a_name_without_an_address_keeps_the_last_ones_and_is_told_once(running, caplog):
    desk, resolve = Desk(), Names(None, None, None, NEW)
    names = PublisherNames(desk, resolve=resolve, every=0.01, soonest=0)
    names.keep("a", ("gpu-1",), local=False)
    running(names)
    await asyncio.wait_for(desk.updated.wait(), 5)
    assert desk.updates[0] == ("a", NEW)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
