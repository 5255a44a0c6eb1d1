"""Request lines: targets, versions, methods."""

from support.framing_row import (
    EVIL,
    FILES,
    HOST,
    JSON,
    LEN,
    TYPE,
    Passed,
    Row,
    passes,
    post,
    refused,
    text,
)

_GET = "GET /health HTTP/1.1"


def _request_line(line: str) -> bytes:
    return text(line, HOST, TYPE, f"Content-Length: {LEN}") + JSON


def _bodiless(line: str, *headers: str) -> bytes:
    return text(line, HOST, *headers)


def answered(name: str, *wire: bytes, status: int, closed: bool = False, why: str = "") -> Row:
    """Answered by the router, and the connection goes on."""
    return Row(name=name, wire=wire, answers=(status,), closed=closed, why=why)


TARGETS: tuple[Row, ...] = (
    passes(
        "absolute form",
        _request_line("POST http://router/v1/chat/completions HTTP/1.1"),
        why="the backend gets origin form and its own Host",
    ),
    passes(
        "absolute form with another host",
        _request_line("POST http://evil/v1/chat/completions HTTP/1.1"),
    ),
    refused(
        "absolute form with credentials",
        _request_line("POST http://u:p@h/v1/chat/completions HTTP/1.1"),
    ),
    refused(
        "absolute form of another scheme",
        _request_line("POST ftp://router/v1/chat/completions HTTP/1.1"),
    ),
    refused(
        "absolute form without a host", _request_line("POST http:///v1/chat/completions HTTP/1.1")
    ),
    refused("authority form", _request_line("POST router:80 HTTP/1.1")),
    refused("CONNECT", _bodiless("CONNECT evil:443 HTTP/1.1"), status=501),
    refused("asterisk form", _request_line("POST * HTTP/1.1")),
    answered("OPTIONS *", _bodiless("OPTIONS * HTTP/1.1"), status=404),
    refused("no leading slash", _request_line("POST v1/chat/completions HTTP/1.1")),
    refused("no target", _request_line("POST HTTP/1.1")),
    refused("two targets", _request_line("POST /v1/chat/completions /x HTTP/1.1")),
    refused("two spaces", _request_line("POST  /v1/chat/completions HTTP/1.1")),
    refused("a tab for a space", _request_line("POST\t/v1/chat/completions HTTP/1.1")),
    refused("a space at the end", _request_line("POST /v1/chat/completions HTTP/1.1 ")),
    refused("a space at the start", _request_line(" POST /v1/chat/completions HTTP/1.1")),
    refused("NUL in the target", _request_line("POST /v1/chat/completions\0 HTTP/1.1")),
    refused(
        "a control byte in the target", _request_line("POST /v1/chat/completions?a=\x07 HTTP/1.1")
    ),
    refused("DEL in the target", _request_line("POST /v1/chat/completions?a=\x7f HTTP/1.1")),
    refused(
        "a byte above 127 in the target", _request_line("POST /v1/chat/completions?a=\xe9 HTTP/1.1")
    ),
    refused("a bare CR in the target", _request_line("POST /v1/chat/completions?a=\r HTTP/1.1")),
    refused("a fragment", _request_line("POST /v1/chat/completions#a HTTP/1.1")),
    passes(
        "encoded CR LF in the query",
        _request_line("POST /v1/chat/completions?a=%0d%0aX:%20y HTTP/1.1"),
        target="/v1/chat/completions?a=%0d%0aX:%20y",
        why="stays encoded",
    ),
    refused(
        "encoded CR LF in the path",
        _request_line("POST /v1/chat/completions%0d%0aX HTTP/1.1"),
        closed=False,
    ),
    refused(
        "a dot segment", _request_line("POST /v1/x/../chat/completions HTTP/1.1"), closed=False
    ),
    refused("an empty segment", _request_line("POST //v1/chat/completions HTTP/1.1"), closed=False),
)

_OTHERS = ("HTTP/1.2", "HTTP/2.0", "HTTP/3.0")

VERSIONS: tuple[Row, ...] = (
    refused("HTTP/0.9", b"GET /health\r\n\r\n"),
    refused("HTTP/0.9 with a body", b"POST /v1/chat/completions\r\n\r\n" + JSON),
    passes("HTTP/1.0", post(version="HTTP/1.0"), closed=True),
    passes(
        "HTTP/1.0 with keep-alive",
        post("Connection: keep-alive", version="HTTP/1.0"),
        lacks=("connection",),
    ),
    passes("HTTP/1.0 with close", post("Connection: close", version="HTTP/1.0"), closed=True),
    *(
        refused(version, post(version=version), status=505 if version in _OTHERS else 400)
        for version in (
            "HTTP/1.2",
            "HTTP/2.0",
            "HTTP/3.0",
            "HTTP/0.9 ",
            "HTTP/1",
            "HTTP/1.",
            "HTTP/11",
            "HTTP/1.10",
            "HTTP/ 1.1",
            "HTTP /1.1",
            "http/1.1",
            "HTTPS/1.1",
            "ICE/1.0",
            "RTSP/1.0",
            "HTTP/1.1x",
        )
    ),
    refused("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", status=505),
    refused("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64),
    refused("an answer for a request", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    refused("PROXY protocol", b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n" + post()),
)

METHODS: tuple[Row, ...] = (
    refused("an unknown method", post(method="BREW"), status=501),
    refused("a WebDAV method", _bodiless("PROPFIND /health HTTP/1.1"), status=501),
    refused("a method in lower case", post(method="post"), status=501),
    refused("a method with odd bytes", post(method="PO(ST")),
    answered("TRACE", _bodiless("TRACE /v1/chat/completions HTTP/1.1"), status=405),
    answered("OPTIONS", _bodiless("OPTIONS /v1/chat/completions HTTP/1.1"), status=405),
    answered(
        "GET of a generating path", _bodiless("GET /v1/chat/completions HTTP/1.1"), status=405
    ),
    answered("GET with a body", text(_GET, HOST, "Content-Length: 5") + b"evil!", status=200),
    answered(
        "GET with a request as its body",
        text(_GET, HOST, f"Content-Length: {len(post(body=EVIL))}") + post(body=EVIL),
        status=200,
    ),
    answered(
        "GET with chunks",
        text(_GET, HOST, "Transfer-Encoding: chunked") + b"5\r\nevil!\r\n0\r\n\r\n",
        status=200,
    ),
    Row(
        name="GET with a body to a passed-through path",
        wire=(text(f"GET {FILES} HTTP/1.1", HOST, "Content-Length: 5") + b"evil!",),
        answers=(200,),
        passed=(Passed(method="GET", target=FILES, body=b"evil!"),),
    ),
    Row(
        name="GET to a passed-through path",
        wire=(_bodiless(f"GET {FILES} HTTP/1.1"),),
        answers=(200,),
        passed=(Passed(method="GET", target=FILES, body=b"", lacks=("content-length",)),),
    ),
    answered(
        "DELETE without a body", _bodiless("DELETE /v1/chat/completions HTTP/1.1"), status=405
    ),
    Row(name="HEAD", wire=(_bodiless("HEAD /health HTTP/1.1"),), answers=(200,)),
    answered("POST without a length", _bodiless("POST /v1/chat/completions HTTP/1.1"), status=400),
)
