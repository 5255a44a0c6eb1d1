"""Reading keyed texts out of rendered prompts, by hand-made formats."""

import pytest

from continuum_kv_listener.attribution_types import UnattributedReason
from continuum_kv_listener.prompt_format import Link, Opening, PromptFormat, Section, parse
from continuum_kv_listener.prompt_literal import Literal

END = "<|e|>\n<|s|>"
CHAT = PromptFormat(
    openings=(
        Opening(literal=Literal.of("<|s|>system\n"), section=Section.SYSTEM),
        Opening(literal=Literal.of("<|s|>user\n"), section=Section.USER),
        Opening(literal=Literal.of("<|s|>system\n# Tools\n"), section=Section.TOOLS),
    ),
    system_ends=(END,),
    user_ends=(END,),
    system_links=(
        Link(literal=Literal.of(END + "system\n"), section=Section.SYSTEM),
        Link(literal=Literal.of(END + "user\n"), section=Section.USER),
    ),
    tool_exits=(
        (END + "system\n", Section.SYSTEM),
        (END + "user\n", Section.USER),
    ),
    raw_head="",
    chat_marks=("<|s|>",),
)


def keys(text: str, limit: int = 1024) -> list[tuple[str, str]]:
    return [
        (found.key_text.tag.value, found.key_text.text) for found in parse(CHAT, text, limit).found
    ]


@pytest.mark.parametrize(
    ("name", "text", "found", "complete"),
    [
        ("nothing yet", "", [], False),
        ("inside the head", "<|s|>sys", [], False),
        ("inside the system text", "<|s|>system\nBe bri", [], False),
        ("inside the end mark", "<|s|>system\nBe brief.<|e|>\n<|", [], False),
        ("a second system could follow", f"<|s|>system\nBe brief.{END}", [], False),
        ("… still", f"<|s|>system\nBe brief.{END}sys", [], False),
        ("it does not", f"<|s|>system\nBe brief.{END}u", [("S", "Be brief.")], True),
        ("an assistant follows", f"<|s|>system\nA{END}assistant\nB", [("S", "A")], True),
        ("two systems", f"<|s|>system\nA{END}system\nB{END}user\n", [("S", "A\nB")], True),
        ("second one unfinished", f"<|s|>system\nA{END}system\nB", [], False),
        ("empty first", f"<|s|>system\n{END}system\nB{END}user\n", [("S", "\nB")], True),
        ("all empty", f"<|s|>system\n{END}user\nhi{END}a", [("M", "hi")], True),
        ("all empty, open", f"<|s|>system\n{END}use", [], False),
        ("white space is kept", f"<|s|>system\n \n a \n{END}user", [("S", " \n a \n")], True),
        ("user only", f"<|s|>user\n안녕{END}assistant", [("M", "안녕")], True),
        ("user unfinished", "<|s|>user\n안녕", [], False),
        ("user empty", f"<|s|>user\n{END}a", [], True),
        (
            "tools before the system",
            f"<|s|>system\n# Tools\n{{}}{END}system\nA{END}user",
            [("S", "A")],
            True,
        ),
        (
            "tools, no system",
            f"<|s|>system\n# Tools\n{{}}{END}user\nQ{END}assistant",
            [("M", "Q")],
            True,
        ),
        ("tools unfinished", "<|s|>system\n# Tools\n{}", [], False),
        ("almost tools", f"<|s|>system\n# Toolbox{END}user", [("S", "# Toolbox")], True),
        ("a mark alone in the text", f"<|s|>system\na<|e|>b{END}u", [("S", "a<|e|>b")], True),
        ("plain prompt, short", "Once upon a time", [], False),
        ("replacement at the end is not read", "<|s|>system\nBe \ufffd\ufffd", [], False),
        ("replacement inside is text", f"<|s|>system\na\ufffdb{END}u", [("S", "a\ufffdb")], True),
    ],
)
def test_parse(name: str, text: str, found: list[tuple[str, str]], complete: bool) -> None:
    assert keys(text) == found, name
    assert parse(CHAT, text, 1024).complete is complete, name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<|s|>system\n0123456", []),
        ("<|s|>system\n01234567", [("S", "01234567")]),
        ("<|s|>system\n012345<|e", []),
        ("<|s|>system\n012345678<|e", [("S", "01234567")]),
        ("<|s|>system\n안녕하", [("S", "안녕")]),
        ("<|s|>system\n안녕\ufffd", []),
        (f"<|s|>system\n012{END}system\n3456", [("S", "012\n3456")]),
        (f"<|s|>system\n012{END}system\n345", []),
        (f"<|s|>system\n0123456789{END}", [("S", "01234567")]),
        ("<|s|>user\n012345678", [("M", "01234567")]),
        ("Once upon", [("M", "Once upo")]),
        ("Once up", []),
        ("Once up\ufffd", []),
    ],
)
def test_the_key_is_complete_at_the_prefix_length(text: str, found: list[tuple[str, str]]) -> None:
    assert keys(text, 8) == found


def test_the_end_is_the_first_sufficient_length() -> None:
    text = f"<|s|>system\nBe brief.{END}user\nHi{END}assistant"
    (found,) = parse(CHAT, text, 1024).found
    assert text[: found.end] == f"<|s|>system\nBe brief.{END}u"


@pytest.mark.parametrize(
    "text",
    [f"<|s|>system\nLook: <|image_pad|>{END}user", f"<|s|>user\n<start_of_image>what?{END}a"],
)
def test_a_media_placeholder_makes_no_key(text: str) -> None:
    parsed = parse(CHAT, text, 1024)
    assert parsed.found == ()
    assert parsed.complete
    assert parsed.reason is UnattributedReason.UNSUPPORTED_CONTENT


def test_a_placeholder_behind_the_prefix_length_does_not_matter() -> None:
    assert keys(f"<|s|>user\n01234567<|image_pad|>{END}a", 8) == [("M", "01234567")]


def test_a_chat_of_another_shape_does_not_match() -> None:
    parsed = parse(CHAT, "<|s|>tool\n" + "x" * 2000, 1024)
    assert parsed.found == ()
    assert parsed.complete
    assert parsed.reason is UnattributedReason.NO_MATCH


def test_without_a_raw_head_plain_prompts_do_not_match() -> None:
    blind = PromptFormat(openings=CHAT.openings, chat_marks=CHAT.chat_marks)
    assert parse(blind, "x" * 2000, 1024).reason is UnattributedReason.NO_MATCH


def test_the_raw_head_is_not_part_of_a_plain_prompt() -> None:
    with_bos = PromptFormat(openings=(), raw_head="<s>")
    (found,) = parse(with_bos, "<s>" + "y" * 1024, 1024).found
    assert found.key_text.text == "y" * 1024
    assert found.end == 1027
    assert parse(with_bos, "y" * 1024, 1024).reason is UnattributedReason.NO_MATCH


def test_tools_without_a_way_out_are_unsupported() -> None:
    lost = PromptFormat(
        openings=(Opening(literal=Literal.of("<t>"), section=Section.TOOLS),), chat_marks=("<t>",)
    )
    assert parse(lost, "<t>{}", 1024).reason is UnattributedReason.UNSUPPORTED_CONTENT
