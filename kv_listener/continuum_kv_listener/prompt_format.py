"""Reads the keyed text back out of a rendered prompt.

The engine's blocks hold a rendered prompt: the template's own words around the client's system
text and first message. :func:`parse` knows those words (a :class:`PromptFormat`, learnt or named)
and gives back the texts that the router hashes (decisions A2, A5, A18, C21, C22).

It is a pure function of the text so far, and *monotone*: cutting the text anywhere never yields
another key, only fewer of them. Where one text can be read in two ways (Gemma and older Mistral
templates write the system text into the user turn), both keys are found: both requests make
exactly these tokens, so both are true.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import StrEnum

from continuum_kv_listener.attribution_types import UnattributedReason
from continuum_kv_listener.prompt_literal import (
    MISMATCH,
    PARTIAL,
    Literal,
    confirmed_end,
    opens_with_special,
)
from continuum_shared.prefix_key import KeyTag, KeyText, cut_utf8

MEDIA_PLACEHOLDERS = (
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_pad|>",
    "<|media_pad|>",
    "<|vision_start|>",
    "<|image|>",
    "<|video|>",
    "<|audio|>",
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|image_1|>",
    "<|audio_1|>",
    "<start_of_image>",
    "<image_soft_token>",
    "<audio_soft_token>",
    "<IMG_CONTEXT>",
    "[IMG]",
    "[AUDIO]",
)
"""What templates write where an image, a video or a sound stood (decisions A3)."""

REPLACEMENT = "\ufffd"


class Section(StrEnum):
    """What the text behind a literal is."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    """A first message of the assistant's: it anchors a chat as a user's does (decisions A2)."""
    TOOLS = "tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a prompt can begin, and which section the beginning leads to."""

    literal: Literal
    section: Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What can stand between two sections, and which section follows."""

    literal: Literal
    section: Section


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFormat:
    """The words of one chat template, as far as attribution needs them.

    ``system_ends``, ``user_ends`` and ``assistant_ends`` are the marks that end a text of that
    kind; the earliest one wins. ``not_system`` are marks that show that what was read as a system
    text was none. ``system_links`` tell what follows an ended system text (longest literal first).
    ``tool_exits`` lead out of a tool list that stands before the keyed text.
    ``raw_head`` is what the tokenizer puts before a plain prompt; None when such prompts cannot be
    read. ``chat_marks`` are beginnings that only a chat has.
    """

    openings: tuple[Opening, ...]
    system_ends: tuple[str, ...] = ()
    not_system: tuple[str, ...] = ()
    user_ends: tuple[str, ...] = ()
    assistant_ends: tuple[str, ...] = ()
    system_links: tuple[Link, ...] = ()
    tool_exits: tuple[tuple[str, Section], ...] = ()
    raw_head: str | None = None
    chat_marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A keyed text (cut at the prefix length) that is complete in ``text[:end]`` and not before."""

    key_text: KeyText
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What a text says so far.

    ``complete`` means that no longer text could add a key. ``reason`` is only set when it is
    complete and nothing was found although something should have been. ``foreign`` means that the
    text begins with a special as chats do, but as no chat of this format: another template, or a
    plain prompt that was written so.
    """

    found: tuple[Found, ...] = ()
    complete: bool
    reason: UnattributedReason | None = None
    foreign: bool = False


def parse(prompt_format: PromptFormat, text: str, max_prefix_length: int) -> Parsed:
    """Find every keyed text of a prompt whose beginning is ``text``.

    ``max_prefix_length`` is in bytes of UTF-8. ``text`` may end inside a character: the U+FFFD
    that a detokenizer then writes at the end is not read.
    """
    reading = _read(prompt_format, text, max_prefix_length)
    found = [
        Found(key_text=key_text, end=_first_end(prompt_format, text, max_prefix_length, key_text))
        for key_text in reading.keys
    ]
    found.sort(key=lambda item: item.end)
    reason = None
    if not reading.keys and not reading.open:
        if reading.unsupported:
            reason = UnattributedReason.UNSUPPORTED_CONTENT
        elif not reading.matched:
            reason = UnattributedReason.NO_MATCH
    return Parsed(
        found=tuple(found), complete=not reading.open, reason=reason, foreign=reading.foreign
    )


def _first_end(prompt_format: PromptFormat, text: str, limit: int, key_text: KeyText) -> int:
    """Length of the shortest beginning of ``text`` that has the key (reading is monotone)."""

    def has_key(size: int) -> bool:
        return key_text in _read(prompt_format, text[:size], limit).keys

    return bisect_left(range(len(text)), True, key=has_key)


@dataclass(slots=True)
class _Reading:
    """Result under construction of one pass over one text.

    ``closed`` is the offset behind the mark that ended the alternative's first text.
    """

    keys: list[KeyText] = field(default_factory=list)
    open: bool = False
    matched: bool = False
    unsupported: bool = False
    foreign: bool = False
    closed: int | None = None

    def absorb(self, other: "_Reading") -> None:
        self.keys.extend(key for key in other.keys if key not in self.keys)
        self.open = self.open or other.open
        self.unsupported = self.unsupported or other.unsupported
        self.matched = True

    def add(self, tag: KeyTag, text: str, limit: int) -> None:
        cut = cut_utf8(text, limit).decode()
        if any(mark in cut for mark in MEDIA_PLACEHOLDERS):
            self.unsupported = True
        elif cut:
            self.keys.append(KeyText(tag=tag, text=cut))


def _read(prompt_format: PromptFormat, text: str, limit: int) -> _Reading:
    text = text.rstrip(REPLACEMENT)
    reading = _Reading()
    states = [(opening, opening.literal.match(text)) for opening in prompt_format.openings]
    undecided = any(at == PARTIAL for _, at in states)
    reading.open = undecided
    for opening, at in states:
        if at >= 0:
            branch = _read_section(prompt_format, opening.section, text, at, limit)
            _shadow(branch, opening, states)
            reading.absorb(branch)
    _read_raw(prompt_format, text, limit, reading, undecided)
    return reading


def _shadow(branch: _Reading, opening: Opening, states: list[tuple[Opening, int]]) -> None:
    """Drop from ``branch`` what a longer opening explains better.

    ``<system>`` begins ``<system># Tools …`` too; while the text may still become the longer one,
    or has, only a text that was ended inside the longer one's own words is a system text.
    """
    if opening.section is Section.TOOLS:
        return
    for other, at in states:
        if at == MISMATCH or not other.literal.extends(opening.literal):
            continue
        if branch.closed is not None and (at == PARTIAL or branch.closed < at):
            continue
        branch.keys.clear()
        branch.unsupported = False
        # A partial longer opening keeps the whole reading open by itself.
        branch.open = False


def _read_section(
    prompt_format: PromptFormat, section: Section, text: str, at: int, limit: int
) -> _Reading:
    if section is Section.SYSTEM:
        return _read_system(prompt_format, text, at, limit)
    if section is Section.USER:
        return _read_first(prompt_format.user_ends, text, at, limit)
    if section is Section.ASSISTANT:
        return _read_first(prompt_format.assistant_ends, text, at, limit)
    return _read_tools(prompt_format, text, at, limit)


def _read_system(prompt_format: PromptFormat, text: str, at: int, limit: int) -> _Reading:
    """Read a run of system sections, joined with a newline (decisions A2)."""
    reading = _Reading()
    marks = prompt_format.system_ends + prompt_format.not_system
    sections: list[str] = []
    while True:
        end, mark = _earliest(text, at, marks)
        if end < 0:
            sections.append(text[at : confirmed_end(text, at, marks)])
            _add_if_covered(reading, KeyTag.SYSTEM, "\n".join(sections), limit)
            return reading
        if reading.closed is None:
            reading.closed = end
        sections.append(text[at:end])
        joined = "\n".join(sections)
        if mark in prompt_format.not_system:
            # Unless the mark came too late to change the cut text.
            if _covers(joined, limit):
                reading.add(KeyTag.SYSTEM, joined, limit)
            return reading
        following, at = _follow(prompt_format.system_links, text, end)
        if following is Section.SYSTEM and at != PARTIAL and not _covers(joined, limit):
            continue
        if any(sections) and (following is not Section.SYSTEM or _covers(joined, limit)):
            reading.add(KeyTag.SYSTEM, joined, limit)
        elif at == PARTIAL:
            reading.open = True
        elif following is Section.USER:
            # An empty system text anchors nothing: the first message does (prefix_key).
            user = _read_first(prompt_format.user_ends, text, at, limit)
            reading.absorb(user)
            reading.closed = user.closed
        return reading


def _follow(links: tuple[Link, ...], text: str, at: int) -> tuple[Section | None, int]:
    """Which section follows the mark at ``at``, and where it begins (PARTIAL: not known yet).

    While a further system section is still possible, that is the answer: it is the one which
    would change the text.
    """
    possible = [(link, link.literal.match(text, at)) for link in links]
    possible = [(link, end) for link, end in possible if end != MISMATCH]
    if not possible:
        return None, MISMATCH
    link, end = possible[0]
    if end == PARTIAL and any(other.section is Section.SYSTEM for other, _ in possible):
        return Section.SYSTEM, PARTIAL
    return link.section, end


def _read_first(ends: tuple[str, ...], text: str, at: int, limit: int) -> _Reading:
    """Read a first message."""
    reading = _Reading()
    end, _ = _earliest(text, at, ends)
    if end >= 0:
        reading.closed = end
        reading.add(KeyTag.FIRST_MESSAGE, text[at:end], limit)
        return reading
    sure = text[at : confirmed_end(text, at, ends)]
    _add_if_covered(reading, KeyTag.FIRST_MESSAGE, sure, limit)
    return reading


def _read_tools(prompt_format: PromptFormat, text: str, at: int, limit: int) -> _Reading:
    """Skip a tool list and read what stands behind it."""
    exits = dict(prompt_format.tool_exits)
    if not exits:
        return _Reading(unsupported=True)
    end, mark = _earliest(text, at, tuple(exits))
    if end < 0 or any(other != mark and other.startswith(text[end:]) for other in exits):
        return _Reading(open=True)
    return _read_section(prompt_format, exits[mark], text, end + len(mark), limit)


def _read_raw(
    prompt_format: PromptFormat, text: str, limit: int, reading: _Reading, undecided: bool
) -> None:
    """Read ``text`` as a plain completions prompt, unless it is a chat (decisions A5, C21).

    A prompt shorter than the key's length cannot be told from the answer behind it, so it stays
    open for ever.
    """
    raw_head = prompt_format.raw_head
    if raw_head is None or any(text.startswith(mark) for mark in prompt_format.chat_marks):
        return
    waiting = any(mark.startswith(text) for mark in (*prompt_format.chat_marks, raw_head))
    if undecided or waiting:
        reading.open = True
        return
    if not text.startswith(raw_head):
        return
    start = len(raw_head)
    if reading.matched:
        # A template without an opening of its own: its marks alone show that this is a chat.
        marks = prompt_format.system_ends + prompt_format.user_ends
        end, _ = _earliest(text, start, marks)
        if end < 0:
            text = text[: confirmed_end(text, start, marks)]
        elif _covers(text[start:end], limit):
            text = text[:end]
        else:
            return
    else:
        reading.foreign = opens_with_special(text, start)
    raw = _Reading()
    _add_if_covered(raw, KeyTag.FIRST_MESSAGE, text[start:], limit)
    reading.absorb(raw)


def _earliest(text: str, start: int, marks: tuple[str, ...]) -> tuple[int, str]:
    """Offset and mark of the earliest of ``marks`` (the longer one on a tie); (-1, "") if none."""
    best, best_mark = -1, ""
    for mark in marks:
        at = text.find(mark, start)
        if at >= 0 and (best < 0 or (at, -len(mark)) < (best, -len(best_mark))):
            best, best_mark = at, mark
    return best, best_mark


def _covers(text: str, limit: int) -> bool:
    """Whether the cut text can no longer change, whatever follows."""
    return len(text) >= limit or len(text.encode("utf-8", "surrogatepass")) >= limit


def _add_if_covered(reading: _Reading, tag: KeyTag, text: str, limit: int) -> None:
    if _covers(text, limit):
        reading.add(tag, text, limit)
    else:
        reading.open = True
