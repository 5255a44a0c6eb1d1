"""The guard before the parser: any split gives the same, only clean bytes leave it."""

from continuum_router.api.wire_guard import MAX_HEAD_BYTES, WireGuard
from fuzz.target import Target, plain, splits
from support.framing_table import SECTIONS
from support.recording_backend import Unclean, read_clean

Outcome = tuple[list[tuple[bytes, bytes]], bool, bool]


def _outcome(pieces: list[bytes]) -> Outcome:
    """Whole requests as (head, body), refused, between requests."""
    guard = WireGuard()
    clean: list[bytes] = []
    for piece in pieces:
        clean += guard.feed(piece)
        assert len(guard._head) <= MAX_HEAD_BYTES
    return _requests(b"".join(clean)), guard.fault is not None, guard.between


def _requests(clean: bytes) -> list[tuple[bytes, bytes]]:
    """Read the clean bytes with another reader than the product's."""
    found: list[tuple[bytes, bytes]] = []
    while clean:
        head, blank, rest = clean.partition(b"\r\n\r\n")
        assert blank, "part of a head"
        lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
        values = {name.lower(): value.strip(b" \t") for name, _, value in lines}
        assert b"content-length" not in values or b"transfer-encoding" not in values
        probe = b"POST / HTTP/1.1\r\nHost: x\r\n"
        if b"transfer-encoding" in values:
            probe += b"Transfer-Encoding: chunked\r\n\r\n"
        else:
            probe += b"Content-Length: %d\r\n\r\n" % int(values.get(b"content-length", b"0"))
        try:
            read = read_clean(probe + rest)
        except Unclean as error:
            raise AssertionError(str(error)) from error
        if read is None:
            found.append((head, b"part of a body"))
            break
        found.append((head, read[0].body))
        clean = rest[read[1] - len(probe) :]
    return found


def run(data: bytes) -> None:
    whole, *others = map(_outcome, splits(data))
    for other in others:
        assert other == whole


_WIRES = [b"".join(row.wire) for section in SECTIONS for row in section.rows]

WIRE_SEEDS = tuple(sorted({wire for wire in _WIRES if len(wire) < 800}))
WIRE_TOKENS = (
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 58\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Expect: 100-continue\r\n",
    b"Upgrade: h2c\r\n",
    b"Host: x\r\n",
    b"Host:",
    b"chunked",
    b", ",
    b"0\r\n\r\n",
    b"3a\r\n",
    b";a=b",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"POST /v1/chat/completions HTTP/1.1\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    b"http://h",
    b"//",
    b"/..",
    b"%2f",
    b"?",
    b"#",
)

TARGET = Target(
    name="wire_guard",
    opened=plain(run),
    seeds=WIRE_SEEDS,
    tokens=WIRE_TOKENS,
    watched=("continuum_router.api.wire_guard", "continuum_router.upstream.body_framing"),
    smoke=2500,
    max_size=2048,
)
