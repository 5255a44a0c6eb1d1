"""From the literals of a chat template to a :class:`PromptFormat`.

Calibration learns the literals from probe chats, a named family has them written down; what
follows from them is worked out here once for both (decisions C22). Limits say what the resulting
format cannot do.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from continuum_kv_listener.prompt_format import Link, Opening, PromptFormat, Section
from continuum_kv_listener.prompt_literal import (
    Literal,
    first_marker_after,
    is_weak,
    lead_marker,
    structural_prefix,
)
from continuum_kv_listener.template_limits import TemplateLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateLiterals:
    """What a template writes around the texts of a chat; None where it has no such place.

    ``*_head`` run from the start of the prompt to the named text, the others stand between two
    texts. ``tools_*`` are those of chats with a tool list: ``tools_head`` leads to a tool list
    before every text, ``tools_user_head`` to one of a chat without a system text.
    """

    system_head: str | None = None
    user_head: str | None = None
    developer_head: str | None = None
    system_to_user: str | None = None
    system_to_system: str | None = None
    system_to_developer: str | None = None
    developer_to_user: str | None = None
    assistant_head: str | None = None
    assistant_to_user: str | None = None
    user_to_reply: str | None = None
    system_with_tools_head: str | None = None
    user_with_tools_head: str | None = None
    system_to_tools: str | None = None
    tools_head: str | None = None
    tools_to_system: str | None = None
    tools_user_head: str | None = None
    tools_to_user: str | None = None
    raw_head: str | None = None


def build_format(words: TemplateLiterals) -> tuple[PromptFormat, tuple[TemplateLimit, ...]]:
    """The format that reads prompts of this template, and what it cannot read.

    A text ends at the *structural end*, the common beginning of all that can follow a system text
    (system to user, system to system, user to reply), when it holds a whole special; else at the
    first special of each of those literals, or at the whole literal.
    """
    structural = _structural_end(words)
    system_ends, not_system = _system_ends(words, structural)
    exits = _tool_exits(words)
    openings = _openings(words)
    prompt_format = PromptFormat(
        openings=openings,
        system_ends=system_ends,
        not_system=not_system,
        user_ends=_user_ends(words, structural),
        assistant_ends=_assistant_ends(words, structural),
        system_links=_system_links(words),
        tool_exits=exits,
        raw_head=words.raw_head,
        chat_marks=_chat_marks(openings, words.raw_head),
    )
    return prompt_format, _limits(words)


def _structural_end(words: TemplateLiterals) -> str:
    if _weak(words.system_to_user):
        return ""
    followers = _distinct(
        _strong(
            words.system_to_user,
            words.developer_to_user,
            words.system_to_system,
            words.user_to_reply,
        )
    )
    # One literal alone does not show which of its words are structure and which are a role.
    return structural_prefix(list(followers)) if len(followers) > 1 else ""


def _weak(text: str | None) -> bool:
    return text is not None and is_weak(text)


def _strong(*texts: str | None) -> tuple[str, ...]:
    return tuple(text for text in texts if text is not None and not is_weak(text))


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _system_ends(
    words: TemplateLiterals, structural: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Marks that end a system text, and marks that show that it was none."""
    if words.system_head is None and words.developer_head is None:
        return (), ()
    tools = _strong(words.system_to_tools)
    if structural:
        own = tuple(text for text in tools if not text.startswith(structural))
        return (structural, *own), ()
    followers = _strong(
        words.system_to_user,
        words.developer_to_user,
        words.system_to_system,
        words.system_to_developer,
    )
    ends = [lead_marker(text) for text in followers]
    replies = [lead_marker(text) for text in _strong(words.user_to_reply)]
    ends += [text for text in tools if not any(text.startswith(end) for end in ends)]
    if _weak(words.system_to_user) and words.system_to_user:
        ends.append(words.system_to_user)
    if words.system_head == words.user_head:
        # The user's turn begins the same way: its end shows that there was no system text in it.
        return _distinct(ends), tuple(text for text in replies if text not in ends)
    return _distinct([*ends, *replies]), ()


def _user_ends(words: TemplateLiterals, structural: str) -> tuple[str, ...]:
    if structural:
        return (structural,)
    return tuple(lead_marker(text) for text in _strong(words.user_to_reply))


def _assistant_ends(words: TemplateLiterals, structural: str) -> tuple[str, ...]:
    if structural and (words.assistant_to_user or "").startswith(structural):
        return (structural,)
    return tuple(lead_marker(text) for text in _strong(words.assistant_to_user))


def _system_links(words: TemplateLiterals) -> tuple[Link, ...]:
    links: dict[str, Section] = {}
    for text in _strong(words.system_to_tools):
        links[text] = Section.TOOLS
    for text in _strong(words.system_to_system):
        links[text] = Section.SYSTEM
        for other in _role_variants(words, text):
            links.setdefault(other, Section.SYSTEM)
    for text in _strong(words.system_to_developer):
        links.setdefault(text, Section.SYSTEM)
    for between in (words.system_to_user, words.developer_to_user):
        if between:
            links.setdefault(between, Section.USER)
    ordered = sorted(links.items(), key=lambda item: -len(item[0]))
    return tuple(Link(literal=Literal.of(text), section=section) for text, section in ordered)


def _role_variants(words: TemplateLiterals, system_to_system: str) -> tuple[str, ...]:
    """``system_to_system`` with the developer's role name, when that is all that differs."""
    system, developer = words.system_head, words.developer_head
    if system is None or developer is None or system == developer:
        return ()
    same = 0
    while same < min(len(system), len(developer)) and system[same] == developer[same]:
        same += 1
    own = system[same:]
    if own and system_to_system.endswith(own):
        return (system_to_system[: -len(own)] + developer[same:],)
    return ()


def _openings(words: TemplateLiterals) -> tuple[Opening, ...]:
    heads: list[tuple[str | None, Section]] = [
        (words.system_head, Section.SYSTEM),
        (words.system_with_tools_head, Section.SYSTEM),
        (words.developer_head, Section.SYSTEM),
        (words.user_head, Section.USER),
        (words.user_with_tools_head, Section.USER),
        (words.assistant_head, Section.ASSISTANT),
        (words.tools_head, Section.TOOLS),
        (words.tools_user_head, Section.TOOLS),
    ]
    if _developer_as_user(words):
        heads = [
            (text, section)
            for text, section in heads
            if text != words.developer_head or section is not Section.SYSTEM
        ]
    found = dict.fromkeys((text, section) for text, section in heads if text is not None)
    return tuple(Opening(literal=Literal.of(text), section=section) for text, section in found)


def _developer_as_user(words: TemplateLiterals) -> bool:
    return (
        words.developer_head is not None
        and words.developer_head == words.user_head
        and words.developer_head != words.system_head
    )


def _tool_exits(words: TemplateLiterals) -> tuple[tuple[str, Section], ...]:
    exits: dict[str, Section] = {}
    for text in _strong(words.tools_to_system):
        exits[text] = Section.SYSTEM
    for text in _strong(words.tools_to_user):
        exits.setdefault(text, Section.USER)
    return tuple(exits.items())


def _chat_marks(openings: tuple[Opening, ...], raw_head: str | None) -> tuple[str, ...]:
    """Beginnings that a plain prompt does not have: raw head plus the first special behind it."""
    raw = raw_head or ""
    marks = []
    for opening in openings:
        head = opening.literal.head
        start = len(raw) if head.startswith(raw) else 0
        mark = first_marker_after(head, start)
        if len(mark) > start and not is_weak(mark[start:]):
            marks.append(mark)
    return _distinct(marks)


def _limits(words: TemplateLiterals) -> tuple[TemplateLimit, ...]:
    found: list[TemplateLimit] = []
    if words.system_head is None:
        found.append(TemplateLimit.NO_SYSTEM)
    elif _weak(words.system_to_user):
        found.append(TemplateLimit.WEAK_SYSTEM_END)
    if words.system_head is not None and (
        words.system_to_system is None
        or (is_weak(words.system_to_system) and words.system_to_system != "\n")
    ):
        found.append(TemplateLimit.SYSTEM_RUN)
    if _developer_as_user(words):
        found.append(TemplateLimit.DEVELOPER_AS_USER)
    if not _strong(words.user_to_reply):
        found.append(TemplateLimit.NO_REPLY_MARK)
    if words.tools_user_head is not None and not _strong(words.tools_to_user):
        found.append(TemplateLimit.TOOLS_IN_TURN)
    return tuple(found)
