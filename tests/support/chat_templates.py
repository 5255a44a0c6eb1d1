"""Chat templates in the manner of well-known model families, and how an engine renders them.

Written for these tests: they keep what makes each family hard to read back (built-in prompts,
dates, trimming, tools in odd places, no system role), not its exact words.
"""

import datetime
import json
from collections.abc import Mapping, Sequence

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateRefused(Exception):
    """The template raised on the chat; an engine answers 400."""


def render(
    template: str,
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[Mapping[str, object]] | None = None,
    *,
    today: datetime.date = datetime.date(2026, 11, 30),
) -> str:
    """Render as engines do: trimmed blocks, ``tojson`` that keeps order, generation prompt on."""

    def refuse(message: str) -> None:
        raise TemplateRefused(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    try:
        return environment.from_string(template).render(
            messages=messages,
            tools=list(tools) if tools else None,
            add_generation_prompt=True,
            raise_exception=refuse,
            strftime_now=today.strftime,
        )
    except (jinja2.TemplateError, TypeError) as error:
        raise TemplateRefused(str(error)) from error


CHATML = """\
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
<|im_start|>assistant
"""

# A built-in system prompt, and tools behind the system text inside its section.
QWEN_LIKE = """\
{%- set builtin = 'You are Quill, made by a test. You are a helpful assistant.' -%}
{%- if tools -%}
<|im_start|>system
{{ messages[0].content if messages[0].role == 'system' else builtin }}

# Tools

You may call one or more functions to help with the query.

Function signatures stand within <tools></tools> tags:
<tools>
{% for t in tools -%}
{{ t | tojson }}
{% endfor -%}
</tools>

Return each call as JSON within <tool_call></tool_call> tags.<|im_end|>
{% elif messages[0].role == 'system' -%}
<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% else -%}
<|im_start|>system
{{ builtin }}<|im_end|>
{% endif -%}
{%- for m in (messages[1:] if messages[0].role == 'system' else messages) -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
<|im_start|>assistant
"""

# The same without a built-in prompt: with tools and no system text the section begins with them.
QWEN3_LIKE = QWEN_LIKE.replace(
    "{{ messages[0].content if messages[0].role == 'system' else builtin }}\n\n# Tools",
    "{{ messages[0].content + '\n\n' if messages[0].role == 'system' else '' }}# Tools",
).replace("{% else -%}\n<|im_start|>system\n{{ builtin }}<|im_end|>\n", "")

# Trims, writes the date, writes tools into the user's turn.
LLAMA3_LIKE = """\
{{- '<|begin_of_text|>' -}}
{%- if messages[0].role == 'system' -%}
{%- set system = messages[0].content | trim -%}{%- set rest = messages[1:] -%}
{%- else -%}
{%- set system = '' -%}{%- set rest = messages -%}
{%- endif -%}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' -}}
{%- if tools -%}{{- 'Environment: ipython\n' -}}{%- endif -%}
{{- 'Cutting Knowledge Date: December 2023\n' -}}
{{- 'Today Date: ' + strftime_now('%d %b %Y') + '\n\n' -}}
{{- system + '<|eot_id|>' -}}
{%- for m in rest -%}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' -}}
{%- if loop.first and tools -%}
{{- 'Given the following functions, answer with JSON {"name": function name}.\n\n' -}}
{%- for t in tools -%}{{- t | tojson(indent=4) + '\n\n' -}}{%- endfor -%}
{%- endif -%}
{{- m.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
"""

# The system text opens the user's turn, parted from the message by an empty line only.
MISTRAL_OLD_LIKE = """\
{{- '<s>' -}}
{%- if messages[0].role == 'system' -%}
{%- set system = messages[0].content -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set rest = messages -%}{%- endif -%}
{%- for m in rest -%}
{%- if m.role not in ('user', 'assistant') -%}{{- raise_exception('role') -}}{%- endif -%}
{%- if m.role == 'user' -%}
{%- if loop.first and system is defined -%}
{{- '[INST] ' + system + '\n\n' + m.content + '[/INST]' -}}
{%- else -%}{{- '[INST] ' + m.content + '[/INST]' -}}{%- endif -%}
{%- else -%}{{- ' ' + m.content + '</s>' -}}{%- endif -%}
{%- endfor -%}
"""

MISTRAL_NEW_LIKE = """\
{{- '<s>' -}}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{{- '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' -}}
{%- elif m.role == 'user' -%}
{%- if tools and loop.last -%}
{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' -}}{%- endif -%}
{{- '[INST]' + m.content + '[/INST]' -}}
{%- elif m.role == 'assistant' -%}{{- m.content + '</s>' -}}
{%- else -%}{{- raise_exception('role') -}}{%- endif -%}
{%- endfor -%}
"""

GEMMA2_LIKE = """\
{{- '<bos>' -}}
{%- for m in messages -%}
{%- if m.role not in ('user', 'assistant') -%}
{{- raise_exception('System role not supported') -}}{%- endif -%}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else 'user') + '\n' -}}
{{- m.content | trim + '<end_of_turn>\n' -}}
{%- endfor -%}
{{- '<start_of_turn>model\n' -}}
"""

GEMMA3_LIKE = """\
{{- '<bos>' -}}
{%- if messages[0].role == 'system' -%}
{%- set first = messages[0].content + '\n\n' -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set first = '' -%}{%- set rest = messages -%}{%- endif -%}
{%- for m in rest -%}
{%- if m.role not in ('user', 'assistant') -%}{{- raise_exception('role') -}}{%- endif -%}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else 'user') + '\n' -}}
{{- (first if loop.first else '') + m.content | trim + '<end_of_turn>\n' -}}
{%- endfor -%}
{{- '<start_of_turn>model\n' -}}
"""

# No mark before the system text; several of them are joined with an empty line.
DEEPSEEK_LIKE = """\
{{- '<|begin▁of▁sentence|>' -}}
{%- set systems = messages | selectattr('role', 'eq', 'system') | map(attribute='content') -%}
{{- systems | join('\n\n') -}}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{- '<|User|>' + m.content -}}
{%- elif m.role == 'assistant' -%}
{{- '<|Assistant|>' + m.content + '<|end▁of▁sentence|>' -}}{%- endif -%}
{%- endfor -%}
{{- '<|Assistant|>' -}}
"""

HARMONY_LIKE = """\
{{- '<|start|>system<|message|>You are a test model.\nKnowledge cutoff: 2024-06\n' -}}
{{- 'Current date: ' + strftime_now('%Y-%m-%d') + '\n\nReasoning: medium\n\n' -}}
{{- '# Valid channels: analysis, final.' -}}
{%- if tools -%}{{- '\nCalls go to the commentary channel.' -}}{%- endif -%}
{{- '<|end|>' -}}
{%- if messages[0].role in ('system', 'developer') -%}
{%- set system = messages[0].content -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set system = '' -%}{%- set rest = messages -%}{%- endif -%}
{%- if system or tools -%}
{{- '<|start|>developer<|message|>' -}}
{%- if system -%}{{- '# Instructions\n\n' + system + '\n\n' -}}{%- endif -%}
{%- if tools -%}{{- '# Tools\n\nnamespace functions {\n\n' -}}
{%- for t in tools -%}
{{- '// ' + t.function.description + '\ntype ' + t.function.name + ' = (_: {\n' -}}
{%- for p in t.function.parameters.properties -%}{{- p + ': string,\n' -}}{%- endfor -%}
{{- '}) => any;\n\n' -}}{%- endfor -%}
{{- '} // namespace functions' -}}{%- endif -%}
{{- '<|end|>' -}}
{%- endif -%}
{%- for m in rest -%}
{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' -}}
{%- endfor -%}
{{- '<|start|>assistant' -}}
"""

ZEPHYR_LIKE = """\
{%- for m in messages -%}
<|{{ m.role }}|>
{{ m.content }}</s>
{% endfor -%}
<|assistant|>
"""

# Headings instead of specials: "\\n\\n### " stands in many system prompts too.
ALPACA_LIKE = """\
{%- for m in messages -%}
{%- if m.role == 'system' -%}{{- m.content + '\n\n' -}}
{%- elif m.role == 'user' -%}{{- '### Instruction:\n' + m.content + '\n\n' -}}
{%- else -%}{{- '### Response:\n' + m.content + '\n\n' -}}{%- endif -%}
{%- endfor -%}
{{- '### Response:\n' -}}
"""

# Tools in a system section of their own, before the client's (the captured wire template).
TOOLS_FIRST = """\
{%- if tools %}<|im_start|>system
# Tools
{%- for t in tools %}
{{ t | tojson }}{%- endfor %}<|im_end|>
{%- endif %}{%- for m in messages %}<|im_start|>{{ m['role'] }}
{%- if m['content'] is string %}{{ m['content'] }}{%- endif %}<|im_end|>
{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{%- endif %}"""

TEMPLATES: Mapping[str, str] = {
    "chatml": CHATML,
    "qwen": QWEN_LIKE,
    "qwen3": QWEN3_LIKE,
    "llama3": LLAMA3_LIKE,
    "mistral_old": MISTRAL_OLD_LIKE,
    "mistral_new": MISTRAL_NEW_LIKE,
    "gemma2": GEMMA2_LIKE,
    "gemma3": GEMMA3_LIKE,
    "deepseek": DEEPSEEK_LIKE,
    "harmony": HARMONY_LIKE,
    "zephyr": ZEPHYR_LIKE,
    "alpaca": ALPACA_LIKE,
    "tools_first": TOOLS_FIRST,
}

BOS: Mapping[str, str] = {
    "llama3": "<|begin_of_text|>",
    "mistral_old": "<s>",
    "mistral_new": "<s>",
    "gemma2": "<bos>",
    "gemma3": "<bos>",
    "deepseek": "<|begin▁of▁sentence|>",
}
"""What each family's tokenizer puts before a plain prompt (nothing for the others)."""
