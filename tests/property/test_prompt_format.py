"""Cutting a prompt anywhere never yields a wrong key, only "not yet" (decisions C21)."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continuum_kv_listener.calibration import Learnt, learn
from continuum_kv_listener.probe_chats import Probe, plain_prompt, probe_chats
from continuum_kv_listener.prompt_format import PromptFormat, parse
from continuum_shared.prefix_key import KeyTag
from support.chat_templates import BOS, TEMPLATES, TemplateRefused, render

# Pieces of the templates' own words beside ordinary text: what prompts about prompts contain.
PIECES = st.sampled_from(
    [
        "You are careful.", " ", "\n", "\n\n", "# Tools", "안녕하세요", "🙂", "<|im_end|>",
        "<|im_start|>", "<|im_start|>system\n", "user\n", "[/INST]", "[INST] ", "<|eot_id|>", "<|",
        "### Instruction:\n", "</s>\n", "<|User|>", "2026-11-30", "\ufffd", "<end_of_turn>",
        "x" * 40,
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=6).map("".join)


@cache
def learnt(name: str) -> PromptFormat:
    answers: dict[Probe, str | None] = {Probe.PLAIN: BOS.get(name, "") + plain_prompt("n0nce")}
    for chat in probe_chats("n0nce"):
        try:
            answers[chat.probe] = render(TEMPLATES[name], chat.messages, chat.tools)
        except TemplateRefused:
            answers[chat.probe] = None
    result = learn(answers, "n0nce")
    assert isinstance(result, Learnt)
    return result.prompt_format


def check_every_cut(prompt_format: PromptFormat, text: str, limit: int) -> None:
    whole = parse(prompt_format, text, limit)
    for size in range(len(text) + 1):
        part = parse(prompt_format, text[:size], limit)
        assert set(part.found) == {found for found in whole.found if found.end <= size}
        if part.complete:
            assert part.found == whole.found
            assert whole.complete
            assert part.reason == whole.reason


@pytest.mark.parametrize("name", TEMPLATES)
@given(
    system=TEXTS, user=TEXTS, first=st.sampled_from(["system", "user"]), limit=st.integers(4, 60)
)
@settings(max_examples=25, deadline=None)
def test_cutting_a_chat_anywhere(name: str, system: str, user: str, first: str, limit: int) -> None:
    messages = [{"role": first, "content": system}, {"role": "user", "content": user}]
    try:
        text = render(TEMPLATES[name], messages)
    except TemplateRefused:
        text = render(TEMPLATES[name], messages[1:])
    check_every_cut(learnt(name), text, limit)


@pytest.mark.parametrize("name", TEMPLATES)
@given(text=TEXTS, limit=st.integers(4, 60), bos=st.booleans())
@settings(max_examples=25, deadline=None)
def test_cutting_any_text_anywhere(name: str, text: str, limit: int, bos: bool) -> None:
    check_every_cut(learnt(name), (BOS.get(name, "") if bos else "") + text, limit)


@pytest.mark.parametrize("name", ["chatml", "qwen3", "tools_first"])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_cut_inside_a_character_never_enters_a_key(name: str, data: st.DataObject) -> None:
    text = "안녕하세요 🙂 " * data.draw(st.integers(1, 4))
    rendered = render(TEMPLATES[name], [{"role": "system", "content": text}, *USER])
    raw = rendered.encode()
    cut = data.draw(st.integers(0, len(raw)))
    seen = raw[:cut].decode(errors="replace")
    for found in parse(learnt(name), seen, 30).found:
        assert "\ufffd" not in found.key_text.text
        if found.key_text.tag is KeyTag.SYSTEM:
            assert text.startswith(found.key_text.text)


USER = [{"role": "user", "content": "Hi"}]
