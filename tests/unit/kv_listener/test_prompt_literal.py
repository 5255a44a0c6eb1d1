"""Literals with changing places, matched against text that may be cut off."""

import pytest

from continuum_kv_listener.prompt_literal import (
    MISMATCH,
    PARTIAL,
    Literal,
    Shape,
    confirmed_end,
    first_marker_after,
    lead_marker,
    opens_with_special,
    structural_prefix,
)

DATED = "Today Date: 26 Jul 2024\n\nSystem: "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Today Date: 26 Jul 2024\n\nSystem: hello", 33),
        ("Today Date: 1 December 2026\n\nSystem: x", 37),
        ("Today Date: Monday, 30 Nov 2026\n\nSystem: x", 41),
        ("Today", PARTIAL),
        ("", PARTIAL),
        ("Today Date: 2", PARTIAL),
        ("Today Date: 26 Ju", PARTIAL),
        ("Today Date: 26 Jul 2024", PARTIAL),
        ("Today Date: 26 Jul 2024\n\nSys", PARTIAL),
        ("Today Date: soon\n\nSystem: ", MISMATCH),
        ("Today Date: 26 Jul 2024\n\nUser: ", MISMATCH),
        ("Tomorrow", MISMATCH),
        ("Today Date: " + "1" * 60, MISMATCH),
    ],
)
def test_a_dated_literal_matches_any_date(text: str, expected: int) -> None:
    assert Literal.of(DATED).match(text) == expected


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("on 2026-11-30 at", [Shape.DATE_ISO]),
        ("July 4, 2026 and 4 July 2026.", [Shape.DATE_AMERICAN, Shape.DATE_WORDS]),
        ("Knowledge cutoff: 2024-06\n", []),
        ("December 2023", []),
        ("Reasoning: medium\n", [Shape.REASONING]),
        ("a medium-sized thing", []),
    ],
)
def test_shapes_are_found_in_learnt_text(text: str, shapes: list[Shape]) -> None:
    assert [part for part in Literal.of(text).parts if isinstance(part, Shape)] == shapes


def test_matching_at_an_offset() -> None:
    assert Literal.of("<end>").match("ab<end>c", 2) == 7
    assert Literal.of("").match("ab", 1) == 1
    assert Literal.of("").head == ""
    assert Literal.of("2026-11-30").head == ""


@pytest.mark.parametrize(
    ("long", "short", "expected"),
    [
        ("<a># Tools", "<a>", True),
        ("<a>", "<a>", False),
        ("<a>", "", True),
        ("<b>x", "<a>", False),
        ("on 2026-11-30\nmore", "on 2026-11-29\n", True),
        ("on 2026-11-30\n", "on 2026-11-29", True),
        ("on 2026-11-30", "on 2026-11-29\n", False),
        ("on ever", "on 2026-11-29\n", False),
    ],
)
def test_extends(long: str, short: str, expected: bool) -> None:
    assert Literal.of(long).extends(Literal.of(short)) is expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["<|e|>\n<|s|>user\n", "<|e|>\n<|s|>assistant\n"], "<|e|>\n<|s|>"),
        (["<|end|>\n<|user|>\n", "<|end|>\n<|assistant|>\n"], "<|end|>\n"),
        (["<|User|>", "<|Assistant|>"], ""),
        (["[/SYSTEM_PROMPT][INST]", "[/INST]"], ""),
        (["\n\n### Instruction:\n", "\n\n### Response:\n"], ""),
        (["</s>\n<|user|>\n", "</s>\n<|assistant|>\n"], "</s>\n"),
        ([], ""),
    ],
)
def test_the_structural_prefix_ends_with_a_whole_special(texts: list[str], expected: str) -> None:
    assert structural_prefix(texts) == expected


def test_markers() -> None:
    assert lead_marker("\n\n<|end|><|start|>user") == "\n\n<|end|>"
    assert lead_marker("[/INST] x") == "[/INST]"
    assert lead_marker("\n\n### Response:") == "\n\n### Response:"
    assert first_marker_after("<s>[INST] hi", 3) == "<s>[INST]"
    assert first_marker_after("plain", 0) == "plain"


@pytest.mark.parametrize(
    ("text", "start", "markers", "expected"),
    [
        ("hello", 0, ("<end>",), 5),
        ("hello<en", 0, ("<end>",), 5),
        ("hello<<", 0, ("<end>",), 6),
        ("hello\n", 0, ("\n\n", "<end>"), 5),
        ("<en", 3, ("<end>",), 3),
        ("hello", 0, (), 5),
    ],
)
def test_text_that_may_begin_a_marker_is_not_confirmed(
    text: str, start: int, markers: tuple[str, ...], expected: int
) -> None:
    assert confirmed_end(text, start, markers) == expected


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("<|system|>\nYou", 0, True),
        ("\n[INST] You", 0, True),
        ("You are <|system|>", 0, False),
        ("<s><|system|>", 3, True),
        ("a < b", 0, False),
        ("", 0, False),
    ],
)
def test_what_opens_with_a_special(text: str, start: int, expected: bool) -> None:
    assert opens_with_special(text, start) is expected
