"""Named prompt formats, for engines whose template cannot be learnt (decisions C22).

Each family is the literals of its usual template. A model's own template may differ (a built-in
system prompt, tools), so ``prompt_format: auto`` is always the better choice where the engine
tokenizes chats.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from continuum_kv_listener.prompt_format import PromptFormat
from continuum_kv_listener.template_limits import TemplateLimit
from continuum_kv_listener.template_literals import TemplateLiterals, build_format


class Family(StrEnum):
    """Names that ``prompt_format`` accepts besides ``auto`` and ``custom``."""

    CHATML = "chatml"
    LLAMA3 = "llama3"
    MISTRAL = "mistral"
    GEMMA = "gemma"
    DEEPSEEK = "deepseek"
    HARMONY = "harmony"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMarkers:
    """``prompt_format: custom``: the words before and after a system text, and those before the
    first user message. A chat without a system prompt begins with the last of them."""

    system_start: str
    system_end: str
    first_user_start: str


def family_format(family: Family) -> tuple[PromptFormat, tuple[TemplateLimit, ...]]:
    """The format of a named family and its limits."""
    return build_format(_family_literals(family))


def custom_format(markers: CustomMarkers) -> tuple[PromptFormat, tuple[TemplateLimit, ...]]:
    """The format of an operator's own markers and its limits.

    The words that end a system text are taken to end the first message too, which holds for every
    template with one kind of turn. Plain completions prompts are not attributed: what the
    tokenizer puts before them is not known.
    """
    return build_format(
        TemplateLiterals(
            system_head=markers.system_start,
            user_head=markers.first_user_start,
            system_to_user=markers.system_end + markers.first_user_start,
            system_to_system=markers.system_end + markers.system_start,
            user_to_reply=markers.system_end,
        )
    )


def _family_literals(family: Family) -> TemplateLiterals:
    table: Mapping[Family, TemplateLiterals] = {
        Family.CHATML: TemplateLiterals(
            system_head="<|im_start|>system\n",
            developer_head="<|im_start|>developer\n",
            user_head="<|im_start|>user\n",
            system_to_user="<|im_end|>\n<|im_start|>user\n",
            developer_to_user="<|im_end|>\n<|im_start|>user\n",
            system_to_system="<|im_end|>\n<|im_start|>system\n",
            system_to_tools="\n\n# Tools\n\n",
            tools_user_head="<|im_start|>system\n# Tools\n\n",
            tools_to_user="<|im_end|>\n<|im_start|>user\n",
            user_to_reply="<|im_end|>\n<|im_start|>assistant\n",
            raw_head="",
        ),
        Family.LLAMA3: TemplateLiterals(
            system_head="<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n",
            system_with_tools_head=(
                "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
                "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
            ),
            user_head="<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n",
            system_to_user="<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n",
            system_to_system="<|eot_id|><|start_header_id|>system<|end_header_id|>\n\n",
            user_to_reply="<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            raw_head="<|begin_of_text|>",
        ),
        Family.MISTRAL: TemplateLiterals(
            system_head="<s>[SYSTEM_PROMPT]",
            user_head="<s>[INST]",
            system_to_user="[/SYSTEM_PROMPT][INST]",
            system_to_system="[/SYSTEM_PROMPT][SYSTEM_PROMPT]",
            user_to_reply="[/INST]",
            raw_head="<s>",
        ),
        Family.GEMMA: TemplateLiterals(
            system_head="<bos><start_of_turn>user\n",
            user_head="<bos><start_of_turn>user\n",
            system_to_user="\n\n",
            user_to_reply="<end_of_turn>\n<start_of_turn>model\n",
            raw_head="<bos>",
        ),
        Family.DEEPSEEK: TemplateLiterals(
            system_head="<|begin▁of▁sentence|>",
            user_head="<|begin▁of▁sentence|><|User|>",
            system_to_user="<|User|>",
            system_to_system="\n\n",
            user_to_reply="<|Assistant|>",
            raw_head="<|begin▁of▁sentence|>",
        ),
        Family.HARMONY: _harmony(),
    }
    return table[family]


def _harmony() -> TemplateLiterals:
    preamble = (
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\nCurrent date: 2025-08-05\n\nReasoning: medium\n\n"
        "# Valid channels: analysis, commentary, final. "
        "Channel must be included for every message."
    )
    tools = "\nCalls to these tools must go to the commentary channel: 'functions'."
    developer = "<|end|><|start|>developer<|message|># Instructions\n\n"
    return TemplateLiterals(
        system_head=preamble + developer,
        system_with_tools_head=preamble + tools + developer,
        user_head=preamble + "<|end|><|start|>user<|message|>",
        system_to_user="\n\n<|end|><|start|>user<|message|>",
        system_to_tools="\n\n# Tools\n\n",
        tools_user_head=preamble + tools + "<|end|><|start|>developer<|message|># Tools\n\n",
        tools_to_user="<|end|><|start|>user<|message|>",
        user_to_reply="<|end|><|start|>assistant",
        raw_head="",
    )
