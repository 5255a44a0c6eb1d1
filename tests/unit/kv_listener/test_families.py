"""The named families read prompts of their usual templates."""

import pytest

from continuum_kv_listener.families import CustomMarkers, Family, custom_format, family_format
from continuum_kv_listener.prompt_format import PromptFormat, parse

HARMONY = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
    "Knowledge cutoff: 2024-06\nCurrent date: 2026-11-30\n\nReasoning: {level}\n\n"
    "# Valid channels: analysis, commentary, final. "
    "Channel must be included for every message."
)

PROMPTS = [
    (
        Family.CHATML,
        "<|im_start|>system\nSys.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
        [("S", "Sys.")],
    ),
    (
        Family.CHATML,
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        [("M", "Hi")],
    ),
    (
        Family.CHATML,
        "<|im_start|>system\nSys.\n\n# Tools\n\nYou may …<|im_end|>\n<|im_start|>user\nHi",
        [("S", "Sys.")],
    ),
    (
        Family.CHATML,
        "<|im_start|>system\n# Tools\n\nYou may …<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n",
        [("M", "Hi")],
    ),
    (
        Family.LLAMA3,
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nSys.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
        [("S", "Sys.")],
    ),
    (
        Family.LLAMA3,
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 30 Nov 2026\n\nSys.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
        [("S", "Sys.")],
    ),
    (
        Family.LLAMA3,
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 30 Nov 2026\n\n<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant",
        [("M", "Hi")],
    ),
    (Family.MISTRAL, "<s>[SYSTEM_PROMPT]Sys.[/SYSTEM_PROMPT][INST]Hi[/INST]", [("S", "Sys.")]),
    (Family.MISTRAL, "<s>[INST]Hi[/INST]", [("M", "Hi")]),
    (
        Family.GEMMA,
        "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
        [("M", "Hi")],
    ),
    (
        Family.DEEPSEEK,
        "<|begin▁of▁sentence|>Sys.\n\nMore.<|User|>Hi<|Assistant|>",
        [("S", "Sys.\n\nMore.")],
    ),
    (Family.DEEPSEEK, "<|begin▁of▁sentence|><|User|>Hi<|Assistant|>", [("M", "Hi")]),
    (
        Family.HARMONY,
        HARMONY.format(level="high")
        + "<|end|><|start|>developer<|message|># Instructions\n\nSys.\n\n<|end|>"
        "<|start|>user<|message|>Hi<|end|><|start|>assistant",
        [("S", "Sys.")],
    ),
    (
        Family.HARMONY,
        HARMONY.format(level="low") + "<|end|><|start|>user<|message|>Hi<|end|><|start|>assistant",
        [("M", "Hi")],
    ),
]


def keys(prompt_format: PromptFormat, text: str) -> list[tuple[str, str]]:
    return [
        (found.key_text.tag.value, found.key_text.text)
        for found in parse(prompt_format, text, 1024).found
    ]


@pytest.mark.parametrize(("family", "text", "expected"), PROMPTS)
def test_families(family: Family, text: str, expected: list[tuple[str, str]]) -> None:
    prompt_format, _ = family_format(family)
    assert keys(prompt_format, text) == expected


@pytest.mark.parametrize("family", Family)
def test_every_family_is_tested_and_builds(family: Family) -> None:
    assert any(family is tested for tested, _, _ in PROMPTS)
    prompt_format, _ = family_format(family)
    assert prompt_format.openings


def test_custom_markers() -> None:
    prompt_format, warnings = custom_format(
        CustomMarkers(system_start="<<SYS>>", system_end="<</SYS>>", first_user_start="<<USR>>")
    )
    assert keys(prompt_format, "<<SYS>>Sys.<</SYS>><<USR>>Hi<</SYS>>") == [("S", "Sys.")]
    assert keys(prompt_format, "<<USR>>Hi<</SYS>>") == [("M", "Hi")]
    assert keys(prompt_format, "plain " * 300) == []
    assert warnings == ()
