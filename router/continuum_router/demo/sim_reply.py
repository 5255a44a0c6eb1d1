"""The JSON and SSE shapes of the simulated engine's answers. Pure."""

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass

from continuum_router.demo import sim_tokenizer
from continuum_router.demo.sim_request import Generation

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """What all parts of one answer share. `created` is in seconds since the epoch."""

    id: str
    created: int
    generation: Generation

    def whole(self, answer: Sequence[int], cached_tokens: int) -> dict[str, object]:
        """A complete answer, not streamed."""
        asked = self.generation
        text = sim_tokenizer.decode(answer)
        choice: dict[str, object] = {"index": 0, "logprobs": None}
        if asked.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        choice["finish_reason"] = asked.finish_reason
        kind = "chat.completion" if asked.chat else "text_completion"
        usage = self._usage(len(answer), cached_tokens)
        return {**self._envelope(kind), "choices": [choice], "usage": usage}

    def first_chunk(self) -> bytes:
        """A chat stream begins with the role alone; a completions stream with nothing."""
        if not self.generation.chat:
            return b""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None)

    def text_chunk(self, text: str, *, last: bool) -> bytes:
        """One piece of the answer; the last one carries the finish reason."""
        body: dict[str, object] = (
            {"delta": {"content": text}} if self.generation.chat else {"text": text}
        )
        return self._chunk(body, self.generation.finish_reason if last else None)

    def usage_chunk(self, completion_tokens: int, cached_tokens: int) -> bytes:
        """The extra last chunk of a stream that asked for usage."""
        usage = self._usage(completion_tokens, cached_tokens)
        return _event({**self._envelope(self._chunk_kind()), "choices": [], "usage": usage})

    def _chunk(self, body: dict[str, object], finish_reason: str | None) -> bytes:
        choice = {"index": 0, **body, "logprobs": None, "finish_reason": finish_reason}
        return _event({**self._envelope(self._chunk_kind()), "choices": [choice]})

    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.generation.chat else "text_completion"

    def _envelope(self, kind: str) -> dict[str, object]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.generation.model,
        }

    def _usage(self, completion_tokens: int, cached_tokens: int) -> dict[str, object]:
        prompt_tokens = len(self.generation.prompt)
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        }


class TextPieces:
    """Turns tokens into text one by one, holding back bytes of an unfinished character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int, *, last: bool) -> str:
        """The text that this token completes; everything that is left when it is the last."""
        return self._decoder.decode(sim_tokenizer.piece_bytes(token), final=last)


def error_body(status: int, message: str, kind: str) -> dict[str, object]:
    """An error as engines shape it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _event(body: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
