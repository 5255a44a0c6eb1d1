"""Multipart bodies, and a backend that takes requests of any framing piece by piece."""

import hashlib
from dataclasses import dataclass, field

from support.scripted_backend import Peer, Script, Seen, reply

BOUNDARY = b"xxBxx"
TYPE = f"multipart/form-data; boundary={BOUNDARY.decode()}"


def part(name: str, value: bytes, *, file: bool = False) -> bytes:
    """One part with its leading delimiter."""
    extra = b'; filename="a.wav"\r\nContent-Type: audio/wav' if file else b""
    head = b'Content-Disposition: form-data; name="' + name.encode() + b'"' + extra
    return b"--" + BOUNDARY + b"\r\n" + head + b"\r\n\r\n" + value + b"\r\n"


END = b"--" + BOUNDARY + b"--\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + END


@dataclass(slots=True)
class Intake:
    """What a swallowing backend got: size and digest, and whether it was all there."""

    sizes: list[int] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    begun: int = 0
    cut: int = 0


def swallows(intake: Intake, answer: bytes = reply(b'{"model":"real","text":"x"}')) -> Script:
    """Read each request's body without keeping it, by length or by chunks; then answer."""

    async def script(peer: Peer) -> None:
        while True:
            head = await peer.reader.readuntil(b"\r\n\r\n")
            seen = Seen(head, b"")
            peer.backend.requests.append(seen)
            intake.begun += 1
            size, digest = 0, hashlib.sha256()
            async for piece in _body(peer, seen):
                if piece is None:
                    intake.cut += 1
                    return
                size += len(piece)
                digest.update(piece)
            intake.sizes.append(size)
            intake.digests.append(digest.hexdigest())
            await peer.send(answer)

    async def safe(peer: Peer) -> None:
        try:
            await script(peer)
        except (EOFError, ConnectionError):
            return

    return safe


async def _body(peer: Peer, seen: Seen):  # type: ignore[no-untyped-def]
    if seen.header("transfer-encoding") == "chunked":
        while size := int(await peer.reader.readuntil(b"\r\n"), 16):
            yield await peer.reader.readexactly(size)
            await peer.reader.readexactly(2)
        await peer.reader.readexactly(2)
        return
    left = int(seen.header("content-length") or 0)
    while left:
        piece = await peer.reader.read(min(left, 65536))
        if not piece:
            yield None
            return
        left -= len(piece)
        yield piece
