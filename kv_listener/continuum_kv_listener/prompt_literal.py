"""Literal text of a chat template, compared with text that may still be cut off.

A template writes the same words around every message: role markers, a built-in system prompt, a
date. :class:`Literal` holds such words, with the places that change by themselves (today's date,
a reasoning level) as patterns instead of text, so that a format learnt yesterday still reads
today's prompts (decisions C22).
"""

import re
from dataclasses import dataclass
from enum import StrEnum

PARTIAL = -1
"""The text ended before the literal could be told from something else."""
MISMATCH = -2
"""The text says something else, whatever follows."""

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|"
    r"Sep(?:tember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_WEEKDAY = r"(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day,? )?"


class Shape(StrEnum):
    """Pieces of a template that change from day to day or from request to request."""

    DATE_WORDS = rf"{_WEEKDAY}\d{{1,2}} {_MONTH},? \d{{4}}"
    DATE_AMERICAN = rf"{_WEEKDAY}{_MONTH} \d{{1,2}}, \d{{4}}"
    DATE_ISO = r"\d{4}-\d{2}-\d{2}"
    DATE_SLASHED = r"\d{1,4}/\d{1,2}/\d{1,4}"
    DATE_DOTTED = r"\d{1,2}\.\d{1,2}\.\d{4}"
    DATE_KOREAN = r"\d{4}년 ?\d{1,2}월 ?\d{1,2}일"
    TIME = r"\d{1,2}:\d{2}(?::\d{2})?"
    REASONING = r"(?<=Reasoning: )(?:low|medium|high)(?=\n)"


_LONGEST_SHAPE = 40
_COMPILED = {shape: re.compile(shape.value) for shape in Shape}
_ANY_SHAPE = re.compile("|".join(f"(?P<{shape.name}>{shape.value})" for shape in Shape))
_SHAPE_PREFIX = re.compile(r"[A-Za-z0-9 ,\-/.:년월일]*\Z")
_SPECIAL = re.compile(r"<[^<>\s][^<>\n]{0,62}>|\[/?[A-Z][A-Z_]{1,30}\]")
_OPENS_WITH_SPECIAL = re.compile(rf"\s*(?:{_SPECIAL.pattern})")


@dataclass(frozen=True, slots=True)
class Literal:
    """Fixed text with changing places in between."""

    parts: tuple[str | Shape, ...]

    @classmethod
    def of(cls, text: str) -> "Literal":
        """Split rendered ``text`` at everything that looks like a :class:`Shape`."""
        parts: list[str | Shape] = []
        at = 0
        for found in _ANY_SHAPE.finditer(text):
            if found.start() > at:
                parts.append(text[at : found.start()])
            parts.append(Shape[found.lastgroup or ""])
            at = found.end()
        if at < len(text) or not parts:
            parts.append(text[at:])
        return cls(tuple(parts))

    @property
    def head(self) -> str:
        """The fixed text before the first changing place."""
        first = self.parts[0]
        return "" if isinstance(first, Shape) else first

    def match(self, text: str, at: int = 0) -> int:
        """Offset behind the literal at ``at``, :data:`PARTIAL` or :data:`MISMATCH`."""
        for part in self.parts:
            if isinstance(part, Shape):
                at = _match_shape(part, text, at)
            elif text.startswith(part, at):
                at += len(part)
            else:
                at = PARTIAL if part.startswith(text[at:]) else MISMATCH
            if at < 0:
                return at
        return at

    def extends(self, other: "Literal") -> bool:
        """Whether every text that begins with this literal begins with ``other`` too."""
        if self == other:
            return False
        *whole, last = other.parts
        if list(self.parts[: len(whole)]) != whole:
            return False
        if len(self.parts) <= len(whole):
            return last == ""
        mine = self.parts[len(whole)]
        if isinstance(mine, Shape) or isinstance(last, Shape):
            return mine is last or last == ""
        return mine.startswith(last)


def _match_shape(shape: Shape, text: str, at: int) -> int:
    found = _COMPILED[shape].match(text, at)
    if found is not None and found.end() < len(text):
        return found.end()
    # A shape that reaches the end of the text could still grow or turn out to be another word.
    rest = text[at : at + _LONGEST_SHAPE + 1]
    if len(rest) <= _LONGEST_SHAPE and _SHAPE_PREFIX.match(rest):
        return PARTIAL
    return MISMATCH


def is_weak(text: str) -> bool:
    """Whether ``text`` is nothing but white space, which prompts contain too."""
    return not text.strip()


def opens_with_special(text: str, start: int) -> bool:
    """Whether a special such as ``<|system|>`` stands at ``start``, white space aside."""
    return _OPENS_WITH_SPECIAL.match(text, start) is not None


def lead_marker(text: str) -> str:
    """The shortest beginning of ``text`` that still marks a border: up to its first special."""
    found = _OPENS_WITH_SPECIAL.match(text)
    return found.group() if found else text


def first_marker_after(text: str, offset: int) -> str:
    """``text`` up to the end of the first special at or behind ``offset``; all of it if none."""
    found = _SPECIAL.search(text, offset)
    return text[: found.end()] if found else text


def first_special(text: str, start: int) -> int:
    """Offset of the first special at or behind ``start``; -1 if there is none."""
    found = _SPECIAL.search(text, start)
    return found.start() if found else -1


def structural_prefix(texts: list[str]) -> str:
    """Longest common beginning of ``texts`` that ends with a whole special; "" if there is none.

    The common beginning is taken back to the last special such as ``<|im_end|>`` in it, because
    the few letters that two role names share by chance (``\\n\\n### ``, ``<|``) mark nothing.
    """
    low, high = (min(texts), max(texts)) if texts else ("", "")
    size = 0
    while size < min(len(low), len(high)) and low[size] == high[size]:
        size += 1
    common = low[:size]
    end = 0
    for found in _SPECIAL.finditer(common):
        end = found.end()
    while end and end < len(common) and common[end].isspace():
        end += 1
    return common[:end]


def confirmed_end(text: str, start: int, markers: tuple[str, ...]) -> int:
    """Offset up to which ``text[start:]`` cannot be the beginning of one of ``markers``."""
    end = len(text)
    for marker in markers:
        for size in range(min(len(marker) - 1, len(text) - start), 0, -1):
            if text.endswith(marker[:size]):
                end = min(end, len(text) - size)
                break
    return end
