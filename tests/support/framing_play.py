"""Plays one row of the framing table against a router and tells what came of it."""

import asyncio
import contextlib
from dataclasses import dataclass, field

from continuum_router.config.root import Config
from support.edge import edge_config
from support.framing_row import FILES, Row, post
from support.recording_backend import Recorder

PROBE_BODY = b'{"model":"m","messages":[{"role":"user","content":"probe"}]}'
PROBE = post(body=PROBE_BODY)
SECONDS = 5.0


@dataclass(slots=True)
class Played:
    """What a client saw. `closed`: the router ended the connection after the answers of the row,
    having announced it in the last one; `probe`: the status of the ordinary request sent behind the
    row where it did not. `stray`: bytes that belong to no answer."""

    answers: list[int] = field(default_factory=list)
    closed: bool = False
    announced: bool = False
    probe: int | None = None
    stray: bytes = b""


def framing_config(backend: str, *, fast: bool) -> Config:
    """One backend, a passed-through path, and the way in that is to be shown."""
    server = f"listen: '127.0.0.1:0', fast_path: {str(fast).lower()}"
    through = f"passthrough_paths: ['{FILES}', '{FILES}/*']"
    return edge_config([backend], f"server: {{{server}, {through}}}")


async def play(port: int, row: Row, *, gap: float = 0.01) -> Played:
    """Write the row's pieces, read its answers, then ask for one more thing on the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    played = Played()
    try:
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(ConnectionError):
                for number, piece in enumerate(row.wire):
                    if number:
                        await asyncio.sleep(gap)
                    writer.write(piece)
            if row.eof:
                writer.write_eof()
            await _read(reader, writer, row, played)
    except TimeoutError:
        played.stray += b"(silence)"
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return played


async def _read(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, row: Row, played: Played
) -> None:
    no_body = row.wire and row.wire[0].startswith(b"HEAD")
    try:
        while len(played.answers) < len(row.answers):
            status, head = await _answer(reader, no_body=bool(no_body))
            played.answers.append(status)
            played.announced = b"\r\nconnection: close\r\n" in head.lower()
        if not row.eof:
            writer.write(PROBE)
            if row.lingers:
                writer.write_eof()
        if row.closed:
            played.stray = await reader.read()
        else:
            played.probe, _ = await _answer(reader, no_body=False)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        played.stray += getattr(error, "partial", b"")
        played.closed = True
    else:
        played.closed = row.closed


async def _answer(reader: asyncio.StreamReader, *, no_body: bool) -> tuple[int, bytes]:
    """One answer: its status and its head, the body read over."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:") and not no_body and status >= 200:
            await reader.readexactly(int(line.partition(b":")[2]))
    return status, head


def differences(row: Row, played: Played, backend: Recorder) -> list[str]:
    """What is not as the row says; empty when all is well."""
    found: list[str] = []
    if tuple(played.answers) != row.answers:
        found.append(f"answers {played.answers}, not {list(row.answers)}")
    if played.closed is not row.closed:
        found.append("closed" if played.closed else "still open")
    old = any(b" HTTP/1.0\r\n" in piece for piece in row.wire)
    if row.closed and row.answers and not (row.eof or old or played.announced):
        found.append("the end is not announced")
    if played.stray:
        found.append(f"stray bytes {played.stray[:80]!r}")
    if not row.closed and played.probe != 200:
        found.append(f"the request behind it got {played.probe}")
    found += backend.unclean
    wanted = [(p.method, p.target, p.body) for p in row.passed]
    if not row.closed:
        wanted.append(("POST", "/v1/chat/completions", PROBE_BODY))
    got = [(r.method, r.target, r.body) for r in backend.requests]
    if got != wanted:
        found.append(f"the backend saw {got}, not {wanted}")
        return found
    if not row.closed:
        names = {name for name, _ in backend.requests[-1].headers}
        if names != {"host", "content-type", "accept-encoding", "content-length"}:
            found.append(f"the request behind it reached the backend with {sorted(names)}")
    if backend.unfinished and not row.unfinished:
        found.append(f"the backend saw a beginning {list(backend.unfinished.values())!r}")
    for passed, request in zip(row.passed, backend.requests, strict=False):
        names = {name for name, _ in request.headers}
        found += [f"{name} was passed on" for name in passed.lacks if name in names]
        found += [f"{pair} is missing" for pair in passed.has if pair not in request.headers]
    return found
