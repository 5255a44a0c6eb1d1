"""How many publishers are connected to a bound socket, told from its monitor's events.

ZMQ names the descriptor of a connection when it is accepted and when it ends, but not when its
handshake succeeds; and a peer that speaks another protocol (a port scanner, a load balancer's
probe, a socket of the wrong type) ends without any word about a handshake. So a success is put
down to the connections that are still shaking hands: with one of them it is certain, with several
the count is right again as soon as they have all succeeded or ended, which takes no longer than
the handshake interval.
"""


class BoundPeers:
    """Counts publishers; pure. Descriptors are only compared, never used."""

    __slots__ = ("_shaking", "_succeeded", "_up")

    def __init__(self) -> None:
        self._shaking: set[int] = set()
        self._succeeded = 0
        """How many of ``_shaking`` have succeeded: not known which."""
        self._up: set[int] = set()

    @property
    def count(self) -> int:
        """Publishers that are connected now."""
        return len(self._up) + self._succeeded

    def accepted(self, descriptor: int) -> None:
        """A connection began."""
        self._up.discard(descriptor)
        self._shaking.add(descriptor)

    def shaken_hands(self) -> None:
        """The handshake of one of the new connections succeeded."""
        self._succeeded = min(self._succeeded + 1, len(self._shaking))
        self._settle()

    def ended(self, descriptor: int) -> bool:
        """A connection ended; whether it was a publisher's."""
        if descriptor in self._up:
            self._up.remove(descriptor)
            return True
        if descriptor not in self._shaking:
            return False
        # While some have not succeeded, the one that ends is taken for one of those.
        was_up = self._succeeded == len(self._shaking)
        self._shaking.remove(descriptor)
        if was_up:
            self._succeeded -= 1
        self._settle()
        return was_up

    def _settle(self) -> None:
        """When all new connections have succeeded, there is nothing left to guess."""
        if self._succeeded == len(self._shaking):
            self._up |= self._shaking
            self._shaking.clear()
            self._succeeded = 0
