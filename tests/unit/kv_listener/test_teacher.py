"""The ways to a prompt format, in their order (decisions C22)."""

import random
from collections.abc import Mapping, Sequence

import pytest

from continuum_kv_listener.attribution_types import AttributionMode
from continuum_kv_listener.engine_client import EngineError, EngineFault
from continuum_kv_listener.request_probe import RequestProbe
from continuum_kv_listener.teacher import Lesson, NotLearnt, Teacher
from support.chat_templates import CHATML, render
from support.tiny_engine import TinyEngine

PROBE, TOKENIZER = AttributionMode.PROBE, AttributionMode.TOKENIZER
DOWN = EngineError(EngineFault.UNREACHABLE, "/tokenize")
NO_CHATS = EngineError(EngineFault.UNSUPPORTED, "/tokenize", 422)


class Text:
    """An engine in memory; ``fault`` is what its chats raise, ``said`` what texts become."""

    def __init__(self, fault: EngineError | None = None, said: str | None = None) -> None:
        self._tiny = TinyEngine(template=CHATML)
        self._fault = fault
        self._said = said

    async def tokenize_chat(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        if self._fault is not None:
            raise self._fault
        return self._tiny.encode_chat(messages, tools)

    async def tokenize_prompt(self, prompt: str) -> list[int]:
        return self._tiny.encode(prompt)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return self._tiny.decode(list(tokens)) if self._said is None else self._said


class Sender:
    """Answers with the chat itself, or with ``fault``."""

    def __init__(self, fault: EngineError | None = None) -> None:
        self.fault = fault
        self.probe = RequestProbe(self, rng=random.Random(1), patience=0.01)
        self.silent = False

    async def chat(self, messages: Sequence[Mapping[str, str]]) -> None:
        if self.fault is not None:
            raise self.fault
        if not self.silent:
            self.probe.offer(render(CHATML, messages))


async def taught(
    *ways: tuple[AttributionMode, Text], request: Sender | None = None
) -> AttributionMode | NotLearnt:
    probe = None if request is None else request.probe
    lesson = await Teacher(ways, rng=random.Random(2), request=probe).teach()
    return lesson.mode if isinstance(lesson, Lesson) else lesson


@pytest.mark.parametrize(
    ("ways", "expected"),
    [
        ([(PROBE, Text()), (TOKENIZER, Text())], PROBE),
        ([(PROBE, Text(NO_CHATS)), (TOKENIZER, Text())], TOKENIZER),
        ([(PROBE, Text(DOWN)), (TOKENIZER, Text())], TOKENIZER),
        ([(PROBE, Text(said="nonsense")), (TOKENIZER, Text())], TOKENIZER),
        ([(PROBE, Text(NO_CHATS)), (TOKENIZER, Text(NO_CHATS))], NotLearnt.NOT_SUPPORTED),
        ([(PROBE, Text(DOWN)), (TOKENIZER, Text(NO_CHATS))], NotLearnt.NOT_ANSWERING),
        ([(PROBE, Text(said="nonsense"))], NotLearnt.NOT_READABLE),
        ([], NotLearnt.NO_TEXT),
    ],
)
async def test_the_first_way_that_works(
    ways: list[tuple[AttributionMode, Text]], expected: AttributionMode | NotLearnt
) -> None:
    assert await taught(*ways) is expected


async def test_a_real_chat_comes_last() -> None:
    sender = Sender()
    assert await taught((PROBE, Text()), request=sender) is PROBE
    assert await taught((PROBE, Text(NO_CHATS)), request=sender) is AttributionMode.REQUEST
    assert await taught((PROBE, Text(DOWN)), request=sender) is NotLearnt.NOT_ANSWERING


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (None, NotLearnt.NOT_ECHOED),
        (EngineError(EngineFault.UNSUPPORTED, "/v1/chat/completions"), NotLearnt.NOT_SUPPORTED),
        (EngineError(EngineFault.REFUSED, "/v1/chat/completions", 401), NotLearnt.NOT_SUPPORTED),
        (EngineError(EngineFault.REFUSED, "/v1/chat/completions", 503), NotLearnt.NOT_ANSWERING),
    ],
)
async def test_why_a_real_chat_taught_nothing(
    fault: EngineError | None, expected: NotLearnt
) -> None:
    sender = Sender(fault)
    sender.silent = True
    assert await taught((PROBE, Text(NO_CHATS)), request=sender) is expected


def test_only_an_engine_that_does_not_answer_is_asked_again_soon() -> None:
    assert [fault for fault in NotLearnt if fault.soon] == [NotLearnt.NOT_ANSWERING]
