"""Client exchanges of all kinds, ordinary and odd, made from a seed: bytes to send, in pieces."""

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from support.reply_shapes import BREAKING, SHAPES

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`pieces` are what is sent, `answers` how many final answers that asks for."""

    name: str
    pieces: tuple[bytes, ...]
    answers: int = 1


def request(
    path: str,
    body: bytes,
    *,
    headers: Sequence[str] = (),
    version: str = "1.1",
    method: str = "POST",
    length: bool = True,
) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: edge:80", *headers]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8") + body


def body_for(path: str, *, stream: bool, text: str = "hi", model: str = "m") -> dict[str, object]:
    """An ordinary body."""
    body: dict[str, object] = {"model": model}
    if path.endswith("chat/completions"):
        body["messages"] = [{"role": "system", "content": text}, {"role": "user", "content": "q"}]
    elif path.endswith("completions"):
        body["prompt"] = text
    else:
        body["input"] = text
    if stream:
        body["stream"] = True
    return body


def every_shape() -> Iterator[Case]:
    """Each shape of answer, to a plain and to a streaming request, with a retry and without."""
    for number, shape in enumerate(SHAPES):
        for stream in (False, True):
            path = PATHS[0] if number % 3 else PATHS[1]
            raw = json.dumps(body_for(path, stream=stream)).encode()
            name = f"{shape}, {'stream' if stream else 'plain'}"
            for then in ("", ",plain", ",stream"):
                headers = _asking(name + then, shape + then)
                yield Case(name=name + then, pieces=(request(path, raw, headers=headers),))


def responses() -> Iterator[Case]:
    """`/v1/responses`: an answer's id leads the next request to where it was made."""
    path = PATHS[3]
    for name, shape, stream, previous in (
        ("made", "plain with a stored id", False, None),
        ("continued", "plain with a stored id", False, "resp_9"),
        ("made in a stream", "stream", True, None),
        ("continued in a stream", "stream split", True, "resp_7"),
        ("of an odd kind", "plain", False, 7),
        ("unknown", "plain", False, "resp_x"),
        ("made by a second try", "busy,plain with a stored id", False, None),
    ):
        body = body_for(path, stream=stream)
        if previous is not None:
            body["previous_response_id"] = previous
        raw = json.dumps(body).encode()
        headers = _asking(f"response {name}", shape)
        yield Case(name=f"response {name}", pieces=(request(path, raw, headers=headers),))


ODD_HEADERS = (
    "X-Request-Id: mine",
    "x-request-id: " + "y" * 200,
    "X-Client-Ref: batch 7",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "traceparent: nonsense",
    "Authorization: Bearer sk-1",
    "authorization:Bearer sk-2",
    "x-api-key: k",
    "Cookie: a=b",
    "X-Forwarded-For: 1.2.3.4",
    "Forwarded: for=1.2.3.4",
    "x-continuum-route: fake",
    "Proxy-Authorization: x",
    "Connection: keep-alive",
    "Connection: Keep-Alive",
    "Connection: close",
    "Connection: x-drop",
    "Connection: host",
    "Connection: keep-alive, x-drop",
    "X-Drop: 1",
    "Keep-Alive: timeout=5",
    "TE: trailers",
    "Expect: 100-continue",
    "Expect: nothing",
    "Upgrade: websocket",
    "Accept: application/json",
    "Accept-Encoding: gzip, br",
    "User-Agent: OpenAI/Python 1.2",
    "Content-Type: application/json",
    "content-type: application/json; charset=utf-8",
    "Content-Type: text/plain",
    "X-Empty:",
    "X-Spaces:   a  b  ",
    "X-Tab: a\tb",
    "X-Accent: \u00e9",
    "X-Twice: 1\r\nX-Twice: 2",
    "Content-Length: 3",
    "Transfer-Encoding: chunked",
    "X Bad: 1",
    "No colon",
    "X-Fold: 1\r\n  2",
    "X-Nul: a\x00b",
    "Content-Encoding: gzip",
    "Content-Encoding: identity",
    "Content-Encoding: br",
    "Host: second",
)

ODD_BODIES = (
    b"",
    b" ",
    b"{",
    b"[]",
    b"null",
    b'{"model":"m"}',
    b'{"model":"nobody","messages":[{"role":"user","content":"x"}]}',
    b'{"model":"m","messages":[]}',
    b'{"model":7,"messages":[{}]}',
    b'{"messages":[{}]}',
    b'{"model":"m","messages":[{"content":"\\ud800"}]}',
    b'{"model":"m","messages":[{}],"stream":"yes"}',
    b'{"model":"m","messages":[{}],"stream":null}',
    b'{"model":"m","messages":[{}],"stream":true,"stream":false}',
    b'{"model":"m","model":"m","messages":[{}]}',
    b'{"model":"m","messages":[{"content":"\xff"}]}',
    b'{"model":"m","messages":[{}],"cache_salt":"s"}',
    b'{"model":"m","messages":[{}],"cache_salt":"cr1.x"}',
    b'{"model":"alias","messages":[{"role":"user","content":"x"}]}',
    b'{"model":"alias","messages":[{"role":"user","content":"x"}],"stream":true}',
    b'{"model":"spare","messages":[{"role":"user","content":"x"}]}',
    b'{"model":"m","prompt":["a","b"]}',
    b'{"model":"m","prompt":[1,2,3]}',
    b'{"model":"m","input":"x"}',
    b'{"input":"x"}',
)


def odd_bodies() -> Iterator[Case]:
    """Bodies that are wrong, or right in an unusual way, on every path."""
    for path in PATHS:
        for number, raw in enumerate(ODD_BODIES):
            name = f"body {number} to {path}"
            shape = "stream" if b'"stream":true' in raw else "plain"
            yield Case(name=name, pieces=(request(path, raw, headers=_asking(name, shape)),))


def odd_requests() -> Iterator[Case]:
    """Requests that are not ordinary in one way each, and ordinary ones in odd pieces."""
    path = PATHS[0]
    raw = json.dumps(body_for(path, stream=False)).encode()
    for number, header in enumerate(ODD_HEADERS):
        name = f"header {number}"
        yield Case(
            name=name, pieces=(request(path, raw, headers=(*_asking(name, "plain"), header)),)
        )
    ordinary = request(path, raw, headers=_asking("whole", "plain"))
    for at in range(1, len(ordinary), 7):
        yield Case(name=f"split at {at}", pieces=(ordinary[:at], ordinary[at:]))
    streaming = request(
        path, json.dumps(body_for(path, stream=True)).encode(), headers=_asking("s", "stream split")
    )
    health = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    compressed = gzip.compress(raw, mtime=0)
    for name, pieces, answers in (
        ("two at once", (ordinary * 2,), 2),
        ("three with a stream", (ordinary + streaming + ordinary,), 3),
        ("one and a half", (ordinary + ordinary[:40], ordinary[40:]), 2),
        ("health behind", (ordinary + health,), 2),
        ("health before", (health + ordinary,), 2),
        ("health then ordinary", (health, ordinary), 2),
        ("ordinary then garbage", (ordinary, b"\x00\x01\r\n\r\n"), 2),
        ("blank lines first", (b"\r\n\r\n" + ordinary,), 1),
        ("bytes", tuple(ordinary[at : at + 1] for at in range(len(ordinary))), 1),
        ("http 1.0", (request(path, raw, version="1.0", headers=_asking("10", "plain")),), 1),
        (
            "http 1.0 keep-alive",
            (
                request(
                    path,
                    raw,
                    version="1.0",
                    headers=(*_asking("10k", "plain"), "Connection: keep-alive"),
                ),
            ),
            1,
        ),
        ("a query", (request(path + "?api_key=k&a=1", raw, headers=_asking("q", "plain")),), 1),
        ("absolute", (request("http://edge" + path, raw, headers=_asking("abs", "plain")),), 1),
        ("lower case", (request(path, raw, method="post", headers=_asking("lc", "plain")),), 1),
        ("get", (request(path, b"", method="GET", length=False),), 1),
        ("no length", (request(path, b"", length=False),), 1),
        (
            "chunked",
            (
                request(
                    path,
                    b"%x\r\n%b\r\n0\r\n\r\n" % (len(raw), raw),
                    headers=(*_asking("ch", "plain"), "Transfer-Encoding: chunked"),
                    length=False,
                ),
            ),
            1,
        ),
        (
            "gzip",
            (
                request(
                    path, compressed, headers=(*_asking("gz", "plain"), "Content-Encoding: gzip")
                ),
            ),
            1,
        ),
        (
            "large",
            (
                request(
                    path,
                    json.dumps(body_for(path, stream=False, text="\u00e9" * 90_000)).encode(),
                    headers=_asking("l", "plain"),
                ),
            ),
            1,
        ),
        (
            "too large",
            (request(path, b"x", headers=("Content-Length: 99999999",), length=False),),
            1,
        ),
        ("another path", (request("/v1/chat/completion", raw),), 1),
        ("a dotted path", (request("/v1/../v1/chat/completions", raw),), 1),
    ):
        yield Case(name=name, pieces=pieces, answers=answers)


def random_cases(seed: int, count: int) -> Iterator[Case]:
    """Anything with anything."""
    rng = random.Random(seed)
    shapes = list(SHAPES)
    harmless = [
        h for h in ODD_HEADERS if not h.lower().startswith(("content-", "transfer", "expect"))
    ]
    for number in range(count):
        name = f"random {number}"
        wire = b""
        requests = rng.choice((1, 1, 1, 2, 3))
        for _ in range(requests):
            path = rng.choice(PATHS)
            stream = rng.random() < 0.5
            body = body_for(path, stream=stream, text=rng.choice(("a", "b\u20ac", "c" * 3000)))
            asked = [rng.choice(shapes) for _ in range(rng.choice((1, 1, 2)))]
            if requests > 1:
                asked = [shape for shape in asked if shape not in BREAKING] or ["plain"]
            odd = rng.sample(harmless, rng.choice((0, 0, 1, 2)))
            headers = [*_asking(f"{name}/{len(wire)}", ",".join(asked)), *odd]
            rng.shuffle(headers)
            wire += request(path, json.dumps(body).encode(), headers=headers)
        cuts = sorted(rng.sample(range(1, len(wire)), rng.choice((0, 0, 1, 2))))
        pieces = tuple(wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True))
        yield Case(name=name, pieces=pieces, answers=requests)


def _asking(case: str, shape: str) -> tuple[str, ...]:
    return (f"X-Case: {case}", f"X-Shape: {shape}", "Content-Kind: test")
