"""pydantic's errors → plain English: what is wrong and what would be right.

pydantic's own sentences are never shown: they name Python types and change between versions.
A value is shown only through `bad_value.echo`.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic_core import ErrorDetails

from continuum_shared.config.bad_value import BadValue
from continuum_shared.config.kinds import SectionModel, with_unit
from continuum_shared.config.model_walk import field_at, kind_of, places_of, section_at
from continuum_shared.config.report import Path

Words = tuple[str, str]

_NUMBER = ("must be a number", "write it without quotes or units")
_WHOLE = ("must be a whole number", "such as 10")
_FLAG = ("must be true or false", "")
_TEXT = ("must be text", "put it in quotes")
_LIST = ("must be a list", "write [a, b] or one line with - for each item")
_MAP = ("must be a mapping", "write KEY: VALUE lines below it")

_FIXED: Mapping[str, Words] = {
    "missing": ("is required", ""),
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing_size": ("is too large a number", ""),
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "finite_number": ("must be a finite number", ""),
    "bool_parsing": _FLAG,
    "bool_type": _FLAG,
    "string_type": _TEXT,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "dict_type": _MAP,
    "mapping_type": _MAP,
    "model_type": _MAP,
    "model_attributes_type": _MAP,
}
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than_equal": ("ge", "must be at least {}"),
    "greater_than": ("gt", "must be more than {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "less_than": ("lt", "must be less than {}"),
}


def in_words(error: ErrorDetails, model: type[SectionModel], path: Path) -> tuple[Path, Words]:
    """One pydantic error at a path of the file → (path it is about, (message, hint))."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return path, unknown_key(model, path)
    if error.get("input") is None and kind != "missing":
        return path, ("has no value", "write one, or leave the key out")
    cause = context.get("error")
    if isinstance(cause, BadValue):
        return (*path, *cause.at), (cause.message, cause.hint)
    if kind in _BOUNDS:
        return path, _bound(kind, context, model, path)
    if kind in _FIXED:
        return path, _FIXED[kind]
    if kind in _SHAPED:
        return path, _SHAPED[kind](context)
    return path, ("cannot be used here", "see docs/configuration.md")


def unknown_key(model: type[SectionModel], path: Path) -> Words:
    """What to say about a key that a section does not have."""
    section = section_at(model, path[:-1])
    if section is None:
        return "is not a known key", ""
    key = str(path[-1])
    if key in section.later:
        return "is not in this version", section.later[key] or "remove it, or name it x_" + key
    near = get_close_matches(key.lower().replace("-", "_"), section.model_fields, n=1, cutoff=0.6)
    if near:
        return "is not a known key", f'did you mean "{near[0]}"?'
    elsewhere = list(places_of(model, key))
    if len(elsewhere) == 1:
        return "is not a known key", f'did you mean "{elsewhere[0]}"?'
    return "is not a known key", "known: " + ", ".join(section.model_fields)


def _bound(kind: str, context: Mapping[str, Any], model: type[SectionModel], path: Path) -> Words:
    name, sentence = _BOUNDS[kind]
    limit = context[name]
    field = field_at(model, path)
    unit = kind_of(field)
    default = field.default if field is not None and not field.is_required() else None
    hint = f"default {with_unit(default, unit)}" if isinstance(default, int | float) else ""
    return sentence.format(with_unit(limit, unit)), hint


def _length(context: Mapping[str, Any]) -> Words:
    if context.get("min_length") == 1:
        return "is empty", "write at least one"
    return f"needs at least {context.get('min_length')} items", ""


def _too_long(context: Mapping[str, Any]) -> Words:
    return f"is longer than {context.get('max_length')}", ""


def _pattern(context: Mapping[str, Any]) -> Words:
    return _PATTERNS.get(str(context.get("pattern")), ("has characters that are not allowed", ""))


_PATTERNS: Mapping[str, Words] = {
    r"^[A-Za-z0-9_.-]{1,64}$": (
        "is not a valid name",
        "use 1 to 64 letters, digits, dots, dashes or underscores",
    ),
    r"^[A-Za-z0-9_-]{1,64}$": (
        "is not a valid name",
        "use 1 to 64 letters, digits, dashes or underscores",
    ),
}
_SHAPED: Mapping[str, Callable[[Mapping[str, Any]], Words]] = {
    "string_too_short": lambda _: ("is empty", "write some text or leave the key out"),
    "string_too_long": _too_long,
    "string_pattern_mismatch": _pattern,
    "too_short": _length,
    "too_long": _too_long,
}
