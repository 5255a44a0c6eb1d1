"""Another model name in a JSON body, with every other byte as the client sent it (H7, A1, J11)."""

import json
import re

from continuum_router.providers.json_scan import JsonScan

_NAME = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)


def splice_model(raw: bytes, name: str) -> bytes:
    """Return a JSON object with the text value of its outer `model` replaced.

    `raw` has been parsed, and its outer `model` is text. Every occurrence of the key is replaced,
    because readers differ in which of two they take.
    """
    replacement = json.dumps(name).encode()
    # Written once and without escapes, it can only be the outer key; that is the ordinary case.
    if raw.count(b'"model"') == 1 and b"\\u" not in raw:
        found = _NAME.search(raw)
        if found is not None:
            return raw[: found.start(1)] + replacement + raw[found.end(1) :]
    return JsonScan("model", replacement=replacement).feed(raw)
