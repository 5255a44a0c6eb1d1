"""The simulated engine's tokenizer: deterministic, without a vocabulary file, and reversible.

A text is cut at the special tokens, then into pieces of one to three UTF-8 bytes; a piece's
bytes *are* its token id. So every id below `VOCABULARY` decodes, every text comes back byte for
byte when it is decoded as a whole, and a decode of half a character gives U+FFFD, as real
byte-level tokenizers do (wire notes, "/detokenize").

A line break is always a piece of its own. Hence a chat prompt that ends in ``assistant\\n`` plus
the tokens of an answer equals the tokens of the same chat with the answer written into it, and
the next turn finds the answer's blocks in the cache.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

END_OF_TEXT: Final = 0
TURN_START: Final = 1
TURN_END: Final = 2

_SPECIALS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_SPECIAL_IDS: Final = {text: token for token, text in enumerate(_SPECIALS)}
_SPECIAL_SPLIT: Final = re.compile("(" + "|".join(re.escape(text) for text in _SPECIALS) + ")")
_PIECE: Final = re.compile(rb"\n|[^\n]{1,3}", re.DOTALL)

# First id of the pieces of one, two and three bytes, and the end of all ids.
_FIRST_ID: Final = (0, 16, 16 + 2**8, 16 + 2**8 + 2**16)
VOCABULARY: Final = 16 + 2**8 + 2**16 + 2**24


def encode(text: str) -> list[int]:
    """Token ids of `text`. Special tokens written in the text become their own ids.

    Unpaired surrogates, which JSON can carry, count as U+FFFD.
    """
    tokens: list[int] = []
    for part in _SPECIAL_SPLIT.split(text):
        special = _SPECIAL_IDS.get(part)
        if special is not None:
            tokens.append(special)
            continue
        pieces = _PIECE.findall(_utf8(part))
        tokens.extend(_FIRST_ID[len(piece)] + int.from_bytes(piece) for piece in pieces)
    return tokens


def decode(tokens: Iterable[int]) -> str:
    """Text of `tokens`, special tokens kept. Ids beyond the vocabulary give nothing.

    Raises ValueError for a negative id.
    """
    return b"".join(map(piece_bytes, tokens)).decode("utf-8", "replace")


def piece_bytes(token: int) -> bytes:
    """The bytes that one token stands for. Raises ValueError for a negative id."""
    if token < 0:
        raise ValueError("token ids must not be negative")
    if token < len(_SPECIALS):
        return _SPECIALS[token].encode()
    for length in (3, 2, 1):
        if token >= _FIRST_ID[length]:
            value = token - _FIRST_ID[length]
            return value.to_bytes(length) if token < VOCABULARY else b""
    return b""


def render_chat(
    messages: Sequence[Mapping[str, object]],
    *,
    tools: Sequence[object] = (),
    add_generation_prompt: bool = True,
) -> str:
    """The chat as the engine's template writes it: ChatML, tools in a section of their own."""
    parts: list[str] = []
    if tools:
        listed = "".join(json.dumps(tool, ensure_ascii=False) + "\n" for tool in tools)
        parts.append(f"<|im_start|>system\n# Tools\n{listed}<|im_end|>\n")
    for message in messages:
        text = content_text(message.get("content"))
        parts.append(f"<|im_start|>{message.get('role', '')}\n{text}<|im_end|>\n")
    if add_generation_prompt:
        parts.append("<|im_start|>assistant\n")
    return "".join(parts)


def content_text(content: object) -> str:
    """A message's text: a string as it is, the text parts of a list joined with a newline."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join("�" if "\ud800" <= c <= "\udfff" else c for c in text).encode("utf-8")
