"""Who may publish to a socket that this listener binds (decisions C26).

The peer's address is checked while the connection is being made, through ZMQ's authentication
protocol (ZAP), so no message of a refused peer is ever read. Each admitted connection gets a
number, which every message received over it carries: a reconnecting engine can so be told from
what its predecessor left in the queue.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import zmq

from continuum_kv_listener.sources.readable import Socket, wait_readable

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_ZAP_REQUEST_FRAMES = 6

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LOOPBACK: tuple[Network, ...] = (
    ipaddress.ip_network("127.0.0.0/8"),
    ipaddress.ip_network("::1/128"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherAcl:
    """The networks that may publish; ``local`` admits peers without an address (``ipc://``)."""

    networks: tuple[Network, ...] = LOOPBACK
    local: bool = False

    def allows(self, address: str) -> bool:
        """Whether a peer with this address, as text, may publish."""
        if not address:
            return self.local
        try:
            peer = ipaddress.ip_address(address.split("%", 1)[0])
        except ValueError:
            return False
        mapped = peer.ipv4_mapped if isinstance(peer, ipaddress.IPv6Address) else None
        if mapped is not None:
            peer = mapped
        return any(peer in network for network in self.networks)


class UnresolvedPublisher(Exception):
    """A name of the allow list has no address."""

    def __init__(self, name: str) -> None:
        super().__init__(f"allowed_publishers: {name!r} has no address")
        self.name = name


def has_names(entries: Sequence[str]) -> bool:
    """Whether any entry is a host name, whose addresses may change."""
    return any(_network(entry) is None for entry in entries)


def _network(entry: str) -> Network | None:
    try:
        return ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return None


async def resolve_acl(entries: Sequence[str], *, local: bool) -> PublisherAcl:
    """Turn addresses, networks and host names into an allow list; no entries mean loopback only.

    Names are looked up now (``publisher_names`` does so again and again).
    Raises :class:`UnresolvedPublisher`.
    """
    networks: list[Network] = []
    for entry in entries:
        network = _network(entry)
        networks.extend([network] if network is not None else await _look_up(entry))
    return PublisherAcl(networks=tuple(networks) or LOOPBACK, local=local)


async def _look_up(name: str) -> list[Network]:
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UnresolvedPublisher(name) from error
    addresses = sorted({str(info[4][0]).split("%", 1)[0] for info in infos})
    return [ipaddress.ip_network(address) for address in addresses]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Domain:
    acl: PublisherAcl
    admitted: Callable[[int], None]
    refused: Callable[[str], None]


class AdmissionDesk:
    """Answers ZMQ's authentication requests for all bound sockets of one context."""

    def __init__(self, context: "zmq.Context[Socket]") -> None:
        self._socket: Socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ZAP_ENDPOINT)
        self._domains: dict[str, _Domain] = {}
        self._sessions = 0
        self.on_refusal: Callable[[str], None] | None = None
        """Told the domain of each refused peer."""

    def register(
        self,
        domain: str,
        acl: PublisherAcl,
        *,
        admitted: Callable[[int], None],
        refused: Callable[[str], None],
    ) -> None:
        """Judge peers of ``domain`` by ``acl``.

        ``admitted`` gets the number of each new connection, ``refused`` the peer's address.
        """
        self._domains[domain] = _Domain(acl=acl, admitted=admitted, refused=refused)

    def update(self, domain: str, acl: PublisherAcl) -> None:
        """Judge further peers of ``domain`` by ``acl``; connections that are up stay."""
        known = self._domains.get(domain)
        if known is not None:
            self._domains[domain] = replace(known, acl=acl)

    def unregister(self, domain: str) -> None:
        """Refuse every further peer of ``domain``."""
        self._domains.pop(domain, None)

    async def run(self) -> None:
        """Answer requests until cancelled."""
        while True:
            while True:
                try:
                    frames = self._socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                self._answer(frames)
            await wait_readable((self._socket,))

    def close(self) -> None:
        """Give up the socket; peers can no longer be admitted."""
        self._socket.close(0)

    def _answer(self, frames: list[bytes]) -> None:
        """``[envelope…, "", version, request id, domain, address, identity, mechanism…]``."""
        if b"" not in frames:
            return
        cut = frames.index(b"") + 1
        request = frames[cut:]
        if len(request) < _ZAP_REQUEST_FRAMES:
            return
        version, request_id, domain, address = request[:4]
        verdict = self._judge(domain.decode("utf-8", "replace"), address.decode("utf-8", "replace"))
        if verdict is None:
            tail = [b"400", b"address not allowed", b"", b""]
        else:
            tail = [b"200", b"OK", str(verdict).encode("ascii"), b""]
        self._socket.send_multipart([*frames[:cut], version, request_id, *tail])

    def _judge(self, domain: str, address: str) -> int | None:
        known = self._domains.get(domain)
        if known is None:
            return None
        if not known.acl.allows(address):
            known.refused(address)
            if self.on_refusal is not None:
                self.on_refusal(domain)
            return None
        self._sessions += 1
        known.admitted(self._sessions)
        return self._sessions
