"""One real chat on its way, read back from paths that are shown to it."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from continuum_kv_listener.engine_client import EngineError, EngineFault
from continuum_kv_listener.prompt_format import parse
from continuum_kv_listener.request_probe import RequestProbe
from continuum_kv_listener.template_limits import TemplateLimit
from continuum_shared.prefix_key import chat_key_text
from support.chat_templates import CHATML, LLAMA3_LIKE, MISTRAL_NEW_LIKE, QWEN_LIKE, render


class Engine:
    """Takes chats; ``then`` is called with the rendered text, as its events would show it."""

    def __init__(self, template: str = CHATML) -> None:
        self.template = template
        self.fault: EngineError | None = None
        self.then: Callable[[str], None] = lambda _: None
        self.chats = 0

    async def chat(self, messages: Sequence[Mapping[str, str]]) -> None:
        self.chats += 1
        if self.fault is not None:
            raise self.fault
        self.then(render(self.template, messages))


def probe(engine: Engine, patience: float = 5.0) -> RequestProbe:
    return RequestProbe(engine, rng=random.Random(3), patience=patience)


CHATS = {
    "system": [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": "Hi"}],
    "user": [{"role": "user", "content": "Hi, clockmaker!"}],
}


@pytest.mark.parametrize("template", [CHATML, MISTRAL_NEW_LIKE], ids=["chatml", "mistral"])
@pytest.mark.parametrize("messages", CHATS.values(), ids=CHATS.keys())
async def test_both_kinds_of_chat_can_be_read_after_it(
    template: str, messages: list[dict[str, str]]
) -> None:
    engine = Engine(template)
    one = probe(engine)
    engine.then = one.offer
    learnt = await one.run()
    assert learnt is not None
    assert learnt.limits[-1] is TemplateLimit.ONE_CHAT
    keys = [f.key_text for f in parse(learnt.prompt_format, render(template, messages), 999).found]
    if template is CHATML or "system" in str(messages):
        assert keys == [chat_key_text({"messages": messages})]
    else:
        assert keys == []  # the roles' words are not alike, so nothing is guessed
    assert (engine.chats, one.waiting) == (1, False)


async def test_a_built_in_system_prompt_makes_no_false_key() -> None:
    engine = Engine(QWEN_LIKE)
    one = probe(engine)
    engine.then = one.offer
    learnt = await one.run()
    assert learnt is not None
    found = parse(learnt.prompt_format, render(QWEN_LIKE, CHATS["user"]), 999).found
    assert [each.key_text.text for each in found] == [
        "You are Quill, made by a test. You are a helpful assistant."
    ]


async def test_what_the_template_trims_is_noticed() -> None:
    engine = Engine(LLAMA3_LIKE)
    one = probe(engine)
    engine.then = one.offer
    learnt = await one.run()
    assert learnt is not None
    assert {TemplateLimit.TRIMS_SYSTEM, TemplateLimit.TRIMS_USER} <= set(learnt.limits)


async def test_only_the_whole_chat_is_believed() -> None:
    engine = Engine()
    one = probe(engine)
    seen: list[bool] = []

    def show(text: str) -> None:
        for part in ("another prompt", text[:40], text[: len(text) // 2], text):
            one.offer(part)
            seen.append(one.waiting)

    engine.then = show
    learnt = await one.run()
    assert learnt is not None
    assert learnt.literals.system_head == "<|im_start|>system\n"
    assert seen == [True] * 4


async def test_it_gives_up_in_time() -> None:
    one = probe(Engine(), patience=0.01)
    assert await one.run() is None
    assert not one.waiting
    one.offer("too late")


async def test_a_chat_that_is_not_taken_ends_it() -> None:
    engine = Engine()
    engine.fault = EngineError(EngineFault.REFUSED, "/v1/chat/completions", 401)
    one = probe(engine)
    with pytest.raises(EngineError):
        await one.run()
    assert not one.waiting


async def test_a_cancelled_probe_waits_no_more() -> None:
    one = probe(Engine())
    running = asyncio.ensure_future(one.run())
    await asyncio.sleep(0)
    assert one.waiting
    running.cancel()
    await asyncio.wait([running])
    assert not one.waiting
