"""Where a request's body ends: Content-Length, Transfer-Encoding, and both."""

from support.framing_row import (
    EVIL,
    JSON,
    LEN,
    Row,
    chunked,
    chunks,
    passes,
    post,
    refused,
)

_TE = "Transfer-Encoding: chunked"
_CL = f"Content-Length: {LEN}"
_CHUNKS = chunks(JSON)


def _both(*headers: str, body: bytes = _CHUNKS) -> bytes:
    return post(*headers, length=False, body=body)


BOTH: tuple[Row, ...] = (
    refused("CL, then TE", _both(_CL, _TE)),
    refused("TE, then CL", _both(_TE, _CL)),
    refused("CL of the wire's size, then TE", _both(f"Content-Length: {len(_CHUNKS)}", _TE)),
    refused("CL 0, then TE", _both("Content-Length: 0", _TE)),
    refused("TE, then CL 0", _both(_TE, "Content-Length: 0")),
    refused("CL.TE with a request behind", _both(_CL, _TE, body=b"0\r\n\r\n" + post(body=EVIL))),
    refused(
        "TE.CL with a request inside the chunk",
        _both(_TE, "Content-Length: 4", body=chunks(post(body=EVIL))),
    ),
    refused("CL and TE with a header between", _both(_CL, "X-A: b", _TE)),
    refused("cl and te in lower case", _both(_CL.lower(), _TE.lower())),
    refused("CL and TE in upper case", _both(_CL.upper(), _TE.upper())),
    refused(
        "cOnTeNt-LeNgTh and tRaNsFeR-eNcOdInG",
        _both("cOnTeNt-LeNgTh: 5", "tRaNsFeR-eNcOdInG: chunked"),
    ),
    refused("CL and TE: identity", _both(_CL, "Transfer-Encoding: identity", body=JSON)),
    refused("CL and an empty TE", _both(_CL, "Transfer-Encoding:", body=JSON)),
    refused("CL and TE: xchunked", _both(_CL, "Transfer-Encoding: xchunked", body=JSON)),
    refused("CL and TE: gzip", _both(_CL, "Transfer-Encoding: gzip", body=JSON)),
    passes(
        "CL and Transfer_Encoding",
        post("Transfer_Encoding: chunked"),
        lacks=("transfer_encoding", "transfer-encoding"),
        why="another header for us; some backends read an underscore as a hyphen, so it is dropped",
    ),
    passes(
        "CL and Content_Length",
        post("Content_Length: 3"),
        lacks=("content_length",),
        why="likewise",
    ),
)

LENGTHS: tuple[Row, ...] = (
    passes("Content-Length", post()),
    passes("Content-Length: leading zeros", post(f"Content-Length: 000{LEN}", length=False)),
    passes(
        "Content-Length: spaces and tabs around", post(f"Content-Length: \t {LEN} \t", length=False)
    ),
    passes("Content-Length without a space", post(f"Content-Length:{LEN}", length=False)),
    refused("two equal Content-Lengths", post(_CL)),
    refused("two unequal Content-Lengths", post("Content-Length: 3")),
    refused("two unequal Content-Lengths, larger first", post("Content-Length: 9999")),
    refused("two Content-Lengths of different case", post(f"content-length: {LEN}")),
    *(
        refused(f"Content-Length: {value!r}", post(f"Content-Length: {value}", length=False))
        for value in (
            f"{LEN}, {LEN}",
            f"{LEN}, 3",
            f"{LEN},",
            f",{LEN}",
            f"+{LEN}",
            f"-{LEN}",
            f"{LEN}.0",
            "5_8",
            "5 8",
            "0x3a",
            "3a",
            "",
            "ten",
            f'"{LEN}"',
            f"{LEN};q=1",
            "\u00b2",
            "1e2",
        )
    ),
    refused(
        "Content-Length above 64 bits",
        post("Content-Length: 18446744073709551674", length=False),
        why="it would be 58 modulo 2^64",
    ),
    refused("Content-Length of 400 digits", post("Content-Length: " + "9" * 400, length=False)),
    refused(
        "Content-Length above the body limit",
        post("Content-Length: 67108865", length=False),
        status=413,
        lingers=True,
    ),
    Row(
        name="no length and a body",
        wire=(post(length=False),),
        answers=(400, 400),
        closed=True,
        why="an empty body, then something that is no request",
    ),
    Row(
        name="Content-Length: 0 and a body",
        wire=(post("Content-Length: 0", length=False),),
        answers=(400, 400),
        closed=True,
        why="likewise",
    ),
)

CODINGS: tuple[Row, ...] = (
    passes("Transfer-Encoding: chunked", chunked()),
    passes("Transfer-Encoding: Chunked", _both("Transfer-Encoding: Chunked")),
    passes("TRANSFER-ENCODING: CHUNKED", _both("TRANSFER-ENCODING: CHUNKED")),
    passes("Transfer-Encoding: spaces around", _both("Transfer-Encoding:   chunked  ")),
    refused("Transfer-Encoding: a tab before", _both("Transfer-Encoding:\tchunked")),
    refused(
        "Transfer-Encoding: a tab behind",
        _both("Transfer-Encoding: chunked\t"),
        why="lawful, and some readers take it for another coding",
    ),
    *(
        refused(
            f"Transfer-Encoding: {value!r}",
            _both(f"Transfer-Encoding: {value}"),
            status=501 if value in ("gzip, chunked", "identity, chunked") else 400,
        )
        for value in (
            "xchunked",
            "chunkedx",
            "chunk",
            "chunked, identity",
            "identity, chunked",
            "identity",
            "chunked, chunked",
            "chunked,",
            ",chunked",
            "gzip, chunked",
            "chunked, gzip",
            "gzip",
            "cow",
            "",
            '"chunked"',
            "'chunked'",
            "chunked;q=1",
            "chunked chunked",
            "chu nked",
            "\u00a0chunked",
            "chun\u212aed".encode("utf-8").decode("latin-1"),
        )
    ),
    refused("TE twice, chunked", _both(_TE, _TE)),
    refused("TE twice, chunked and identity", _both(_TE, "Transfer-Encoding: identity")),
    refused("TE twice, identity and chunked", _both("Transfer-Encoding: identity", _TE)),
    refused("TE twice, chunked and cow", _both(_TE, "Transfer-encoding: cow")),
    refused("TE twice, an empty one first", _both("Transfer-Encoding:", _TE)),
    refused("TE in HTTP/1.0", chunked(version="HTTP/1.0")),
    refused(
        "TE in HTTP/1.0 with keep-alive", chunked("Connection: keep-alive", version="HTTP/1.0")
    ),
    refused("TE and CL in HTTP/1.0", post(_TE, version="HTTP/1.0")),
)
