"""A model's folder in the place of the engine's text endpoints."""

import json
import shutil
from pathlib import Path

import pytest

from continuum_kv_listener.calibration import Learnt, learn
from continuum_kv_listener.engine_client import EngineError, EngineFault
from continuum_kv_listener.engine_text import TokenizerFileError
from continuum_kv_listener.local_tokenizer import LocalTokenizer
from continuum_kv_listener.probe_chats import Probe, plain_prompt, probe_chats
from support.chat_templates import LLAMA3_LIKE, QWEN_LIKE
from support.tiny_engine import WIRE, TinyEngine

TEXT = "Korean 한국어, emoji 👩‍🚀, a tab\t, two lines\n\nand a <|im_start|> special."


def folder(path: Path, template: str | None = None, **settings: object) -> Path:
    shutil.copy(WIRE / "model" / "tokenizer.json", path)
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    if settings:
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def local(path: Path, today: str = "30 Nov 2026") -> LocalTokenizer:
    return LocalTokenizer(str(path), strftime=lambda _: today)


async def test_texts_are_what_the_engine_gives(tmp_path: Path) -> None:
    engine = TinyEngine()
    tokenizer = local(folder(tmp_path))
    tokens = engine.encode(TEXT)
    assert await tokenizer.detokenize(tokens) == TEXT == engine.decode(tokens)
    assert await tokenizer.tokenize_prompt(TEXT) == tokens
    assert await tokenizer.detokenize([*tokens, 10**6]) == TEXT
    cut = tokens[: len(engine.encode("Korean 한국어, emoji 👩")) - 1]
    assert (await tokenizer.detokenize(cut)) == engine.decode(cut)


@pytest.mark.parametrize("named", ["folder", "file"])
async def test_chats_by_the_folders_template(tmp_path: Path, named: str) -> None:
    engine = TinyEngine(template=QWEN_LIKE)
    path = folder(tmp_path, QWEN_LIKE)
    tokenizer = local(path if named == "folder" else path / "tokenizer.json")
    for chat in probe_chats("n0"):
        assert await tokenizer.tokenize_chat(chat.messages, chat.tools) == engine.encode_chat(
            chat.messages, chat.tools
        )


async def test_a_template_that_prints_the_date_prints_todays(tmp_path: Path) -> None:
    tokenizer = local(folder(tmp_path, LLAMA3_LIKE), today="01 May 2027")
    text = await tokenizer.detokenize(
        await tokenizer.tokenize_chat([{"role": "user", "content": "x"}])
    )
    assert "Today Date: 01 May 2027\n" in text


TEMPLATES = {
    "in the settings": {"chat_template": "{{ bos_token }}{{ messages[0].content }}"},
    "one of several": {
        "chat_template": [
            {"name": "tool_use", "template": "tools"},
            {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"},
        ]
    },
    "marked for training": {
        "chat_template": "{{ bos_token }}{% generation %}{{ messages[0].content }}"
        "{% endgeneration %}"
    },
}


@pytest.mark.parametrize("settings", TEMPLATES.values(), ids=TEMPLATES.keys())
@pytest.mark.parametrize("bos", ["<s>", {"content": "<s>", "lstrip": False}])
async def test_templates_and_specials_of_the_settings(
    tmp_path: Path, settings: dict[str, object], bos: object
) -> None:
    tokenizer = local(folder(tmp_path, bos_token=bos, **settings))
    tokens = await tokenizer.tokenize_chat([{"role": "user", "content": "hi"}])
    assert await tokenizer.detokenize(tokens) == "<s>hi"


async def test_the_tool_template_is_for_tools(tmp_path: Path) -> None:
    tokenizer = local(folder(tmp_path, **TEMPLATES["one of several"]))
    tokens = await tokenizer.tokenize_chat([{"role": "user", "content": "hi"}], [{"a": 1}])
    assert await tokenizer.detokenize(tokens) == "tools"


REFUSING = {
    "no template": None,
    "a role that it lacks": "{{ raise_exception('only users, please, canary') }}",
    "a fault of its own": "{{ messages[7].content }}",
    "a type error": "{{ 1 + 'a' }}",
    "out of the sandbox": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
}


@pytest.mark.parametrize("template", REFUSING.values(), ids=REFUSING.keys())
async def test_what_cannot_be_rendered_is_not_supported(
    tmp_path: Path, template: str | None
) -> None:
    tokenizer = local(folder(tmp_path, template))
    with pytest.raises(EngineError) as caught:
        await tokenizer.tokenize_chat([{"role": "user", "content": "canary"}])
    assert caught.value.fault is EngineFault.UNSUPPORTED
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_tokens_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        await local(folder(tmp_path)).detokenize([-1])
    assert caught.value.fault is EngineFault.BAD_ANSWER


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("tokenizer.json", "{}", "tokenizer.json cannot be read"),
        ("tokenizer_config.json", "{", "tokenizer_config.json cannot be read"),
        ("chat_template.jinja", "{% if %}", "cannot be read: TemplateSyntaxError"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, file: str, text: str, said: str) -> None:
    folder(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(TokenizerFileError, match=said):
        local(tmp_path)


async def test_a_format_can_be_learnt_from_it(tmp_path: Path) -> None:
    tokenizer = local(folder(tmp_path, QWEN_LIKE))
    rendered: dict[Probe, str | None] = {}
    for chat in probe_chats("n0"):
        tokens = await tokenizer.tokenize_chat(chat.messages, chat.tools)
        rendered[chat.probe] = await tokenizer.detokenize(tokens)
    tokens = await tokenizer.tokenize_prompt(plain_prompt("n0"))
    rendered[Probe.PLAIN] = await tokenizer.detokenize(tokens)
    learnt = learn(rendered, "n0")
    assert isinstance(learnt, Learnt)
    assert learnt.limits == ()
