"""Lines of a request's head: their ends, bytes, names, and how much of them is read."""

from support.framing_row import HOST, JSON, LEN, TYPE, Row, passes, post, refused


def _line(raw: bytes) -> bytes:
    """An ordinary request with one more header line, given with everything but its CRLF."""
    head, _, body = post().partition(b"\r\n\r\n")
    return head + b"\r\n" + raw + b"\r\n\r\n" + body


def _name(raw: bytes) -> bytes:
    return _line(raw + b": x")


def _value(raw: bytes) -> bytes:
    return _line(b"X-A: " + raw)


def _replace(old: bytes, new: bytes) -> bytes:
    wire = post()
    assert wire.count(old) >= 1
    return wire.replace(old, new, 1)


_HEAD_END = b"\r\n\r\n" + JSON

FOLDS: tuple[Row, ...] = (
    refused("folded by a space", _line(b"X-A: b\r\n c")),
    refused("folded by a tab", _line(b"X-A: b\r\n\tc")),
    refused("folded Transfer-Encoding", _line(b"Transfer-Encoding:\r\n chunked")),
    refused("folded Content-Length", _replace(b"Content-Length: ", b"Content-Length:\r\n ")),
    refused("folded first header", _replace(b"Host:", b" X: y\r\nHost:")),
    refused("a line of one space", _line(b" ")),
    refused("a smuggled header by folding", _line(b"X-A: b\r\n Transfer-Encoding: chunked")),
)

LINE_ENDS: tuple[Row, ...] = (
    refused("bare LF after the request line", _replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n")),
    refused("bare LF after a header", _replace(b"router\r\n", b"router\n")),
    refused("bare LF only", post().replace(b"\r\n", b"\n")),
    refused("head ended by LF LF", _replace(_HEAD_END, b"\n\n" + JSON)),
    refused("head ended by CR LF LF", _replace(_HEAD_END, b"\r\n\n" + JSON)),
    refused("head ended by LF CR LF", _replace(_HEAD_END, b"\n\r\n" + JSON)),
    refused("bare CR after the request line", _replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r")),
    refused("bare CR after a header", _replace(b"router\r\n", b"router\r")),
    refused("head ended by CR CR", _replace(_HEAD_END, b"\r\r" + JSON)),
    refused("CR CR LF after a header", _replace(b"router\r\n", b"router\r\r\n")),
    refused("bare CR in a value", _value(b"b\rc")),
    refused("bare LF in a value", _value(b"b\nTransfer-Encoding: chunked")),
    refused("bare CR in a name", _name(b"X-\rA")),
    passes("blank lines before the request", b"\r\n\r\n" + post(), why="RFC 9112 section 2.2"),
)

BYTES: tuple[Row, ...] = (
    *(
        refused(f"{name} in a value", _value(b"b" + byte + b"c"))
        for name, byte in {
            "NUL": b"\0",
            "SOH": b"\x01",
            "BEL": b"\x07",
            "BS": b"\x08",
            "VT": b"\x0b",
            "FF": b"\x0c",
            "ESC": b"\x1b",
            "DEL": b"\x7f",
        }.items()
    ),
    refused("NUL in the Content-Length", _replace(b"Length: ", b"Length: \0")),
    refused("NUL in Transfer-Encoding", _line(b"Transfer-Encoding: \0chunked")),
    refused("VT before chunked", _line(b"Transfer-Encoding: \x0bchunked")),
    *(
        refused(f"{name} in a name", _name(b"X" + byte + b"A"))
        for name, byte in {
            "NUL": b"\0",
            "BEL": b"\x07",
            "DEL": b"\x7f",
            "a space": b" ",
            "a tab": b"\t",
            "a quote": b'"',
            "a slash": b"/",
            "a bracket": b"[",
            "a comma": b",",
            "a byte above 127": b"\xe9",
        }.items()
    ),
    passes("a tab in a value", _value(b"b\tc"), has=(("x-a", "b\tc"),)),
    passes("bytes above 127 in a value", _value(b"caf\xc3\xa9"), has=(("x-a", "caf\u00c3\u00a9"),)),
    passes("a value of nothing", _line(b"X-A:"), has=(("x-a", ""),)),
    passes(
        "odd but lawful bytes in a name", _name(b"!#$%&'*+-.^`|~"), has=(("!#$%&'*+-.^`|~", "x"),)
    ),
)

NAMES: tuple[Row, ...] = (
    refused("space before the colon", _line(b"X-A : b")),
    refused("tab before the colon", _line(b"X-A\t: b")),
    refused("space before the colon of Content-Length", _replace(b"Length:", b"Length :")),
    refused("space before the colon of Transfer-Encoding", _line(b"Transfer-Encoding : chunked")),
    refused("no name", _line(b": b")),
    refused("only a colon", _line(b":")),
    refused("no colon", _line(b"X-A")),
    refused("a space before the name", _replace(b"Content-Type", b" Content-Type")),
    refused("a second request line as a header", _line(b"GET /health HTTP/1.1")),
)

_BIG = 17_000

SIZES: tuple[Row, ...] = (
    passes(
        "a target of 8 KB",
        post(target="/v1/chat/completions?a=" + "b" * 8000),
        target="/v1/chat/completions?a=" + "b" * 8000,
    ),
    refused("a target of 17 KB", post(target="/v1/chat/completions?a=" + "b" * _BIG), status=414),
    refused("a method of 17 KB", post(method="A" * _BIG)),
    passes("a header of 8 KB", post("X-A: " + "b" * 8000), has=(("x-a", "b" * 8000),)),
    refused("a header of 17 KB", post("X-A: " + "b" * _BIG), status=431),
    refused("a name of 17 KB", post("A" * _BIG + ": b"), status=431),
    refused("a header without end", post(body=b"")[:-2] + b"X-A: " + b"b" * 70_000, status=431),
    refused("a line without end", b"POST /" + b"b" * 70_000, status=414),
    passes("100 headers", post(*(f"X-{i}: b" for i in range(100))), has=(("x-99", "b"),)),
    refused("130 headers", post(*(f"X-{i}: b" for i in range(130))), status=431),
    refused("5,000 headers", post(*(f"X-{i}: b" for i in range(5000))), status=431),
    refused("a head of 100 KB", post(*(f"X-{i}: " + "b" * 1000 for i in range(100))), status=431),
    refused("a head of 1 MB", post(*(f"X-{i}: " + "b" * 10_000 for i in range(100))), status=431),
    refused("a kilobyte of blank lines", b"\r\n" * 512 + post()),
)

HOSTS: tuple[Row, ...] = (
    refused("no Host", post(base=(TYPE,))),
    refused("two Hosts", post("Host: other")),
    refused("two equal Hosts", post(HOST)),
    refused("two Hosts of different case", post("hOsT: other")),
    *(
        refused(f"Host: {value!r}", post(base=(f"Host: {value}", TYPE)))
        for value in ("a b", "a,b", "a/b", "user@a", "a\\b", "a?b", "a#b")
    ),
    passes("an empty Host", post(base=("Host:", TYPE)), why="RFC 9112 section 3.2 allows it"),
    passes("a Host with a port", post(base=("Host: router:8080", TYPE))),
    passes("a Host of IPv6", post(base=("Host: [::1]:8080", TYPE))),
    passes(
        "no Host in HTTP/1.0",
        post(base=(TYPE,), version="HTTP/1.0"),
        closed=True,
        lacks=("connection",),
    ),
)

assert LEN < 100  # the rows above write it with two digits
