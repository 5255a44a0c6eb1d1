"""Learning templates of well-known shapes, then reading prompts that they render (K13)."""

import datetime
from collections.abc import Mapping, Sequence

import pytest

from continuum_kv_listener.calibration import (
    CalibrationFailure,
    CalibrationFault,
    Learnt,
    learn,
)
from continuum_kv_listener.probe_chats import Probe, plain_prompt, probe_chats
from continuum_kv_listener.prompt_format import parse
from continuum_kv_listener.template_limits import TemplateLimit
from continuum_shared.prefix_key import KeyTag, KeyText, chat_key_text, cut_utf8
from support.chat_templates import BOS, LLAMA3_LIKE, TEMPLATES, TemplateRefused, render

NONCE = "a1b2c3"
TOOLS: Sequence[Mapping[str, object]] = (
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "description": "Time.", "parameters": {"properties": {}}},
    },
)


def rendered(name: str) -> dict[Probe, str | None]:
    answers: dict[Probe, str | None] = {}
    for chat in probe_chats(NONCE):
        try:
            answers[chat.probe] = render(TEMPLATES[name], chat.messages, chat.tools)
        except TemplateRefused:
            answers[chat.probe] = None
    answers[Probe.PLAIN] = BOS.get(name, "") + plain_prompt(NONCE)
    return answers


def learnt(name: str) -> Learnt:
    result = learn(rendered(name), NONCE)
    assert isinstance(result, Learnt)
    return result


def read(name: str, text: str) -> list[KeyText]:
    return [found.key_text for found in parse(learnt(name).prompt_format, text, 1024).found]


def chat(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


PLAIN_TEXTS = {
    "plain": "You are a careful assistant.",
    "korean": "당신은 친절한 조수입니다. 짧게 답하세요.",
    "emoji": "Be 🙂⚙️ cheerful 👩‍🚀.",
    "multi-line": "Line one.\nLine two.\n- a list\n- of things",
    "headings": "Rules\n### First\nsay less <b>now</b>",
    "long": "Measure twice, cut once. 두 번 재고 한 번 자르세요. " * 40,
}
EMPTY_LINES = {
    "empty line": "Paragraph one.\n\nParagraph two.\n\n\n### Heading\n\nText.",
}
OUTER_SPACE = {
    "trailing blank": "Ask for the serial number. ",
    "outer line breaks": "\n\nAnswer in short sentences.\n",
}
KEEPS_EVERYTHING = ("chatml", "qwen", "qwen3", "mistral_new", "deepseek", "zephyr", "tools_first")
ASSISTANT_MAY_BEGIN = tuple(TEMPLATES)
PARTED_BY_SPACE = ("mistral_old", "gemma3")


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "gemma2"])
@pytest.mark.parametrize("text", PLAIN_TEXTS.values(), ids=PLAIN_TEXTS.keys())
def test_the_system_text_is_read_as_the_router_has_it(name: str, text: str) -> None:
    text = text.strip()
    messages = chat(("system", text), ("user", "안녕?"), ("assistant", "Yes."), ("user", "Go on"))
    key_text = chat_key_text({"messages": messages})
    assert key_text is not None
    expected = cut(key_text)
    assert expected in read(name, render(TEMPLATES[name], messages))


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text", PLAIN_TEXTS.values(), ids=PLAIN_TEXTS.keys())
def test_the_first_message_is_read_when_there_is_no_system_text(name: str, text: str) -> None:
    messages = chat(("user", text.strip()), ("assistant", "Yes."), ("user", "Go on"))
    key_text = chat_key_text({"messages": messages})
    assert key_text is not None
    assert cut(key_text) in read(name, render(TEMPLATES[name], messages))


@pytest.mark.parametrize("name", [*KEEPS_EVERYTHING, "llama3", "harmony", "alpaca"])
@pytest.mark.parametrize("text", EMPTY_LINES.values(), ids=EMPTY_LINES.keys())
def test_empty_lines_inside_a_system_text(name: str, text: str) -> None:
    messages = chat(("system", text), ("user", "x"))
    key_text = chat_key_text({"messages": messages})
    assert read(name, render(TEMPLATES[name], messages)) == [key_text]


@pytest.mark.parametrize("name", KEEPS_EVERYTHING)
@pytest.mark.parametrize("text", OUTER_SPACE.values(), ids=OUTER_SPACE.keys())
def test_outer_white_space_is_kept(name: str, text: str) -> None:
    messages = chat(("system", text), ("user", "x"))
    assert read(name, render(TEMPLATES[name], messages)) == [chat_key_text({"messages": messages})]


@pytest.mark.parametrize(
    "name", ["chatml", "qwen", "qwen3", "llama3", "mistral_new", "zephyr", "tools_first", "harmony"]
)
def test_a_run_of_system_messages_is_joined(name: str) -> None:
    messages = chat(("system", "One."), ("system", "Two."), ("user", "x"))
    assert read(name, render(TEMPLATES[name], messages)) == [chat_key_text({"messages": messages})]


@pytest.mark.parametrize("name", ["chatml", "qwen3", "llama3", "zephyr", "tools_first", "harmony"])
def test_developer_messages_are_system_texts(name: str) -> None:
    """Where the template always opens with a system section, an empty system text before the
    developer's makes the same tokens: both keys are true (decisions A18)."""
    messages = chat(("developer", "One."), ("user", "x"))
    same = chat(("system", ""), *(("developer", "One."), ("user", "x")))
    keys = [chat_key_text({"messages": messages})]
    if render(TEMPLATES[name], same) == render(TEMPLATES[name], messages):
        keys.insert(0, chat_key_text({"messages": same}))
    assert read(name, render(TEMPLATES[name], messages)) == keys


@pytest.mark.parametrize("name", ["chatml", "qwen", "qwen3", "llama3", "zephyr", "tools_first"])
def test_system_and_developer_messages_mix(name: str) -> None:
    messages = chat(("system", "One."), ("developer", "Two."), ("user", "x"))
    assert read(name, render(TEMPLATES[name], messages)) == [chat_key_text({"messages": messages})]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text", ["Good morning!", "안녕하세요, 무엇을 도와드릴까요? 🙂 " * 60])
def test_a_chat_that_the_assistant_begins(name: str, text: str) -> None:
    """Decisions A2: its first message anchors it, whatever the role. Some templates refuse it."""
    messages = chat(("assistant", text.strip()), ("user", "Hi"), ("assistant", "Yes?"))
    key_text = chat_key_text({"messages": messages})
    assert key_text is not None
    try:
        prompt = render(TEMPLATES[name], messages)
    except TemplateRefused:
        prompt = ""
    keys = read(name, prompt)
    assert (cut(key_text) in keys) is (name in ASSISTANT_MAY_BEGIN), keys


@pytest.mark.parametrize("name", [*KEEPS_EVERYTHING, "llama3", "harmony", "alpaca"])
def test_tools_beside_a_system_text(name: str) -> None:
    messages = chat(("system", "Use tools."), ("user", "Weather?"))
    assert read(name, render(TEMPLATES[name], messages, TOOLS)) == [
        chat_key_text({"messages": messages})
    ]


@pytest.mark.parametrize("name", ["qwen", "qwen3", "mistral_new", "tools_first", "harmony"])
def test_tools_without_a_system_text(name: str) -> None:
    messages = chat(("user", "Weather?"))
    assert read(name, render(TEMPLATES[name], messages, TOOLS))[-1] == chat_key_text(
        {"messages": messages}
    )


def test_tools_in_the_users_turn_are_told() -> None:
    assert TemplateLimit.TOOLS_IN_TURN in learnt("llama3").limits
    assert read("llama3", render(LLAMA3_LIKE, chat(("user", "Weather?")), TOOLS)) == []


def test_a_built_in_system_prompt_gives_two_keys_at_two_depths() -> None:
    text = render(TEMPLATES["qwen"], chat(("user", "Hi")))
    first, second = parse(learnt("qwen").prompt_format, text, 1024).found
    assert first.key_text.text == "You are Quill, made by a test. You are a helpful assistant."
    assert (first.key_text.tag.value, second.key_text.tag.value) == ("S", "M")
    assert second.key_text.text == "Hi"
    assert first.end < second.end


@pytest.mark.parametrize("name", PARTED_BY_SPACE)
def test_white_space_borders_read_both_ways(name: str) -> None:
    text = render(TEMPLATES[name], chat(("system", "Be brief."), ("user", "Hi")))
    assert [(key.tag.value, key.text) for key in read(name, text)] == [
        ("S", "Be brief."),
        ("M", "Be brief.\n\nHi"),
    ]
    assert TemplateLimit.WEAK_SYSTEM_END in learnt(name).limits


def test_tomorrows_date_still_fits() -> None:
    messages = chat(("system", "Be brief."), ("user", "Hi"))
    for name in ("llama3", "harmony"):
        text = render(TEMPLATES[name], messages, today=datetime.date(2027, 5, 1))
        assert read(name, text) == [chat_key_text({"messages": messages})], name


@pytest.mark.parametrize(
    ("name", "warnings"),
    [
        ("chatml", set()),
        ("tools_first", set()),
        ("qwen3", set()),
        (
            "llama3",
            {TemplateLimit.TRIMS_SYSTEM, TemplateLimit.TRIMS_USER, TemplateLimit.TOOLS_IN_TURN},
        ),
        ("gemma2", {TemplateLimit.TRIMS_USER, TemplateLimit.NO_SYSTEM}),
        (
            "gemma3",
            {
                TemplateLimit.TRIMS_USER,
                TemplateLimit.WEAK_SYSTEM_END,
                TemplateLimit.SYSTEM_RUN,
            },
        ),
        ("mistral_old", {TemplateLimit.WEAK_SYSTEM_END, TemplateLimit.SYSTEM_RUN}),
        ("deepseek", {TemplateLimit.SYSTEM_RUN}),
    ],
)
def test_warnings(name: str, warnings: set[str]) -> None:
    assert set(learnt(name).limits) == warnings


ALTERING = {
    "escapes quotes": "m.content | tojson",
    "escapes markup": "m.content | e",
    "folds lines": "m.content | replace('\n', ' ')",
    "folds blanks": "m.content.split() | join(' ')",
    "swaps quotes": "m.content | replace('\"', \"'\")",
}


@pytest.mark.parametrize("change", ALTERING.values(), ids=ALTERING.keys())
def test_a_template_that_alters_text_is_told(change: str) -> None:
    """The key of such a prompt cannot be recovered (decisions C23): salt echo is the way."""
    template = TEMPLATES["chatml"].replace("m.content", change)
    answers: dict[Probe, str | None] = {
        probe.probe: render(template, probe.messages, probe.tools) for probe in probe_chats(NONCE)
    }
    answers[Probe.PLAIN] = plain_prompt(NONCE)
    result = learn(answers, NONCE)
    assert isinstance(result, Learnt)
    assert TemplateLimit.ALTERS_TEXT in result.limits
    assert "consider salt echo" in TemplateLimit.ALTERS_TEXT.text


@pytest.mark.parametrize("name", TEMPLATES)
def test_plain_prompts_are_read_without_what_the_tokenizer_adds(name: str) -> None:
    prompt = "Once upon a time, 옛날 옛적에. " * 60
    keys = read(name, BOS.get(name, "") + prompt)
    assert cut(KeyText(tag=KeyTag.FIRST_MESSAGE, text=prompt)) in keys


@pytest.mark.parametrize(
    ("plain", "warning"),
    [
        (lambda text: text.replace(" ,", ","), TemplateLimit.CLEANS_SPACES),
        (lambda text: text.replace("e\u0301", "\u00e9"), TemplateLimit.NORMALISES),
        (lambda text: None, TemplateLimit.NO_PLAIN_PROMPTS),
        (lambda text: "nothing of it", TemplateLimit.NO_PLAIN_PROMPTS),
    ],
)
def test_what_the_tokenizer_changes_is_told(plain: object, warning: str) -> None:
    answers = rendered("chatml")
    assert callable(plain)
    answers[Probe.PLAIN] = plain(plain_prompt(NONCE))
    result = learn(answers, NONCE)
    assert isinstance(result, Learnt)
    assert result.limits == (warning,)


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        ({}, CalibrationFault.UNSUPPORTED),
        ({Probe.SYSTEM_USER: None, Probe.USER: None}, CalibrationFault.UNSUPPORTED),
        ({Probe.TWO_SYSTEMS: "…"}, CalibrationFault.UNSUPPORTED),
        ({Probe.SYSTEM_USER: "hello", Probe.USER: "hello"}, CalibrationFault.NO_SENTINEL),
    ],
)
def test_failures(answers: dict[Probe, str | None], fault: CalibrationFault) -> None:
    assert learn(answers, NONCE) == CalibrationFailure(fault=fault)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_first_probe_alone_is_enough_for_the_keys_it_shows(name: str) -> None:
    answers = rendered(name)
    only = {probe: answers[probe] for probe in (Probe.SYSTEM_USER, Probe.USER, Probe.PLAIN)}
    result = learn(only, NONCE)
    assert isinstance(result, Learnt)
    text = render(TEMPLATES[name], chat(("user", "Hi")))
    keys = [found.key_text for found in parse(result.prompt_format, text, 1024).found]
    assert KeyText(tag=KeyTag.FIRST_MESSAGE, text="Hi") in keys


def test_the_probes_are_the_six_chats_and_two_more_with_sentinels_of_the_nonce() -> None:
    chats = probe_chats(NONCE)
    assert [chat.probe.value for chat in chats] == [
        "system_user",
        "user",
        "two_systems",
        "developer_user",
        "system_user_tool",
        "user_tool",
        "system_developer",
        "assistant_first",
    ]
    for probe in chats:
        assert all(NONCE in message["content"] for message in probe.messages)
    assert chats[0].messages[0]["content"][0] == "\n"
    assert chats[0].messages[0]["content"][-1] == "\n"


def cut(key_text: KeyText) -> KeyText:
    return KeyText(tag=key_text.tag, text=cut_utf8(key_text.text, 1024).decode())
