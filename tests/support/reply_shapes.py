"""Answers of every shape that a backend may give, by name, and a backend that gives them.

A request asks for its answers by the header `x-shape`: names joined by commas, one for each time
that the request comes, the last one again and again. `x-case` tells requests apart.
"""

import gzip
import zlib
from collections import Counter
from collections.abc import Mapping

from support.scripted_backend import LAST_CHUNK, Peer, Script, chunk, chunked_head, reply, sse

CHAT_ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"hi \xe2\x82\xac"},"finish_reason":"stop"}],"usage":'
    b'{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}'
)
EVENTS = (
    sse('{"id":"resp_7","choices":[{"delta":{"role":"assistant"}}]}'),
    sse('{"choices":[{"delta":{"content":"a\\u20ac"}}]}'),
    sse('{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}'),
)
DONE = sse("[DONE]")
JSON = "Content-Type: application/json"
STREAM = chunked_head()
ERROR_EVENT = b'data: {"error":{"message":"no room","code":503}}\n\n'
LONG = b'{"text":"' + b"x" * 1_100_000 + b'"}'

WHOLE: Mapping[str, tuple[bytes, ...]] = {
    "plain": (reply(CHAT_ANSWER),),
    "plain in pieces": (
        reply(CHAT_ANSWER)[:20],
        reply(CHAT_ANSWER)[20:150],
        reply(CHAT_ANSWER)[150:],
    ),
    "plain with a stored id": (reply(b'{"id":"resp_9","object":"response","output":[]}'),),
    "empty": (reply(b""),),
    "long": (reply(LONG),),
    "chunked": (
        chunked_head(headers=(JSON,)),
        chunk(CHAT_ANSWER[:50]),
        chunk(CHAT_ANSWER[50:]) + LAST_CHUNK,
    ),
    "trailers": (chunked_head(headers=(JSON,)) + chunk(CHAT_ANSWER) + b"0\r\nX-Late: 1\r\n\r\n",),
    "many headers": (
        reply(
            CHAT_ANSWER,
            headers=(
                "content-type: application/json; charset=utf-8",
                "Server: engine/1",
                "Set-Cookie: a=b",
                "Date: Thu, 01 Jan 1970 00:00:00 GMT",
                "X-Request-Id: theirs",
                "x-continuum-backend: liar",
                "X-Cache: HIT",
                "Alt-Svc: h3",
                "openai-processing-ms: 12",
                "Vary: Accept",
                "Vary: Origin",
                "Connection: x-hop",
                "X-Hop: 1",
            ),
        ),
    ),
    "header in utf-8": (
        reply(
            CHAT_ANSWER,
            headers=(JSON, "X-Name: \u00c3\u00a9"),
        ),
    ),
    "header in latin-1": (
        reply(
            CHAT_ANSWER,
            headers=(JSON, "X-Name: \u00e9"),
        ),
    ),
    "no type": (reply(CHAT_ANSWER, headers=()),),
    "two types": (reply(CHAT_ANSWER, headers=(JSON, "Content-Type: text/plain")),),
    "text": (reply(b"hello", headers=("Content-Type: text/plain",)),),
    "no reason": (reply(CHAT_ANSWER, status="200 "),),
    "own reason": (reply(CHAT_ANSWER, status="200 Fine"),),
    "keep-alive hint": (
        reply(
            CHAT_ANSWER,
            headers=(JSON, "Keep-Alive: timeout=1"),
        ),
    ),
    "closes after it": (
        reply(
            CHAT_ANSWER,
            headers=(JSON, "Connection: close"),
        ),
    ),
    "interim first": (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + reply(CHAT_ANSWER),),
    "gzip": (
        reply(
            gzip.compress(CHAT_ANSWER, mtime=0),
            headers=(JSON, "Content-Encoding: gzip"),
        ),
    ),
    "deflate": (
        reply(
            zlib.compress(CHAT_ANSWER),
            headers=(JSON, "Content-Encoding: deflate"),
        ),
    ),
    "unknown coding": (reply(b"??", headers=(JSON, "Content-Encoding: br")),),
    "damaged gzip": (
        reply(
            b"\x1f\x8bnope",
            headers=(JSON, "Content-Encoding: gzip"),
        ),
    ),
    "created": (reply(CHAT_ANSWER, status="201 Created"),),
    "no content": (b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n",),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n",),
    "redirect": (reply(b"", status="307 Temporary Redirect", headers=("Location: /x",)),),
    "bad request": (reply(b'{"error":{"message":"no","code":400}}', status="400 Bad Request"),),
    "not found": (reply(b'{"detail":"no"}', status="404 Not Found"),),
    "busy": (reply(b'{"error":1}', status="429 Too Many Requests"),),
    "busy for long": (
        reply(b"{}", status="429 Too Many Requests", headers=(JSON, "Retry-After: 99")),
    ),
    "unavailable": (
        reply(b"{}", status="503 Service Unavailable", headers=(JSON, "Retry-After: 0")),
    ),
    "broken": (
        reply(b"oops", status="500 Internal Server Error", headers=("Content-Type: text/plain",)),
    ),
    "odd status": (reply(b"{}", status="599 Odd"),),
    "stream": (STREAM, *[chunk(event) for event in EVENTS], chunk(DONE), LAST_CHUNK),
    "stream at once": (STREAM + b"".join(chunk(event) for event in (*EVENTS, DONE)) + LAST_CHUNK,),
    "stream in one chunk": (STREAM, chunk(b"".join((*EVENTS, DONE))), LAST_CHUNK),
    "stream split": (
        STREAM[:30],
        STREAM[30:] + chunk(EVENTS[0])[:9],
        chunk(EVENTS[0])[9:] + chunk(EVENTS[1][:11]),
        chunk(EVENTS[1][11:]),
        chunk(DONE)[:-1],
        b"\n" + LAST_CHUNK,
    ),
    "stream with comments": (
        STREAM,
        chunk(b": hello\n\n"),
        chunk(b":\n"),
        chunk(EVENTS[0]),
        chunk(b": beat\n\n"),
        chunk(EVENTS[1] + DONE),
        LAST_CHUNK,
    ),
    "stream with crlf": (STREAM, chunk(b"data: 1\r\n\r\n"), chunk(b"data: 2\r\n\r\n"), LAST_CHUNK),
    "stream without an end": (STREAM, chunk(EVENTS[0]), chunk(b"data: tail"), LAST_CHUNK),
    "stream of nothing": (STREAM, LAST_CHUNK),
    "stream of comments": (STREAM, chunk(b": a\n\n"), LAST_CHUNK),
    "stream of a length": (
        reply(b"".join((*EVENTS, DONE)), headers=("Content-Type: text/event-stream",)),
    ),
    "stream with extensions": (
        STREAM,
        b"%x;a=b\r\n%b\r\n" % (len(EVENTS[0]), EVENTS[0]),
        chunk(DONE),
        LAST_CHUNK,
    ),
    "stream with trailers": (STREAM, chunk(EVENTS[0]), b"0\r\nX-Sum: 1\r\n\r\n"),
    "stream with headers": (
        chunked_head(
            headers=(
                "Content-Type: text/event-stream; charset=utf-8",
                "Cache-Control: no-cache",
                "X-Accel-Buffering: no",
            )
        ),
        chunk(EVENTS[0]),
        chunk(DONE),
        LAST_CHUNK,
    ),
    "stream in gzip": (
        chunked_head(headers=("Content-Type: text/event-stream", "Content-Encoding: gzip")),
        chunk(gzip.compress(b"".join(EVENTS), mtime=0)),
        LAST_CHUNK,
    ),
    "stream that fails at once": (STREAM, chunk(ERROR_EVENT), chunk(DONE), LAST_CHUNK),
    "stream with a big event": (
        STREAM,
        chunk(b"data: " + b"y" * 9000),
        chunk(b"z" * 70_000 + b"\n\n"),
        chunk(DONE),
        LAST_CHUNK,
    ),
}
"""Answers after which the connection may be used again, or is closed as announced."""

BREAKING: Mapping[str, tuple[bytes, ...]] = {
    "closes at once": (),
    "closes in the head": (b"HTTP/1.1 200 OK\r\nConte",),
    "closes in the body": (reply(CHAT_ANSWER)[:-9],),
    "closes in a long body": (reply(LONG)[:-9],),
    "body until the end": (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + CHAT_ANSWER,
    ),
    "stream until the end": (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
        *EVENTS,
    ),
    "garbage": (b"NOPE\r\n\r\n",),
    "bad length": (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",),
    "switches": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n",),
    "stream cut before an event": (STREAM,),
    "stream cut in the first event": (STREAM, chunk(EVENTS[0][:9])),
    "stream cut between events": (STREAM, chunk(EVENTS[0])),
    "stream cut in an event": (STREAM, chunk(EVENTS[0]), chunk(EVENTS[1][:9])),
    "stream cut in a chunk": (STREAM, chunk(EVENTS[0]), chunk(EVENTS[1])[:9]),
    "stream with a broken chunk": (STREAM, chunk(EVENTS[0]), b"zz\r\n"),
    "chunk without an end": (STREAM, chunk(EVENTS[0])[:-2] + b"xx"),
}
"""Answers behind which the backend closes without a word."""

SHAPES = {**WHOLE, **BREAKING}


def shaped() -> Script:
    """A backend that answers each request in the shape that it asks for."""
    seen: Counter[str] = Counter()

    async def script(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request is None:
                return
            case = request.header("x-case") or ""
            names = (request.header("x-shape") or "plain").split(",")
            name = names[min(seen[case], len(names) - 1)]
            seen[case] += 1
            pieces = SHAPES[name]
            await peer.send(*pieces, gap=0.001 if len(pieces) > 1 else None)
            if name in BREAKING or name == "closes after it":
                return

    return script
