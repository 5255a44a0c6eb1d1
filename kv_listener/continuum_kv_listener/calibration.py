"""Learns a chat template from what the engine makes of a few probe chats (decisions C22, C23).

Where the sentinels of the chats (``probe_chats``) come out again in the rendered text shows the
template's own words around them. Pure: answers in, a format out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from continuum_kv_listener.probe_chats import (
    DECOMPOSED,
    FILLER,
    FRAGILE,
    LEAD,
    SPACED,
    TRAIL,
    Probe,
    sentinel,
)
from continuum_kv_listener.prompt_format import PromptFormat
from continuum_kv_listener.prompt_literal import first_special, lead_marker
from continuum_kv_listener.template_limits import TemplateLimit
from continuum_kv_listener.template_literals import TemplateLiterals, build_format

_TOOL_START = re.compile(r"\[?\{\s*\"type\"\s*:|\[?\{\s*\"name\"\s*:|\[?\{\s*\"function\"\s*:")
_TOOL_REST = re.compile(r"^[\"'\]})\s,;]*")


class CalibrationFault(StrEnum):
    """Why no format could be learnt."""

    UNSUPPORTED = "unsupported"
    """Neither of the first two probes was rendered: the engine tokenizes no chats."""
    NO_SENTINEL = "no_sentinel"
    """Chats are rendered, but the text does not come back as it was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFailure:
    """No format, and why."""

    fault: CalibrationFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """A format with the literals behind it, and what it cannot read."""

    prompt_format: PromptFormat
    literals: TemplateLiterals
    limits: tuple[TemplateLimit, ...] = ()


def learn(rendered: Mapping[Probe, str | None], nonce: str) -> Learnt | CalibrationFailure:
    """Read the detokenized probes; None (or absent) is a probe that the template refuses.

    One of the first two probes, or the real chat, must have been rendered with its sentinels in it.
    """
    seen = {probe: text for probe, text in rendered.items() if text is not None}
    if not seen.keys() & {Probe.SYSTEM_USER, Probe.USER, Probe.REQUEST}:
        return CalibrationFailure(fault=CalibrationFault.UNSUPPORTED)
    student = _Student(nonce, seen)
    words = student.literals()
    if words.system_head is None and words.user_head is None:
        return CalibrationFailure(fault=CalibrationFault.NO_SENTINEL)
    prompt_format, limits = build_format(words)
    return Learnt(
        prompt_format=prompt_format, literals=words, limits=limits + tuple(student.limits)
    )


@dataclass(frozen=True, slots=True)
class _Span:
    """Where a sentinel's text, white space included, stands in a rendered probe."""

    start: int
    end: int
    trimmed: bool = False
    altered: bool = False


class _Student:
    """Reads the probes of one template."""

    def __init__(self, nonce: str, seen: Mapping[Probe, str]) -> None:
        self._seen = seen
        self._system = sentinel("sys", nonce)
        self._second = sentinel("two", nonce)
        self._user = sentinel("usr", nonce)
        self._tool = sentinel("tool", nonce)
        self._raw = sentinel("raw", nonce)
        self._end = sentinel("end", nonce)
        self._fin = sentinel("fin", nonce)
        self.limits: list[TemplateLimit] = []

    def literals(self) -> TemplateLiterals:
        """All literals that the probes show."""
        if Probe.REQUEST in self._seen:
            return self._request(TemplateLiterals())
        words = self._chats(TemplateLiterals())
        words = self._developer(self._two_systems(words))
        words = self._assistant(self._system_developer(words))
        words = self._user_tools(self._system_tools(words))
        return self._plain(words)

    def _chats(self, words: TemplateLiterals) -> TemplateLiterals:
        spans: dict[TemplateLimit, list[_Span]] = {}
        text = self._seen.get(Probe.USER, "")
        user = self._padded(text, self._user)
        if user is not None:
            spans[TemplateLimit.TRIMS_USER] = [user]
            words = replace(words, user_head=text[: user.start], user_to_reply=text[user.end :])
        text = self._seen.get(Probe.SYSTEM_USER, "")
        system = self._padded(text, self._system)
        user = self._padded(text, self._user)
        if system is not None and user is not None and system.end <= user.start:
            spans[TemplateLimit.TRIMS_SYSTEM] = [system]
            spans.setdefault(TemplateLimit.TRIMS_USER, []).append(user)
            words = replace(
                words,
                system_head=text[: system.start],
                system_to_user=text[system.end : user.start],
                user_to_reply=text[user.end :],
            )
        self.limits += [limit for limit, seen in spans.items() if any(s.trimmed for s in seen)]
        if any(span.altered for seen in spans.values() for span in seen):
            self.limits.append(TemplateLimit.ALTERS_TEXT)
        return words

    def _request(self, words: TemplateLiterals) -> TemplateLiterals:
        """The real chat: what it shows, and the user's head where the two roles read alike."""
        text = self._seen[Probe.REQUEST]
        system = self._padded(text, self._system)
        user = self._padded(text, self._user)
        reply = _locate(text, self._second)
        if system is None or user is None or reply is None:
            return words
        if not system.end <= user.start <= user.end <= reply.start:
            return words
        between = text[system.end : user.start]
        head = text[: system.start]
        if system.trimmed:
            self.limits.append(TemplateLimit.TRIMS_SYSTEM)
        if user.trimmed:
            self.limits.append(TemplateLimit.TRIMS_USER)
        if system.altered or user.altered:
            self.limits.append(TemplateLimit.ALTERS_TEXT)
        self.limits.append(TemplateLimit.ONE_CHAT)
        return replace(
            words,
            system_head=head,
            user_head=_users_head(head, between),
            system_to_user=between,
            user_to_reply=text[user.end : reply.start],
        )

    def _two_systems(self, words: TemplateLiterals) -> TemplateLiterals:
        text = self._seen.get(Probe.TWO_SYSTEMS, "")
        first = _locate(text, self._system)
        second = _locate(text, self._second)
        user = _locate(text, self._user)
        if words.system_head is None or first is None or second is None or user is None:
            return words
        if not first.end <= second.start <= second.end <= user.start:
            return words
        if TemplateLimit.TRIMS_SYSTEM in self.limits:
            # Without white space around the sentinels the border is exact.
            words = replace(
                words,
                system_head=text[: first.start],
                system_to_user=text[second.end : user.start],
            )
        return replace(words, system_to_system=text[first.end : second.start])

    def _developer(self, words: TemplateLiterals) -> TemplateLiterals:
        text = self._seen.get(Probe.DEVELOPER_USER, "")
        developer = _locate(text, self._system)
        user = _locate(text, self._user)
        if developer is None or user is None or developer.end > user.start:
            return words
        return replace(
            words,
            developer_head=text[: developer.start],
            developer_to_user=text[developer.end : user.start],
        )

    def _system_developer(self, words: TemplateLiterals) -> TemplateLiterals:
        text = self._seen.get(Probe.SYSTEM_DEVELOPER, "")
        system = _locate(text, self._system)
        developer = _locate(text, self._second)
        if words.system_head is None or system is None or developer is None:
            return words
        if not text.startswith(words.system_head) or system.end > developer.start:
            return words
        return replace(words, system_to_developer=text[system.end : developer.start])

    def _assistant(self, words: TemplateLiterals) -> TemplateLiterals:
        text = self._seen.get(Probe.ASSISTANT_FIRST, "")
        assistant = _locate(text, self._system)
        user = _locate(text, self._user)
        if assistant is None or user is None or assistant.end > user.start:
            return words
        head = text[: assistant.start]
        if head in (words.system_head, words.user_head):
            return words  # a template that knows no such role
        between = text[assistant.end : user.start]
        return replace(words, assistant_head=head, assistant_to_user=between)

    def _system_tools(self, words: TemplateLiterals) -> TemplateLiterals:
        text = self._seen.get(Probe.SYSTEM_USER_TOOL, "")
        system = _locate(text, self._system)
        if words.system_head is None or system is None:
            return words
        tools = self._tools(text)
        if tools is not None and tools.end <= system.start:
            return replace(
                words,
                tools_head=text[: tools.start],
                tools_to_system=text[tools.end : system.start],
            )
        if text[: system.start] != words.system_head:
            words = replace(words, system_with_tools_head=text[: system.start])
        if tools is not None and tools.start >= system.end:
            user = _locate(text, self._user)
            if user is None or tools.end <= user.start:
                words = replace(words, system_to_tools=text[system.end : tools.start])
        return words

    def _user_tools(self, words: TemplateLiterals) -> TemplateLiterals:
        text = self._seen.get(Probe.USER_TOOL, "")
        user = _locate(text, self._user)
        if user is None:
            return words
        tools = self._tools(text)
        if tools is not None and tools.end <= user.start:
            return replace(
                words,
                tools_user_head=text[: tools.start],
                tools_to_user=text[tools.end : user.start],
            )
        if text[: user.start] != words.user_head:
            words = replace(words, user_with_tools_head=text[: user.start])
        return words

    def _plain(self, words: TemplateLiterals) -> TemplateLiterals:
        text = self._seen.get(Probe.PLAIN, "")
        start, end = text.find(self._raw), text.find(self._end)
        if not 0 <= start < end:
            self.limits.append(TemplateLimit.NO_PLAIN_PROMPTS)
            return words
        between = text[start + len(self._raw) : end]
        if not between.startswith(SPACED):
            self.limits.append(TemplateLimit.CLEANS_SPACES)
        if not between.endswith(DECOMPOSED):
            self.limits.append(TemplateLimit.NORMALISES)
        return replace(words, raw_head=text[:start])

    def _padded(self, text: str, core: str) -> _Span | None:
        """Where a sentinel of two words stands, with as much of its white space as survived."""
        start = text.find(core)
        close = text.find(self._fin, start)
        if start < 0 or close < 0:
            return None
        end = close + len(self._fin)
        lead, trail = len(LEAD), len(TRAIL)
        whole = text.endswith(LEAD, 0, start) and text.startswith(TRAIL, end)
        # One blank alone may as well be the template's own.
        while lead > 1 and not text.endswith(LEAD[-lead:], 0, start):
            lead -= 1
        while trail > 1 and not text.startswith(TRAIL[:trail], end):
            trail -= 1
        return _Span(
            start - (lead if lead > 1 else 0),
            end + (trail if trail > 1 else 0),
            trimmed=not whole,
            altered=text[start + len(core) : close].removesuffix(FILLER) != FRAGILE,
        )

    def _tools(self, text: str) -> _Span | None:
        """The tool list around its sentinels, with the words that depend on the tool itself."""
        first, last = text.find(self._tool), text.rfind(self._tool)
        if first < 0:
            return None
        start = text.rfind("\n", 0, first) + 1
        for opening in _TOOL_START.finditer(text, 0, first):
            start = opening.start()
        end = last + len(self._tool)
        others = [text.find(core, end) for core in (self._system, self._user)]
        until = min((at for at in others if at >= 0), default=len(text))
        special = first_special(text[:until], end)
        if special >= 0:
            # Brackets, types and punctuation before the next special belong to the tool.
            return _Span(start, special)
        rest = _TOOL_REST.match(text[end:until])
        return _Span(start, end + (rest.end() if rest else 0))


def _users_head(system_head: str, between: str) -> str | None:
    """What a chat without a system text begins with, if only the role's name makes the difference.

    ``between`` shows how the template opens a user's turn; a head may have one special in front.
    """
    if system_head.count("system") != 1:
        return None
    twin = system_head.replace("system", "user")
    for at in range(twin.index("user") + 1):
        front = twin[:at]
        if between.endswith(twin[at:]) and (not front or lead_marker(front) == front):
            return twin
    return None


def _locate(text: str, core: str) -> _Span | None:
    """Where a sentinel of one word stands."""
    start = text.find(core)
    return None if start < 0 else _Span(start, start + len(core))
