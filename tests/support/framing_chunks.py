"""Bodies in chunks, and bodies that end too early."""

from support.framing_row import (
    FILES,
    HOST,
    JSON,
    LEN,
    Passed,
    Row,
    chunked,
    chunks,
    passes,
    post,
    refused,
    silent,
)

_HEX = b"%x" % LEN
_END = b"\r\n0\r\n\r\n"
_HALF = LEN // 2


def _size(line: bytes) -> bytes:
    """A chunked request whose only chunk has this size line."""
    return chunked(body=line + b"\r\n" + JSON + _END)


def _trailer(*lines: bytes) -> bytes:
    return chunked(
        body=chunks(JSON, last=b"0\r\n" + b"".join(x + b"\r\n" for x in lines) + b"\r\n")
    )


CHUNKS: tuple[Row, ...] = (
    passes("three chunks", chunked(body=chunks(JSON[:5], JSON[5:6], JSON[6:]))),
    passes("one chunk a byte", chunked(body=chunks(*(JSON[i : i + 1] for i in range(LEN))))),
    passes("size in capitals", _size(_HEX.upper())),
    passes("size with leading zeros", _size(b"000" + _HEX)),
    passes("last chunk of many zeros", chunked(body=chunks(JSON, last=b"00000\r\n\r\n"))),
    passes("extension", _size(_HEX + b";a=b"), why="read over, never passed on"),
    passes("extension without a value", _size(_HEX + b";a")),
    passes("extension in quotes", _size(_HEX + b';a="b;c"')),
    passes("extension of the last chunk", chunked(body=chunks(JSON, last=b"0;a=b\r\n\r\n"))),
    refused("extension with a bare LF", _size(_HEX + b";a=\nb")),
    refused("extension with a bare CR", _size(_HEX + b";a=\rb")),
    refused("extension with a NUL", _size(_HEX + b";a=\0b")),
    refused("extension of 20 KB", _size(_HEX + b";a=" + b"b" * 20_000)),
    refused("a megabyte of extensions", chunked(body=b"1;a=bbbbbbbbb\r\nx\r\n" * 60_000)),
    *(
        refused(f"chunk size {line.decode('latin-1')!r}", _size(line))
        for line in (
            b"",
            b"+" + _HEX,
            b"-" + _HEX,
            b"-1",
            b"0x" + _HEX,
            b" " + _HEX,
            b"\t" + _HEX,
            _HEX + b" 1",
            _HEX[:1] + b"_" + _HEX[1:],
            _HEX + b"h",
            b"g",
            b'"' + _HEX + b'"',
            _HEX + b",1",
            _HEX + b"\0",
            _HEX + b"\x0b",
        )
    ),
    refused("chunk size above 64 bits", _size(b"1" + _HEX.rjust(16, b"0"))),
    refused("chunk size of 64 bits", _size(b"ffffffffffffffff")),
    refused("chunk size of 300 digits", _size(b"0" * 300 + _HEX)),
    refused("chunk size ended by a bare LF", chunked(body=_HEX + b"\n" + JSON + _END)),
    refused("chunk size ended by a bare CR", chunked(body=_HEX + b"\r" + JSON + _END)),
    refused("chunk ended by a bare LF", chunked(body=_HEX + b"\r\n" + JSON + b"\n0\r\n\r\n")),
    refused("chunk ended by a bare CR", chunked(body=_HEX + b"\r\n" + JSON + b"\r0\r\n\r\n")),
    refused("chunk ended by nothing", chunked(body=_HEX + b"\r\n" + JSON + b"0\r\n\r\n")),
    refused("chunk longer than its size", chunked(body=b"%x\r\n" % (LEN - 1) + JSON + _END)),
    refused("chunk shorter than its size", chunked(body=b"%x\r\n" % (LEN + 1) + JSON + _END)),
    refused("last chunk ended by LF LF", chunked(body=chunks(JSON, last=b"0\n\n"))),
    refused("end of the trailers by a bare LF", chunked(body=chunks(JSON, last=b"0\r\n\n"))),
    refused(
        "end of the trailers by a bare CR", chunked(body=chunks(JSON, last=b"0\r\n\rX\r\n\r\n"))
    ),
)

TRAILERS: tuple[Row, ...] = (
    passes("a trailer", _trailer(b"X-Sum: 1"), lacks=("x-sum",), why="dropped"),
    passes("two trailers", _trailer(b"X-Sum: 1", b"X-More: 2"), lacks=("x-sum", "x-more")),
    passes(
        "trailers named in Trailer",
        chunked("Trailer: X-Sum", body=chunks(JSON, last=b"0\r\nX-Sum: 1\r\n\r\n")),
        lacks=("x-sum", "trailer"),
    ),
    *(
        passes(
            f"trailer {line.decode()!r}",
            _trailer(line),
            lacks=tuple({line.partition(b":")[0].decode().lower()} - {"content-length", "host"}),
            why="dropped like any other",
        )
        for line in (
            b"Content-Length: 3",
            b"Transfer-Encoding: chunked",
            b"Authorization: Bearer t",
            b"Host: evil",
            b"X-Continuum-Backend: b1",
        )
    ),
    refused("trailer with a space before the colon", _trailer(b"X-Sum : 1")),
    refused("trailer with a bare LF", _trailer(b"X-Sum: 1\nX-B: 2")),
    refused("trailer with a bare CR", _trailer(b"X-Sum: 1\rX-B: 2")),
    refused("trailer with a NUL", _trailer(b"X-Sum: \0")),
    refused("folded trailer", _trailer(b"X-Sum: 1", b" 2")),
    refused("trailer without a colon", _trailer(b"X-Sum")),
    refused("trailer of 20 KB", _trailer(b"X-Sum: " + b"y" * 20_000)),
    passes("200 trailers", _trailer(*(b"X-%d: 1" % i for i in range(200))), lacks=("x-1", "x-199")),
)

_FORM_HEAD = b"--b\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n"
_FORM_FILE = b"--b\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\n"
_FORM = _FORM_HEAD + _FORM_FILE + b"x" * 5000 + b"\r\n--b--\r\n"
_FORM_BASE = (HOST, "Content-Type: multipart/form-data; boundary=b")
_AUDIO = "/v1/audio/transcriptions"


def _form(*headers: str, wire: bytes, length: bool) -> bytes:
    return post(*headers, base=_FORM_BASE, target=_AUDIO, body=wire, length=length)


_TE = "Transfer-Encoding: chunked"

UPLOADS: tuple[Row, ...] = (
    passes("a form by length", _form(wire=_FORM, length=True), body=_FORM, target=_AUDIO),
    passes(
        "a form in chunks",
        _form(_TE, wire=chunks(_FORM[:200], _FORM[200:]), length=False),
        body=_FORM,
        target=_AUDIO,
    ),
    passes(
        "a form in chunks, in two writes",
        _form(_TE, wire=chunks(_FORM[:200]), length=False)[:-5],
        chunks(_FORM[200:]),
        body=_FORM,
        target=_AUDIO,
        why="streamed on in chunks of ours",
        has=(("transfer-encoding", "chunked"),),
        lacks=("content-length",),
    ),
    passes(
        "a form in chunks with extensions and trailers",
        _form(
            _TE,
            wire=b"%x;a=b\r\n%s\r\n0\r\nContent-Length: 3\r\n\r\n" % (len(_FORM), _FORM),
            length=False,
        ),
        body=_FORM,
        target=_AUDIO,
        lacks=("trailer",),
    ),
    Row(
        name="a form whose later chunk is damaged",
        wire=(
            _form(_TE, wire=chunks(_FORM[:200]), length=False)[:-5],
            b"zz\r\n" + _FORM[200:] + _END,
        ),
        answers=(400,),
        closed=True,
        unfinished=True,
        why="the backend's request is broken off, never ended",
    ),
    silent(
        "a form that ends in the middle",
        _form(wire=_FORM, length=True)[:-1000],
        unfinished=True,
        why="the backend's request is broken off, never ended",
    ),
    silent(
        "a form in chunks without the last one",
        _form(_TE, wire=chunks(_FORM), length=False)[:-5],
        unfinished=True,
    ),
    Row(
        name="an upload to a passed-through path",
        wire=(post(base=(HOST, "Content-Type: text/plain"), target=FILES),),
        answers=(200,),
        passed=(Passed(target=FILES),),
    ),
)

CUT: tuple[Row, ...] = (
    silent("nothing at all"),
    silent("only blank lines", b"\r\n\r\n"),
    silent("half a method", b"PO"),
    silent("half a request line", b"POST /v1/chat/comp"),
    silent("half a header", post()[:60]),
    silent("head without its blank line", post(body=b"")[:-2]),
    silent("Content-Length without a body", post()[:-LEN]),
    silent("half a body", post()[:-_HALF]),
    silent("all but one byte of the body", post()[:-1]),
    silent("half a chunk size", chunked(body=_HEX[:1])),
    silent("half a chunk", chunked(body=_HEX + b"\r\n" + JSON[:_HALF])),
    silent("a chunk without its CRLF", chunked(body=_HEX + b"\r\n" + JSON)),
    silent("chunks without a last one", chunked(body=_HEX + b"\r\n" + JSON + b"\r\n")),
    silent("last chunk without its blank line", chunked(body=chunks(JSON, last=b"0\r\n"))),
    silent("an open trailer", chunked(body=chunks(JSON, last=b"0\r\nX-A: b\r\n"))),
)
