"""Judging paths and learning formats, against an engine in memory."""

import random
from array import array
from collections.abc import Mapping, Sequence

import pytest

from continuum_kv_listener import attribution
from continuum_kv_listener.attribution import Attributor
from continuum_kv_listener.attribution_types import AttributionMode, Question, UnattributedReason
from continuum_kv_listener.engine_client import EngineError, EngineFault
from continuum_kv_listener.families import CustomMarkers, Family
from continuum_kv_listener.salt_reader import SaltReader
from continuum_kv_listener.teacher import NotLearnt, Teacher
from continuum_kv_listener.template_limits import TemplateLimit
from continuum_shared.cache_salt import SaltIssuer, SaltVerifier
from continuum_shared.prefix_key import (
    KeyTag,
    KeyText,
    PrefixKey,
    chat_key_text,
    completions_key_text,
    derive,
)
from support.chat_templates import GEMMA2_LIKE, QWEN_LIKE, TemplateRefused
from support.tiny_engine import TinyEngine

BLOCK = 16
SYSTEM = "You repair clocks. Answer in short sentences. 짧게 답하세요 🙂. " * 5


class InMemoryEngine:
    """A TinyEngine called without HTTP; ``fault`` is what every call raises, ``asked`` the sizes
    of the detokenize calls."""

    def __init__(self, template: str | None = None, bos: str = "") -> None:
        self.tiny = TinyEngine(template=template, bos=bos)
        self.fault: EngineError | None = None
        self.chats = True
        self.refusal = EngineError(EngineFault.UNSUPPORTED, "/tokenize", 400)
        self.asked: list[int] = []

    async def tokenize_chat(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        if self.fault:
            raise self.fault
        if not self.chats:
            raise self.refusal
        try:
            return self.tiny.encode_chat(messages, tools)
        except TemplateRefused:
            raise self.refusal from None

    async def tokenize_prompt(self, prompt: str) -> list[int]:
        if self.fault:
            raise self.fault
        return self.tiny.encode(self.tiny.bos + prompt)

    async def detokenize(self, tokens: "Sequence[int] | array[int]") -> str:
        if self.fault:
            raise self.fault
        self.asked.append(len(tokens))
        return self.tiny.decode(list(tokens))


def attributor(engine: InMemoryEngine, **options: object) -> Attributor:
    rng = random.Random(7)
    settings: dict[str, object] = {"models": ("tiny-chat",), "rng": rng}
    teacher = Teacher([(AttributionMode.PROBE, engine)], rng=rng)
    return Attributor(engine, teacher, **(settings | options))  # type: ignore[arg-type]


async def calibrated(engine: InMemoryEngine, **options: object) -> Attributor:
    made = attributor(engine, **options)
    await made.calibrate(0.0)
    assert made.state.calibrated
    engine.asked.clear()
    return made


def question(tokens: Sequence[int], lora_name: str | None = None) -> Question:
    whole = len(tokens) // BLOCK * BLOCK
    return Question(
        node=1,
        tokens=array("I", tokens[:whole]),
        block_ends=tuple(range(BLOCK, whole + 1, BLOCK)),
        lora_name=lora_name,
    )


def key_of(messages: list[dict[str, str]], model: str = "tiny-chat") -> PrefixKey:
    key_text = chat_key_text({"messages": messages})
    assert key_text is not None
    return derive(model, key_text, 1024)


def chat(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


async def test_the_key_completes_at_the_first_block_that_covers_it() -> None:
    engine = InMemoryEngine()
    judge = await calibrated(engine)
    messages = chat(("system", SYSTEM), ("user", "Which spring? " * 40))
    asked = question(engine.tiny.encode_chat(messages))
    verdict = await judge.judge(asked, 0.0)
    (completion,) = verdict.completions
    assert completion.keys == (key_of(messages),)
    assert verdict.done
    assert verdict.reason is None
    texts = [
        engine.tiny.decode(list(asked.tokens[:end])).rstrip("\ufffd") for end in asked.block_ends
    ]
    end = f"<|im_start|>system{SYSTEM}<|im_end|><|im_start|>u"
    assert completion.block_index == next(i for i, text in enumerate(texts) if end in text)
    assert len(engine.asked) <= 6


async def test_one_key_for_each_served_name_and_the_adapter_instead_of_them() -> None:
    engine = InMemoryEngine()
    judge = await calibrated(engine, models=("a", "b"))
    messages = chat(("system", SYSTEM), ("user", "Hi there, all of you"))
    tokens = engine.tiny.encode_chat(messages)
    verdict = await judge.judge(question(tokens), 0.0)
    assert verdict.completions[0].keys == (key_of(messages, "a"), key_of(messages, "b"))
    verdict = await judge.judge(question(tokens, lora_name="tiny-lora"), 0.0)
    assert verdict.completions[0].keys == (key_of(messages, "tiny-lora"),)


async def test_a_built_in_system_prompt_completes_two_keys_at_two_depths() -> None:
    engine = InMemoryEngine(QWEN_LIKE)
    judge = await calibrated(engine)
    messages = chat(("user", "Why does my clock stop at noon? " * 4), ("assistant", "It rests."))
    verdict = await judge.judge(question(engine.tiny.encode_chat(messages)), 0.0)
    first, second = verdict.completions
    assert first.keys == (
        key_of(
            chat(
                ("system", "You are Quill, made by a test. You are a helpful assistant."),
            )
        ),
    )
    assert second.keys == (key_of(messages),)
    assert first.block_index < second.block_index


async def test_a_path_that_is_too_short_stays_pending() -> None:
    engine = InMemoryEngine()
    judge = await calibrated(engine)
    messages = chat(("system", SYSTEM), ("user", "Which spring goes where? " * 5))
    tokens = engine.tiny.encode_chat(messages)
    complete = await judge.judge(question(tokens), 0.0)
    last = complete.completions[0].block_index * BLOCK
    for size in range(BLOCK, last + 1, BLOCK):
        verdict = await judge.judge(question(tokens[:size]), 0.0)
        assert verdict.completions == ()
        assert not verdict.done
        assert verdict.reason is None


async def test_only_as_many_tokens_as_the_key_needs_are_sent() -> None:
    engine = InMemoryEngine()
    judge = await calibrated(engine, max_prefix_length=300)
    messages = chat(("system", "Short."), ("user", "x y z " * 2000))
    await judge.judge(question(engine.tiny.encode_chat(messages)), 0.0)
    assert max(engine.asked) <= 112


async def test_the_number_of_tokens_is_doubled_until_the_key_is_complete() -> None:
    engine = InMemoryEngine()
    judge = await calibrated(engine, max_prefix_length=300)
    messages = chat(("system", "#!$" * 99), ("user", "x y z " * 2000))
    verdict = await judge.judge(question(engine.tiny.encode_chat(messages)), 0.0)
    assert verdict.done
    assert engine.asked[:2] == [112, 224]


async def test_long_and_short_plain_prompts() -> None:
    engine = InMemoryEngine()
    judge = await calibrated(engine)
    prompt = "import os, sys\n" * 80
    verdict = await judge.judge(question(engine.tiny.encode(prompt)), 0.0)
    key_text = completions_key_text({"prompt": prompt})
    assert key_text is not None
    assert verdict.completions[0].keys == (derive("tiny-chat", key_text, 1024),)
    verdict = await judge.judge(question(engine.tiny.encode("import os\n" * 40)), 0.0)
    assert verdict.completions == ()
    assert not verdict.done


async def test_a_chat_of_another_shape_is_done_without_a_key() -> None:
    engine = InMemoryEngine()
    judge = await calibrated(engine)
    verdict = await judge.judge(question(engine.tiny.encode("<|im_start|>tool" + "x " * 99)), 0.0)
    assert verdict.done
    assert verdict.completions == ()
    assert verdict.reason is UnattributedReason.NO_MATCH


async def test_an_engine_that_fails_fails_the_question() -> None:
    engine = InMemoryEngine()
    judge = await calibrated(engine)
    engine.fault = EngineError(EngineFault.UNREACHABLE, "/detokenize")
    with pytest.raises(EngineError):
        await judge.judge(question(list(range(300, 400))), 0.0)


async def test_before_calibration_there_is_no_format() -> None:
    judge = attributor(InMemoryEngine())
    assert not judge.ready
    assert judge.next_calibration == float("-inf")
    assert judge.state.warnings == (NotLearnt.NOT_ANSWERING.value,)
    verdict = await judge.judge(question(list(range(300, 400))), 0.0)
    assert not verdict.done
    assert verdict.reason is UnattributedReason.NO_FORMAT


async def test_calibration_by_probes() -> None:
    judge = attributor(InMemoryEngine())
    state = await judge.calibrate(5.0)
    assert state.calibrated
    assert state.attribution is AttributionMode.PROBE
    assert state.warnings == ()
    assert judge.ready
    assert judge.next_calibration is None


@pytest.mark.parametrize(
    ("fault", "warning"),
    [
        (EngineError(EngineFault.UNREACHABLE, "/tokenize"), NotLearnt.NOT_ANSWERING.value),
        (EngineError(EngineFault.REFUSED, "/tokenize", 503), NotLearnt.NOT_ANSWERING.value),
        (EngineError(EngineFault.REFUSED, "/tokenize", 500), NotLearnt.NOT_ANSWERING.value),
        (EngineError(EngineFault.UNSUPPORTED, "/tokenize", 422), NotLearnt.NOT_SUPPORTED.value),
    ],
)
async def test_a_failed_calibration_is_tried_again(fault: EngineError, warning: str) -> None:
    engine = InMemoryEngine()
    judge = attributor(engine)
    engine.fault = fault
    state = await judge.calibrate(100.0)
    assert not state.calibrated
    assert state.attribution is AttributionMode.NONE
    assert state.warnings == (warning,)
    due = judge.next_calibration
    assert due is not None
    long = warning == NotLearnt.NOT_SUPPORTED.value
    assert (130.0 <= due <= 160.0) if long else (100.5 <= due <= 101.0)
    engine.fault = None
    assert (await judge.calibrate(due)).calibrated


@pytest.mark.parametrize("status", [400, 500])
async def test_probes_that_a_template_breaks_on_are_not_supported_by_it(status: int) -> None:
    engine = InMemoryEngine(GEMMA2_LIKE, bos="<bos>")
    fault = EngineFault.UNSUPPORTED if status == 400 else EngineFault.REFUSED
    engine.refusal = EngineError(fault, "/tokenize", status)
    judge = await calibrated(engine)
    assert TemplateLimit.NO_SYSTEM.text in judge.state.warnings
    messages = chat(("user", "Why does my clock stop at noon? " * 5))
    verdict = await judge.judge(
        question(engine.tiny.encode_chat([*messages, {"role": "assistant", "content": "x " * 40}])),
        0.0,
    )
    trimmed = chat(("user", messages[0]["content"].strip()))
    assert [completion.keys for completion in verdict.completions] == [(key_of(trimmed),)]


@pytest.mark.parametrize(
    "named",
    [
        Family.CHATML,
        CustomMarkers(
            system_start="<|im_start|>system\n",
            system_end="<|im_end|>\n",
            first_user_start="<|im_start|>user\n",
        ),
    ],
)
async def test_named_formats_need_no_probes(named: object) -> None:
    engine = InMemoryEngine()
    judge = attributor(engine, prompt_format=named)
    assert judge.ready
    assert judge.next_calibration is None
    assert judge.state.attribution is AttributionMode.FAMILY
    judge.engine_restarted(1.0)
    assert judge.next_calibration is None
    assert (await judge.calibrate(1.0)).calibrated
    assert engine.asked == []
    text = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nHi, what is this?"
    verdict = await judge.judge(question(engine.tiny.encode(text)), 1.0)
    key_text = KeyText(tag=KeyTag.SYSTEM, text=SYSTEM)
    assert verdict.completions[0].keys == (derive("tiny-chat", key_text, 1024),)


async def test_a_restart_of_the_engine_asks_for_calibration_and_keeps_the_format() -> None:
    engine = InMemoryEngine()
    judge = await calibrated(engine)
    judge.engine_restarted(50.0)
    assert judge.next_calibration == 50.0
    engine.fault = EngineError(EngineFault.UNREACHABLE, "/tokenize")
    state = await judge.calibrate(50.0)
    assert state.calibrated
    assert judge.ready


async def test_a_storm_of_restarts_does_not_calibrate_without_end() -> None:
    judge = await calibrated(InMemoryEngine())
    due = []
    for burst in (50.0, 50.3, 95.0):
        for n in range(100):
            judge.engine_restarted(burst + n / 1000)
        asked_for = judge.next_calibration
        assert asked_for is not None
        due.append(round(asked_for, 3))
        await judge.calibrate(asked_for)
    assert due == [50.099, 60.099, 95.099]


async def test_a_low_match_rate_asks_for_calibration_and_backs_off() -> None:
    engine = InMemoryEngine()
    judge = await calibrated(engine)
    good = question(engine.tiny.encode_chat(chat(("system", SYSTEM), ("user", "Hi " * 20))))
    strange = question(engine.tiny.encode("<|im_start|>tool" + "x " * 99))
    for _ in range(25):
        await judge.judge(good, 10.0)
    for _ in range(25):
        await judge.judge(strange, 10.0)
    assert judge.next_calibration is None
    await judge.judge(strange, 10.0)
    assert judge.next_calibration == 10.0
    assert attribution.LOW_MATCH_RATE in judge.state.warnings
    assert (await judge.calibrate(10.0)).warnings == ()
    for _ in range(50):
        await judge.judge(strange, 11.0)
    due = judge.next_calibration
    assert due is not None
    assert 40.0 <= due <= 70.0


@pytest.mark.parametrize("words", [3, 200], ids=["open_for_ever", "long_enough_for_a_key"])
async def test_prompts_of_another_template_count_as_unmatched(words: int) -> None:
    """They could be plain prompts, so they are never known to be no chat of this template."""
    engine = InMemoryEngine()
    judge = await calibrated(engine)
    prompt = "<|system|>\n" + "You are a pirate. " * words + "</s>\n<|user|>\nHello there</s>\n"
    strange = question(engine.tiny.encode(prompt))
    plain = question(engine.tiny.encode("You are a pirate. " * words))
    for _ in range(50):
        await judge.judge(plain, 10.0)
    assert judge.next_calibration is None
    for _ in range(50):
        await judge.judge(strange, 10.0)
    assert judge.next_calibration == 10.0
    assert attribution.LOW_MATCH_RATE in judge.state.warnings


async def test_an_answer_without_text_is_none() -> None:
    """Believed, it would leave the path pending until it grows."""
    engine = InMemoryEngine()
    judge = await calibrated(engine)
    asked = question(engine.tiny.encode_chat(chat(("system", SYSTEM), ("user", "Hi " * 20))))
    engine.tiny.decode = lambda tokens: ""  # type: ignore[method-assign]
    with pytest.raises(EngineError) as caught:
        await judge.judge(asked, 0.0)
    assert caught.value.fault is EngineFault.BAD_ANSWER


def salted(engine: InMemoryEngine, **options: object) -> tuple[Attributor, SaltReader, list[bool]]:
    """An attributor with salt echo on, its reader, and whether a prompt waits to be read."""
    verifier = SaltVerifier(["secret-of-the-test"], backend="b")
    reader = SaltReader(verifier, models=("tiny-chat",), expected=True)
    waits = [False]
    made = attributor(engine, salts=reader, wanted=lambda: waits[0], **options)
    return made, reader, waits


async def test_with_salt_echo_nothing_is_learnt_until_a_prompt_waits() -> None:
    engine = InMemoryEngine()
    judge, _, waits = salted(engine)
    assert judge.state.calibrated
    assert judge.state.attribution is AttributionMode.SALT
    assert judge.state.warnings == ()
    assert (judge.ready, judge.next_calibration) == (True, None)
    judge.engine_restarted(5.0)
    assert (judge.ready, judge.next_calibration) == (True, None)
    waits[0] = True
    assert not judge.ready
    assert judge.next_calibration == 5.0
    assert (await judge.calibrate(5.0)).attribution is AttributionMode.PROBE
    assert (judge.ready, judge.next_calibration) == (True, None)


async def test_salts_that_verify_are_what_attributes() -> None:
    engine = InMemoryEngine()
    judge, reader, waits = salted(engine)
    waits[0] = True
    engine.fault = EngineError(EngineFault.UNREACHABLE, "/tokenize")
    state = await judge.calibrate(5.0)
    assert (state.calibrated, state.attribution) == (False, AttributionMode.NONE)
    assert state.warnings == (NotLearnt.NOT_ANSWERING.value,)
    key = PrefixKey(bytes(32))
    salt = SaltIssuer(["secret-of-the-test"]).issue(key, backend="b", model="tiny-chat")
    assert reader(salt, None) == (key,)
    state = judge.state
    assert (state.calibrated, state.attribution) == (True, AttributionMode.SALT)
    assert state.warnings == (NotLearnt.NOT_ANSWERING.value,)


async def test_no_text_or_token_is_in_an_error_or_state() -> None:
    engine = InMemoryEngine()
    judge = await calibrated(engine)
    messages = chat(("system", "canary-of-the-tests " * 20), ("user", "Hi"))
    verdict = await judge.judge(question(engine.tiny.encode_chat(messages)), 0.0)
    assert "canary" not in repr(verdict)
    assert "canary" not in repr(judge.state)
