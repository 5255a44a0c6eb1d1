"""The canonical text of a prompt: equal beginnings in the engine are equal beginnings here.

design/routing.md 6.2: tools, system, then each message as role, separator, content. It is not what
an engine's template renders, and need not be: it only has to grow at its end when a conversation
grows, and to differ where the rendered prompt differs. Images and the like enter as a digest of
their reference. Pure and total: an odd body gives an odd text, never an exception.
"""

import json
from array import array
from collections.abc import Mapping, Sequence

import orjson

from continuum_router.request import Endpoint
from continuum_shared.prefix_key import cut_utf8, media_digest

ROLE, CONTENT, REST, TOOLS = "\x00", "\x01", "\x02", "\x03"
"""What stands before each part. Text may hold them too; then two prompts may look alike, and the
worst of it is a request at an engine which holds less than was thought."""

_IN_TEXT = frozenset({"role", "content", "cache_control"})
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


class PromptText:
    """Collects the text; ``data`` are its bytes, ``media`` where the media parts stand."""

    __slots__ = ("_done", "_parts", "media")

    def __init__(self) -> None:
        self.media: list[int] = []
        self._done = b""
        self._parts: list[str] = []

    @property
    def data(self) -> bytes:
        """The UTF-8 text so far."""
        if self._parts:
            self._done += _encode("".join(self._parts))
            self._parts = []
        return self._done

    def add(self, *parts: str) -> None:
        """Append."""
        self._parts.extend(parts)

    def messages(self, messages: Sequence[object]) -> None:
        """Append each message."""
        parts = self._parts
        for message in messages:
            # Nearly all are of this kind, and a decision is counted in microseconds.
            if type(message) is dict and len(message) == 2:
                role, content = message.get("role"), message.get("content")
                if type(role) is str and type(content) is str:
                    parts += (ROLE, role, CONTENT, content)
                    continue
            self.message(message)
            parts = self._parts

    def message(self, message: object) -> None:
        """Append one message: role, content, then what else it has (tool calls, a name)."""
        if not isinstance(message, Mapping):
            self.add(ROLE, CONTENT, _dump(message))
            return
        role, content = message.get("role"), message.get("content")
        self.add(ROLE, role if isinstance(role, str) else _dump(role), CONTENT)
        self.content(content)
        if len(message) > 2:
            rest = {key: value for key, value in message.items() if key not in _IN_TEXT}
            if rest:
                self.add(REST, _dump(rest))

    def content(self, content: object) -> None:
        """Append a message's content: a string, or parts."""
        if isinstance(content, str):
            self.add(content)
        elif isinstance(content, Sequence):
            for part in content:
                self._part(part)
        elif content is not None:
            self.add(_dump(content))

    def _part(self, part: object) -> None:
        if isinstance(part, str):
            self.add(part, "\n")
            return
        if isinstance(part, Mapping):
            text = part.get("text")
            if part.get("type", "text") in _TEXT_PARTS and isinstance(text, str):
                self.add(text, "\n")
                return
            digest = media_digest(part)
            if digest:
                self.media.append(len(self.data))
                self.add(digest, "\n")
                return
        self.add(_dump(part))


def prompt_text(endpoint: Endpoint, body: Mapping[str, object]) -> PromptText | None:
    """The text of a request; ``None`` where an endpoint has no prompt or the body holds none."""
    text = PromptText()
    if endpoint is Endpoint.COMPLETIONS:
        return text if _prompt(text, body.get("prompt")) else None
    if endpoint is Endpoint.CHAT:
        messages = body.get("messages")
    elif endpoint is Endpoint.RESPONSES:
        messages = body.get("input")
        if isinstance(messages, str):
            messages = ({"role": "user", "content": messages},)
    else:
        return None
    if not isinstance(messages, Sequence):
        return None
    tools = body.get("tools")
    if tools:
        text.add(TOOLS, _dump(tools))
    instructions = body.get("instructions")
    if endpoint is Endpoint.RESPONSES and isinstance(instructions, str):
        text.add(ROLE, "system", CONTENT, instructions)
    text.messages(messages)
    return text


def _prompt(text: PromptText, prompt: object) -> bool:
    """Append a completion's prompt, the first one of a batch; tokens as four bytes each."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        text.add(prompt)
        return bool(prompt)
    if not isinstance(prompt, list) or not prompt:
        return False
    try:
        tokens = array("I", prompt).tobytes()
    except (TypeError, OverflowError):
        return False
    text.add(tokens.decode("latin-1"))
    return True


def _dump(value: object) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        # Unpaired surrogates and whole numbers beyond 64 bits.
        return json.dumps(value, sort_keys=True, default=str)


def _encode(text: str) -> bytes:
    return cut_utf8(text, len(text) * 4)
