"""The framing table, row by row, on both ways in; and ordinary requests split at every byte."""

import asyncio

import pytest

from support.edge import Edge, running
from support.framing_play import differences, framing_config, play
from support.framing_row import EVIL, JSON, OTHER, Passed, Row, chunked, chunks, post
from support.framing_table import SECTIONS, Section, page
from support.recording_backend import recording
from support.source_tree import ROOT

FLAGS = pytest.mark.parametrize("fast", [True, False], ids=["fast", "general"])
STAGES = ("auth", "rate_limit", "policy", "admission", "guardrail_input", "routing")


def _refusals(edge: Edge) -> float:
    name, key = "request_rejected_total", "unattributed"
    return sum(edge.sample(name, stage=stage, key_id=key) for stage in STAGES)


def _refused(row: Row) -> int:
    return sum(400 <= status < 500 or status in (501, 505) for status in row.answers)


@FLAGS
@pytest.mark.parametrize("section", SECTIONS, ids=[section.title for section in SECTIONS])
async def test_rows(section: Section, fast: bool) -> None:
    """Each refusal is also counted exactly once (decisions J10)."""
    found: dict[str, list[str]] = {}
    async with recording() as backend, running(framing_config(backend.url, fast=fast)) as edge:
        for row in section.rows:
            backend.forget()
            played = await play(edge.port, row)
            await edge.settled()
            found[row.name] = differences(row, played, backend)
        assert {name: faults for name, faults in found.items() if faults} == {}
        assert len(found) == len(section.rows)
        assert _refusals(edge) == sum(map(_refused, section.rows))


FORMS: dict[str, tuple[bytes, Row]] = {
    "an ordinary request": (
        post("X-A: b"),
        Row(name="", wire=(), answers=(200,), passed=(Passed(),)),
    ),
    "chunks": (
        chunked(body=chunks(JSON[:9], JSON[9:], last=b"0;a=b\r\nX-Sum: 1\r\n\r\n")),
        Row(name="", wire=(), answers=(200,), passed=(Passed(lacks=("x-sum",)),)),
    ),
    "two requests": (
        post() + post(body=OTHER),
        Row(name="", wire=(), answers=(200, 200), passed=(Passed(), Passed(body=OTHER))),
    ),
    "CL and TE with a request behind": (
        chunked("Content-Length: 3") + post(body=EVIL),
        Row(name="", wire=(), answers=(400,), closed=True),
    ),
    "a request, then bare LF": (
        post() + post(body=EVIL).replace(b"\r\n", b"\n"),
        Row(name="", wire=(), answers=(200, 400), passed=(Passed(),), closed=True),
    ),
}


@FLAGS
@pytest.mark.parametrize("form", FORMS)
async def test_every_split(form: str, fast: bool) -> None:
    """Each place is a case: its own connection, two writes, the first read before the second."""
    wire, outcome = FORMS[form]
    wrong: dict[int, list[str]] = {}
    async with recording() as backend, running(framing_config(backend.url, fast=fast)) as edge:
        for place in range(1, len(wire)):
            backend.forget()
            row = Row(
                name=str(place),
                wire=(wire[:place], wire[place:]),
                answers=outcome.answers,
                passed=outcome.passed,
                closed=outcome.closed,
            )
            played = await play(edge.port, row, gap=0.001)
            found = differences(row, played, backend)
            if found:
                wrong[place] = found
    assert wrong == {}


@FLAGS
@pytest.mark.parametrize("form", [form for form in FORMS if not FORMS[form][1].closed])
async def test_byte_by_byte(form: str, fast: bool) -> None:
    wire, outcome = FORMS[form]
    async with recording() as backend, running(framing_config(backend.url, fast=fast)) as edge:
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
        for at in range(len(wire)):
            writer.write(wire[at : at + 1])
            await asyncio.sleep(0)
        for status in outcome.answers:
            head = await reader.readuntil(b"\r\n\r\n")
            assert int(head.split()[1]) == status
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()
        assert [r.body for r in backend.requests] == [p.body for p in outcome.passed]
        assert backend.unclean == []


def test_the_table_is_as_large_as_it_should_be() -> None:
    names = [(section.title, row.name) for section in SECTIONS for row in section.rows]
    assert len(set(names)) == len(names) >= 300


def test_the_page_is_this_table() -> None:
    assert (ROOT / "docs" / "framing.md").read_text(encoding="utf-8") == page()
