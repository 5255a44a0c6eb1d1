"""The chats that are rendered to learn a template, and the words in them (decisions C22).

Each carries sentinels: words that no template writes. The first two chats put white space and
fragile characters around and into theirs, so that a template which trims or escapes is noticed; the
others do not, so that the literals are exact even then. One plain prompt shows what the tokenizer
itself adds or changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

LEAD = "\n \n "
TRAIL = " \n \n"
FRAGILE = '"q" it\'s <b>a&b</b>\tx\\y {z}\n\n가나 🙂 é '
"""What templates escape, fold or lose inside a text, between the two words of a sentinel."""
SPACED = " , n't ."
DECOMPOSED = "e\u0301 \u1112\u1161\u11ab"
FILLER = "one two three four five six " * 40


class Probe(StrEnum):
    """The chats and the plain prompt."""

    SYSTEM_USER = "system_user"
    USER = "user"
    TWO_SYSTEMS = "two_systems"
    DEVELOPER_USER = "developer_user"
    SYSTEM_USER_TOOL = "system_user_tool"
    USER_TOOL = "user_tool"
    SYSTEM_DEVELOPER = "system_developer"
    ASSISTANT_FIRST = "assistant_first"
    PLAIN = "plain"
    REQUEST = "request"
    """One real chat, for engines that render none (:func:`request_chat`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeChat:
    """One chat to be tokenized: OpenAI messages and, for some, OpenAI tools."""

    probe: Probe
    messages: tuple[Mapping[str, str], ...]
    tools: tuple[Mapping[str, object], ...] = ()


def probe_chats(nonce: str) -> tuple[ProbeChat, ...]:
    """The probe chats, the six of decisions C22 first.

    ``nonce`` (letters and digits) makes their sentinels unguessable.
    """
    system, second, user = sentinel("sys", nonce), sentinel("two", nonce), sentinel("usr", nonce)
    whole_system, whole_user = _padded(system, nonce), _padded(user, nonce)
    tool = _sentinel_tool(sentinel("tool", nonce))

    def chat(probe: Probe, *turns: tuple[str, str], tools: bool = False) -> ProbeChat:
        messages = tuple({"role": role, "content": text} for role, text in turns)
        return ProbeChat(probe=probe, messages=messages, tools=(tool,) if tools else ())

    return (
        chat(Probe.SYSTEM_USER, ("system", whole_system), ("user", whole_user)),
        chat(Probe.USER, ("user", whole_user)),
        chat(Probe.TWO_SYSTEMS, ("system", system), ("system", second), ("user", user)),
        chat(Probe.DEVELOPER_USER, ("developer", system), ("user", user)),
        chat(Probe.SYSTEM_USER_TOOL, ("system", system), ("user", user), tools=True),
        chat(Probe.USER_TOOL, ("user", user), tools=True),
        chat(Probe.SYSTEM_DEVELOPER, ("system", system), ("developer", second), ("user", user)),
        chat(Probe.ASSISTANT_FIRST, ("assistant", system), ("user", user)),
    )


def request_chat(nonce: str) -> tuple[Mapping[str, str], ...]:
    """One chat whose template words stand between texts of several blocks each."""

    def turn(role: str, word: str) -> Mapping[str, str]:
        text = LEAD + sentinel(word, nonce) + FRAGILE + FILLER + sentinel("fin", nonce) + TRAIL
        return {"role": role, "content": text}

    return (
        turn("system", "sys"),
        turn("user", "usr"),
        {"role": "assistant", "content": sentinel("two", nonce)},
        {"role": "user", "content": FILLER},
    )


def plain_prompt(nonce: str) -> str:
    """A prompt for ``/tokenize`` without a chat: shows what the tokenizer adds and changes."""
    return sentinel("raw", nonce) + SPACED + DECOMPOSED + sentinel("end", nonce)


def sentinel(kind: str, nonce: str) -> str:
    return f"Zq{kind}{nonce}Qz"


def _padded(core: str, nonce: str) -> str:
    return LEAD + core + FRAGILE + sentinel("fin", nonce) + TRAIL


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
