"""Another model name in a JSON body, with every other byte as the client sent it (H7, J11)."""

import re
from collections.abc import Iterator, Mapping

import orjson

_NAME = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_TEXT_FOLLOWS = re.compile(rb"\s*:\s*(?=\")")


def splice_model(raw: bytes, body: Mapping[str, object], new_name: str) -> bytes:
    """Return `raw` with the value of its top-level `model` replaced.

    `body` is what `raw` was parsed to; its `model` is text. Raises ValueError when it is not.
    """
    if type(body.get("model")) is not str:
        raise ValueError("the body names no model")
    name = orjson.dumps(new_name)
    if raw.count(b'"model"') == 1 and b"\\u" not in raw:
        found = _NAME.search(raw)
        if found is not None:
            return raw[: found.start(1)] + name + raw[found.end(1) :]
    pieces: list[bytes] = []
    done = 0
    for start, end in _places(raw):
        pieces += (raw[done:start], name)
        done = end
    return b"".join((*pieces, raw[done:]))


def _places(raw: bytes) -> Iterator[tuple[int, int]]:
    """Where the values of top-level keys that read `model` stand; a key may come twice."""
    depth = 0
    key = False
    for token in _TOKEN.finditer(raw):
        text = token[0]
        if text in b"{[":
            depth += 1
            key = False
        elif text in b"}]":
            depth -= 1
        elif depth == 1:
            if key:
                yield token.span()
                key = False
            elif _TEXT_FOLLOWS.match(raw, token.end()):
                plain = b"\\" not in text
                key = (text if plain else orjson.dumps(orjson.loads(text))) == b'"model"'
