"""Heads that are written without aiohttp."""

import pytest

from continuum_router.api.answer_head import HttpDate, answer_head, has_no_body, status_line

DATE = b"Date: x\r\n"


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (200, b"HTTP/1.1 200 OK\r\n"),
        (404, b"HTTP/1.1 404 Not Found\r\n"),
        (429, b"HTTP/1.1 429 Too Many Requests\r\n"),
        (599, b"HTTP/1.1 599 \r\n"),
    ],
)
def test_status_lines(status: int, line: bytes) -> None:
    assert status_line(status) == line


@pytest.mark.parametrize(("status", "none"), [(204, True), (304, True), (200, False), (404, False)])
def test_which_answers_have_no_body(status: int, none: bool) -> None:
    assert has_no_body(status) is none


HEADS = {
    "a length": (
        (200, [("Content-Type", "text/plain"), ("X-A", "\u00e9")], 3, False),
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-A: \u00e9\r\nContent-Length: 3\r\n",
    ),
    "chunked": (
        (200, [("content-type", "text/event-stream")], None, False),
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n",
    ),
    "a body without a type": (
        (200, [], 3, False),
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Type: application/octet-stream\r\n",
    ),
    "an empty body needs no type": (
        (200, [], 0, False),
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n",
    ),
    "no body, no framing": (
        (204, [("X-A", "1")], None, False),
        "HTTP/1.1 204 No Content\r\nX-A: 1\r\n",
    ),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("close", [False, True])
def test_heads(name: str, close: bool) -> None:
    (status, pairs, length, _), start = HEADS[name]
    head = answer_head(status, pairs, length=length, date=DATE, close=close)
    end = b"Connection: close\r\n\r\n" if close else b"\r\n"
    assert head == start.encode() + DATE + end


def test_the_date_is_that_of_the_second() -> None:
    now = 784111777.0
    date = HttpDate(lambda: now)
    assert date.line() == b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
    now += 0.9
    first = date.line()
    assert date.line() is first
    now += 0.1
    assert date.line() == b"Date: Sun, 06 Nov 1994 08:49:38 GMT\r\n"
