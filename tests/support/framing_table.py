"""What clients may send, well and badly framed, and what the router makes of it: one table.

`tests/fault/test_framing_table.py` runs it against real sockets on both ways in, and holds
`docs/framing.md` to it. The rows stand in files of their own, by what they are about.
"""

import sys
from dataclasses import dataclass

from support import framing_chunks as bodies
from support import framing_heads as heads
from support import framing_lengths as lengths
from support import framing_lines as lines
from support import framing_steering as steering
from support import framing_upstream as upstream
from support.framing_row import Row, escaped


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    rows: tuple[Row, ...]


SECTIONS: tuple[Section, ...] = (
    Section(title="Content-Length beside Transfer-Encoding", rows=lengths.BOTH),
    Section(title="Content-Length", rows=lengths.LENGTHS),
    Section(title="Transfer-Encoding", rows=lengths.CODINGS),
    Section(title="Chunks", rows=bodies.CHUNKS),
    Section(title="Trailers", rows=bodies.TRAILERS),
    Section(title="Uploads that are streamed on", rows=bodies.UPLOADS),
    Section(title="Requests that end too early", rows=bodies.CUT),
    Section(title="Folded lines", rows=heads.FOLDS),
    Section(title="Line ends", rows=heads.LINE_ENDS),
    Section(title="Bytes of names and values", rows=heads.BYTES),
    Section(title="Names", rows=heads.NAMES),
    Section(title="Sizes", rows=heads.SIZES),
    Section(title="Host", rows=heads.HOSTS),
    Section(title="Targets", rows=lines.TARGETS),
    Section(title="Versions and other protocols", rows=lines.VERSIONS),
    Section(title="Methods", rows=lines.METHODS),
    Section(title="Connection, Upgrade and what is not passed on", rows=steering.CONNECTION),
    Section(title="Expect", rows=steering.EXPECTATIONS),
    Section(title="Several requests at once", rows=steering.PIPELINES),
)

PAGE_HEAD = """\
# Framing: where a message begins and ends

Two readers that disagree about where a request ends let its sender smuggle a second one past the
first reader. So the router reads strictly (`api/wire_guard.py`), refuses what could be read in two
ways, and writes each request to a backend anew: one request line, one Host, one framing header,
no hop-by-hop header, no trailer.

Each row is run by `tests/fault/test_framing_table.py` on real sockets with `server.fast_path` on
and off. *Answers* are the statuses a client gets on the connection. *Connection* `closed`: the
router ends it after the last answer; `open`: an ordinary request behind the row is served, and
reaches the backend with nothing of the row on it. *Backend* is what a backend's own record of the
raw bytes holds: so many clean requests, or nothing.

An ordinary request, a chunked one, a pair of requests and a refused one are also sent in two
writes, split at every byte; the outcome is the same.
"""

ROW_HEAD = "| Input | Answers | Connection | Backend | Note |\n|---|---|---|---|---|\n"


def _saw(row: Row) -> str:
    if not row.passed:
        return "part of a request, then its end" if row.unfinished else "nothing"
    return "1 request" if len(row.passed) == 1 else f"{len(row.passed)} requests"


def page() -> str:
    """docs/framing.md."""
    parts = [PAGE_HEAD]
    for section in SECTIONS:
        parts.append(f"\n## {section.title}\n\n{ROW_HEAD}")
        for row in section.rows:
            answers = ", ".join(map(str, row.answers)) or "none"
            end = "closed" if row.closed else "open"
            name = escaped(row.name)
            parts.append(f"| {name} | {answers} | {end} | {_saw(row)} | {escaped(row.why)} |\n")
    parts.append(upstream.page_part())
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
