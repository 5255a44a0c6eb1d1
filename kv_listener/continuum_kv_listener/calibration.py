"""Learns a chat template from what the engine makes of six probe chats (decisions C22, C23).

Each probe carries sentinels: words that no template writes. Where they come out again in the
rendered text shows the template's own words around them. The first two probes put white space
around their sentinels, so that a template which trims is noticed; the others do not, so that the
literals are exact even then. One plain prompt shows what the tokenizer itself adds or changes.

Pure: :func:`probe_chats` says what to ask, :func:`learn` reads the answers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from continuum_kv_listener.prompt_format import PromptFormat
from continuum_kv_listener.prompt_literal import first_special
from continuum_kv_listener.template_literals import TemplateLiterals, build_format

TRIMS_SYSTEM = (
    "the template trims system prompts: those with white space at either end are not attributed; "
    "consider salt echo"
)
TRIMS_USER = (
    "the template trims user messages: first messages with white space at either end are not "
    "attributed; consider salt echo"
)
CLEANS_SPACES = (
    "the tokenizer's decoder removes spaces before punctuation: prompts with such spaces are not "
    "attributed; consider salt echo"
)
NORMALISES = (
    "the tokenizer normalises Unicode: prompts with decomposed characters are not attributed; "
    "consider salt echo"
)
NO_PLAIN_PROMPTS = (
    "the engine does not tokenize plain prompts for us: /v1/completions prompts are not attributed"
)

_LEAD = "\n \n "
_TRAIL = " \n \n"
_SPACED = " , n't ."
_DECOMPOSED = "e\u0301 \u1112\u1161\u11ab"
_TOOL_START = re.compile(r"\[?\{\s*\"type\"\s*:|\[?\{\s*\"name\"\s*:|\[?\{\s*\"function\"\s*:")
_TOOL_REST = re.compile(r"^[\"'\]})\s,;]*")


class Probe(StrEnum):
    """The six chats and the plain prompt."""

    SYSTEM_USER = "system_user"
    USER = "user"
    TWO_SYSTEMS = "two_systems"
    DEVELOPER_USER = "developer_user"
    SYSTEM_USER_TOOL = "system_user_tool"
    USER_TOOL = "user_tool"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeChat:
    """One chat to be tokenized: OpenAI messages and, for some, OpenAI tools."""

    probe: Probe
    messages: tuple[Mapping[str, str], ...]
    tools: tuple[Mapping[str, object], ...] = ()


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
    warnings: tuple[str, ...] = ()


def probe_chats(nonce: str) -> tuple[ProbeChat, ...]:
    """The six probe chats; ``nonce`` (letters and digits) makes their sentinels unguessable."""
    system, second, user = _core("sys", nonce), _core("two", nonce), _core("usr", nonce)
    tool = _sentinel_tool(_core("tool", nonce))

    def chat(probe: Probe, *turns: tuple[str, str], tools: bool = False) -> ProbeChat:
        messages = tuple({"role": role, "content": text} for role, text in turns)
        return ProbeChat(probe=probe, messages=messages, tools=(tool,) if tools else ())

    return (
        chat(Probe.SYSTEM_USER, ("system", _padded(system)), ("user", _padded(user))),
        chat(Probe.USER, ("user", _padded(user))),
        chat(Probe.TWO_SYSTEMS, ("system", system), ("system", second), ("user", user)),
        chat(Probe.DEVELOPER_USER, ("developer", system), ("user", user)),
        chat(Probe.SYSTEM_USER_TOOL, ("system", system), ("user", user), tools=True),
        chat(Probe.USER_TOOL, ("user", user), tools=True),
    )


def plain_prompt(nonce: str) -> str:
    """A prompt for ``/tokenize`` without a chat: shows what the tokenizer adds and changes."""
    return _core("raw", nonce) + _SPACED + _DECOMPOSED + _core("end", nonce)


def learn(rendered: Mapping[Probe, str | None], nonce: str) -> Learnt | CalibrationFailure:
    """Read the detokenized probes; None (or absent) is a probe that the template refuses.

    One of the first two probes must have been rendered with its sentinels in it.
    """
    seen = {probe: text for probe, text in rendered.items() if text is not None}
    if Probe.SYSTEM_USER not in seen and Probe.USER not in seen:
        return CalibrationFailure(fault=CalibrationFault.UNSUPPORTED)
    student = _Student(nonce, seen)
    words = student.literals()
    if words.system_head is None and words.user_head is None:
        return CalibrationFailure(fault=CalibrationFault.NO_SENTINEL)
    prompt_format, limits = build_format(words)
    return Learnt(
        prompt_format=prompt_format, literals=words, warnings=limits + tuple(student.warnings)
    )


def _core(kind: str, nonce: str) -> str:
    return f"Zq{kind}{nonce}Qz"


def _padded(core: str) -> str:
    return _LEAD + core + _TRAIL


def _sentinel_tool(core: str) -> Mapping[str, object]:
    """A function tool whose first and last words are the sentinel, however it is written."""
    return {
        "type": "function",
        "function": {
            "name": core,
            "description": core,
            "parameters": {
                "type": "object",
                "properties": {core: {"type": "string", "description": core}},
                "required": [core],
            },
        },
    }


@dataclass(frozen=True, slots=True)
class _Span:
    """Where a sentinel's text, white space included, stands in a rendered probe."""

    start: int
    end: int
    trimmed: bool


class _Student:
    """Reads the probes of one template."""

    def __init__(self, nonce: str, seen: Mapping[Probe, str]) -> None:
        self._seen = seen
        self._system = _core("sys", nonce)
        self._second = _core("two", nonce)
        self._user = _core("usr", nonce)
        self._tool = _core("tool", nonce)
        self._raw = _core("raw", nonce)
        self._end = _core("end", nonce)
        self.warnings: list[str] = []

    def literals(self) -> TemplateLiterals:
        """All literals that the probes show."""
        words = self._chats(TemplateLiterals())
        words = self._developer(self._two_systems(words))
        words = self._user_tools(self._system_tools(words))
        return self._plain(words)

    def _chats(self, words: TemplateLiterals) -> TemplateLiterals:
        trims: dict[str, bool] = {}
        text = self._seen.get(Probe.USER, "")
        user = _locate(text, self._user, padded=True)
        if user is not None:
            trims[TRIMS_USER] = user.trimmed
            words = replace(words, user_head=text[: user.start], user_to_reply=text[user.end :])
        text = self._seen.get(Probe.SYSTEM_USER, "")
        system = _locate(text, self._system, padded=True)
        user = _locate(text, self._user, padded=True)
        if system is not None and user is not None and system.end <= user.start:
            trims[TRIMS_SYSTEM] = system.trimmed
            trims[TRIMS_USER] = user.trimmed or trims.get(TRIMS_USER, False)
            words = replace(
                words,
                system_head=text[: system.start],
                system_to_user=text[system.end : user.start],
                user_to_reply=text[user.end :],
            )
        self.warnings += [warning for warning, trimmed in trims.items() if trimmed]
        return words

    def _two_systems(self, words: TemplateLiterals) -> TemplateLiterals:
        text = self._seen.get(Probe.TWO_SYSTEMS, "")
        first = _locate(text, self._system)
        second = _locate(text, self._second)
        user = _locate(text, self._user)
        if words.system_head is None or first is None or second is None or user is None:
            return words
        if not first.end <= second.start <= second.end <= user.start:
            return words
        if TRIMS_SYSTEM in self.warnings:
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
            self.warnings.append(NO_PLAIN_PROMPTS)
            return words
        between = text[start + len(self._raw) : end]
        if not between.startswith(_SPACED):
            self.warnings.append(CLEANS_SPACES)
        if not between.endswith(_DECOMPOSED):
            self.warnings.append(NORMALISES)
        return replace(words, raw_head=text[:start])

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
            return _Span(start, special, trimmed=False)
        rest = _TOOL_REST.match(text[end:until])
        return _Span(start, end + (rest.end() if rest else 0), trimmed=False)


def _locate(text: str, core: str, *, padded: bool = False) -> _Span | None:
    """Where a sentinel stands; for a padded one, with as much of its white space as survived."""
    start = text.find(core)
    if start < 0:
        return None
    end = start + len(core)
    if not padded:
        return _Span(start, end, trimmed=False)
    lead, trail = len(_LEAD), len(_TRAIL)
    whole = text.endswith(_LEAD, 0, start) and text.startswith(_TRAIL, end)
    # One blank alone may as well be the template's own.
    while lead > 1 and not text.endswith(_LEAD[-lead:], 0, start):
        lead -= 1
    while trail > 1 and not text.startswith(_TRAIL[:trail], end):
        trail -= 1
    return _Span(
        start - (lead if lead > 1 else 0), end + (trail if trail > 1 else 0), trimmed=not whole
    )
