"""Which family of addresses a host name of an endpoint is asked for.

ZMQ looks a name up for one family and gives up when it has no address of it, or when nothing
listens there; engines that listen on IPv4 only and clusters that have IPv6 only both exist. So
every failed attempt turns to the other family. A literal address says its family itself.
"""

import ipaddress


class AddressFamily:
    """The family for the next attempt at one ``tcp://`` or ``ipc://`` endpoint; IPv4 first."""

    __slots__ = ("_named", "ipv6")

    def __init__(self, endpoint: str) -> None:
        scheme, _, rest = endpoint.partition("://")
        host = rest.rpartition(":")[0]
        self.ipv6 = host.startswith("[")
        self._named = scheme == "tcp" and host != "*" and not self.ipv6 and not _is_literal(host)

    def failed(self) -> None:
        """An attempt with this family came to nothing."""
        if self._named:
            self.ipv6 = not self.ipv6


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
