"""A client's JSON text → an object, or what is wrong with it.

A text is weighed before it is parsed, because a value takes many times its few bytes: 64 MiB of
empty arrays become 2 GiB of objects and seconds in which nothing else runs. No request has that
many values; what is long is text, or numbers.
"""

import json
from collections.abc import Mapping
from typing import NoReturn

import orjson

from continuum_router.errors import BadRequest

MAX_VALUES = 1_000_000
"""Arrays, objects and strings of one body, keys included. Numbers are cheap and not counted."""

LIGHT_BYTES = 1024 * 1024
"""A body up to this size is not weighed: it can cost no more than a moment."""

JSON_TYPE_NAMES: Mapping[type, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    type(None): "null",
}


def type_name(value: object) -> str:
    """What JSON calls the type of a value."""
    return JSON_TYPE_NAMES.get(type(value), "another type")


def check_weight(raw: bytes) -> None:
    """Raise BadRequest for more than `MAX_VALUES` arrays, objects and strings.

    Text that is no JSON may pass or not; the parser refuses it all the same.
    """
    if len(raw) <= LIGHT_BYTES:
        return
    # A bound first: what stands inside of strings is counted here too.
    if raw.count(b"[") + raw.count(b"{") + raw.count(b'"') // 2 <= MAX_VALUES:
        return
    plain = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    values = plain.count(b'"') // 2
    if values <= MAX_VALUES:
        outside = b"".join(plain.split(b'"')[::2])
        values += outside.count(b"[") + outside.count(b"{")
    if values > MAX_VALUES:
        raise BadRequest(
            f"The request body has more than {MAX_VALUES} arrays, objects and strings.",
            code="too_many_values",
        )


def parse_object(raw: bytes) -> dict[str, object]:
    """Parse a JSON object, strictly (no NaN, no comments, no invalid UTF-8).

    Unpaired surrogate escapes are accepted, as the engines' own parser accepts them (decisions A6).
    Raises BadRequest.
    """
    if not raw or raw.isspace():
        raise BadRequest("The request body is empty; send a JSON object.", code="empty_body")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as err:
        body = _second_opinion(raw, err)
    if type(body) is not dict:
        raise BadRequest(
            f"The request body must be a JSON object, not {type_name(body)}.",
            code="invalid_json",
        )
    return body


def _second_opinion(raw: bytes, first: orjson.JSONDecodeError) -> object:
    """Parse again with the standard library where the fast parser refuses a surrogate escape."""
    if b"\\ud" in raw or b"\\uD" in raw:
        try:
            return json.loads(raw, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            pass
    raise BadRequest(
        f"The request body is not valid JSON (line {first.lineno}, column {first.colno}).",
        code="invalid_json",
    ) from None


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError("not JSON")
