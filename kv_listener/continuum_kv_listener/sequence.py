"""Which batches of one publisher are next, known already, missing, or from another process.

An engine numbers its batches from 0 and starts anew when its process does. Live batches come in
order over one connection; replayed ones may overlap them. This module only judges: it reads no
socket and no clock (decisions C17, J6; user report K5).
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

MAX_SEQUENCE = 2**63
"""No engine gets there: such a number is a mistake, and following it would lose all that come."""
MAX_REPLAYED = 10_000
"""As many batches as an engine keeps for replays by default."""
MARKED_BYTES = 256 * 1024
RESTART_WINDOW_SECONDS = 60.0
SUSPICIOUS_RESTARTS = 3


def mark_of(payload: bytes) -> int:
    """A payload's fingerprint within this process. Of a large one its size and both ends are
    looked at: its time stamp stands at the front, and a pass over all of it would hold up others.
    """
    if len(payload) <= 2 * MARKED_BYTES:
        return hash(payload)
    return hash((len(payload), payload[:MARKED_BYTES], payload[-MARKED_BYTES:]))


class Verdict(StrEnum):
    """What one sequence number means, given what was seen before."""

    NEXT = "next"
    """The batch that was waited for; the tracker has moved on to it."""
    DUPLICATE = "duplicate"
    """Seen already: live and replay overlap."""
    GAP = "gap"
    """Batches before it are missing; the tracker has not moved."""
    BACKWARDS = "backwards"
    """A number that this publisher cannot send again: its process has restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The newest batch known before a connection was lost: its number and payload fingerprint."""

    seq: int
    fingerprint: int

    def matches(self, seq: int, fingerprint: int) -> bool:
        return seq == self.seq and fingerprint == self.fingerprint


class SequenceTracker:
    """Follows the numbers of one publisher.

    ``fingerprint`` is any integer that tells payloads apart (:func:`mark_of`); it lets a number
    that comes twice be told from a restarted process that happens to be at the same number.
    """

    __slots__ = (
        "_fingerprint",
        "_live",
        "_live_fingerprint",
        "_replayed",
        "_replayed_to",
        "anchor",
        "last",
    )

    def __init__(self) -> None:
        self.last: int | None = None
        self.anchor: Anchor | None = None
        self._fingerprint = 0
        self._live: int | None = None
        self._live_fingerprint = 0
        self._replayed_to: int | None = None
        self._replayed: dict[int, int] = {}
        """Fingerprints of replayed batches whose live twins may still come."""

    @property
    def next_wanted(self) -> int:
        """The number that a replay should start from."""
        return 0 if self.last is None else self.last + 1

    def missing_before(self, seq: int) -> int:
        """How many batches lie between the last known one and ``seq``."""
        return max(0, seq - self.next_wanted)

    def connected(self) -> None:
        """A connection began. What is known so far has to be confirmed: see :attr:`anchor`.

        Until :meth:`confirmed` or :meth:`restarted`, the anchor stays the batch that was newest
        when the first unconfirmed connection began.
        """
        self._live = None
        self._forget_replayed()
        if self.last is not None and self.anchor is None:
            self.anchor = Anchor(seq=self.last, fingerprint=self._fingerprint)

    def confirmed(self) -> None:
        """The publisher is still the process that sent the anchor."""
        self.anchor = None

    def restarted(self) -> None:
        """The publisher is a new process: nothing known so far counts."""
        self.last = None
        self.anchor = None
        self._live = None
        self._forget_replayed()

    def live(self, seq: int, fingerprint: int) -> Verdict:
        """Judge a batch that came over the live connection.

        Within a connection live numbers only grow, so an equal or smaller one is a restart
        (behind a forwarder), unless it is the very same batch. A number that only a replay has
        delivered so far is a duplicate if its batch is the same; if not, the replay came from
        another process. Without any replay a known number is a restart.
        """
        live = self._live
        if live is not None and seq <= live:
            same = seq == live and fingerprint == self._live_fingerprint
            return Verdict.DUPLICATE if same else Verdict.BACKWARDS
        wanted = self.next_wanted
        if seq == wanted:
            self._move(seq, fingerprint)
            self._saw_live(seq, fingerprint)
            return Verdict.NEXT
        if seq > wanted:
            return Verdict.GAP
        if self._replayed_to is None or seq > self._replayed_to:
            return Verdict.BACKWARDS
        if self._replayed.get(seq, fingerprint) != fingerprint:
            return Verdict.BACKWARDS
        self._saw_live(seq, fingerprint)
        return Verdict.DUPLICATE

    def replayed(self, seq: int, fingerprint: int) -> Verdict:
        """Judge a batch that a replay answered; never ``BACKWARDS``."""
        wanted = self.next_wanted
        if seq > wanted:
            return Verdict.GAP
        self._saw_replayed(seq, fingerprint)
        if seq < wanted:
            return Verdict.DUPLICATE
        self._move(seq, fingerprint)
        return Verdict.NEXT

    def skip_to_live(self, seq: int, fingerprint: int) -> int:
        """Take a live batch although others before it are missing; return how many."""
        missing = self.missing_before(seq)
        self._move(seq, fingerprint)
        self._saw_live(seq, fingerprint)
        return missing

    def skip_to_replayed(self, seq: int, fingerprint: int) -> int:
        """Take a replayed batch although the publisher no longer has those before it."""
        missing = self.missing_before(seq)
        self._move(seq, fingerprint)
        self._saw_replayed(seq, fingerprint)
        return missing

    def _move(self, seq: int, fingerprint: int) -> None:
        self.last = seq
        self._fingerprint = fingerprint

    def _saw_live(self, seq: int, fingerprint: int) -> None:
        self._live = seq
        self._live_fingerprint = fingerprint
        if self._replayed_to is not None and seq >= self._replayed_to:
            self._replayed.clear()

    def _saw_replayed(self, seq: int, fingerprint: int) -> None:
        if self._replayed_to is None or seq > self._replayed_to:
            self._replayed_to = seq
        self._replayed[seq] = fingerprint
        if len(self._replayed) > MAX_REPLAYED:
            del self._replayed[next(iter(self._replayed))]

    def _forget_replayed(self) -> None:
        self._replayed_to = None
        self._replayed.clear()


class RestartLog:
    """Counts restarts and notices when they come too fast to be restarts.

    More than three within a minute mean that two publishers share one endpoint (decisions C17).
    """

    __slots__ = ("_recent", "total")

    def __init__(self) -> None:
        self.total = 0
        self._recent: deque[float] = deque(maxlen=SUSPICIOUS_RESTARTS + 1)

    def note(self, now: float) -> None:
        """One more restart at ``now`` (seconds)."""
        self.total += 1
        self._recent.append(now)

    def suspicious(self, now: float) -> bool:
        """Whether more than three restarts lie within the last minute."""
        recent = self._recent
        return len(recent) > SUSPICIOUS_RESTARTS and now - recent[0] <= RESTART_WINDOW_SECONDS
