"""A model's tokenizer and chat template from its folder, in the place of the engine's endpoints.

Files of a model folder that are read: ``tokenizer.json``; ``tokenizer_config.json`` for the special
tokens and an embedded template; ``chat_template.jinja``, which wins. Needs the extra ``tokenizers``
and is imported only when a source is configured with it. Templates run in a sandbox.
"""

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from continuum_kv_listener.config_checks import tokenizer_file
from continuum_kv_listener.engine_client import EngineError, EngineFault
from continuum_kv_listener.engine_text import TokenizerFileError

WHERE = "the local tokenizer"
_SPECIALS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token")


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; for us it is its content."""

    tags = {"generation"}  # noqa: RUF012  as the base class has it

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class LocalTokenizer:
    """``path`` is the model's folder or its ``tokenizer.json``; ``strftime`` formats the present
    day for templates that print it. Raises :class:`TokenizerFileError`."""

    def __init__(self, path: str, *, strftime: Callable[[str], str]) -> None:
        file = tokenizer_file(path)
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001  the package raises bare exceptions
            raise TokenizerFileError(f"{file} cannot be read: {type(error).__name__}") from None
        settings = _settings(file.parent / "tokenizer_config.json")
        self._specials = {name: _token(settings.get(name)) for name in _SPECIALS}
        self._strftime = strftime
        self._templates = _templates(file.parent, settings, _environment())

    async def tokenize_chat(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        """Token ids of a chat under the folder's template. Raises ``EngineError``."""
        template = self._templates.get("tool_use") if tools else None
        template = template or self._templates.get("default")
        if template is None:
            raise EngineError(EngineFault.UNSUPPORTED, WHERE)
        try:
            text = template.render(
                messages=list(messages),
                tools=list(tools) or None,
                add_generation_prompt=True,
                strftime_now=self._strftime,
                **self._specials,
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError):
            # A role that it lacks, as a rule; the error's own text may quote the chat.
            raise EngineError(EngineFault.UNSUPPORTED, WHERE) from None
        return self._encode(text, specials=False)

    async def tokenize_prompt(self, prompt: str) -> list[int]:
        """Token ids of a plain prompt, with what the tokenizer adds."""
        return self._encode(prompt, specials=True)

    async def detokenize(self, tokens: "Sequence[int] | array[int]") -> str:
        """Text of ``tokens``, special tokens kept. Raises ``EngineError``."""
        try:
            text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        except (OverflowError, TypeError, ValueError):
            raise EngineError(EngineFault.BAD_ANSWER, WHERE) from None
        return text

    def _encode(self, text: str, *, specials: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=specials).ids
        return ids


def _environment() -> jinja2.Environment:
    """As model templates expect it: blocks trimmed, `tojson` plain, a way to refuse a chat."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(value: object, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = refuse
    return made


def _settings(file: Path) -> Mapping[str, object]:
    try:
        found = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerFileError(f"{file} cannot be read: {type(error).__name__}") from None
    return found if isinstance(found, dict) else {}


def _token(value: object) -> str:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _templates(
    folder: Path, settings: Mapping[str, object], environment: jinja2.Environment
) -> dict[str, jinja2.Template]:
    texts: dict[str, str] = {}
    given = settings.get("chat_template")
    if isinstance(given, str):
        texts["default"] = given
    elif isinstance(given, list):
        for entry in given:
            if isinstance(entry, Mapping) and isinstance(entry.get("template"), str):
                texts[str(entry.get("name"))] = entry["template"]
    file = folder / "chat_template.jinja"
    try:
        if file.is_file():
            texts["default"] = file.read_text("utf-8")
        return {name: environment.from_string(text) for name, text in texts.items()}
    except (OSError, ValueError, jinja2.TemplateError) as error:
        where = f"the chat template in {folder}"
        raise TokenizerFileError(f"{where} cannot be read: {type(error).__name__}") from None
