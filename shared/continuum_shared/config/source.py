"""YAML text → plain data and the line of every key, with environment variables expanded.

Scalars follow YAML 1.2's core schema: `yes` and `on` are text, `true` is a flag, a date is text.
JSON is YAML too (decisions J13). Duplicate keys, tags and self-references are refused; size,
depth and the number of values (aliases counted each time) are bounded.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from continuum_shared.config.bad_value import EnvText
from continuum_shared.config.report import Path, Problem, Severity, dotted
from continuum_shared.config.yaml_wording import yaml_message

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 100_000

_VARIABLE = re.compile(r"\$?\$\{([^}\n]*)(\}?)")
_REFERENCE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL: Mapping[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    "-.inf": float("-inf"),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_TAG = "tag:yaml.org,2002:"
_TEXT_TAG = _TAG + "str"
_COLLECTION_TAGS = {_TAG + "map", _TAG + "seq"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """Where a scalar value stands in the text (offsets in characters) and what it says."""

    start: int
    end: int
    from_env: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file that was read. `data` is None when it could not be read as a mapping at all.

    `env` is the environment it was read in, for keys that name a variable instead of having it
    expanded into the text.
    """

    file: str
    text: str
    data: dict[str, object] | None
    lines: Mapping[Path, int] = field(default_factory=dict)
    scalars: Mapping[Path, Scalar] = field(default_factory=dict)
    problems: tuple[tuple[Path, Problem], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    def line_of(self, path: Path) -> int:
        """The line of a key, or of the nearest thing around it that was written."""
        for length in range(len(path), 0, -1):
            line = self.lines.get(path[:length])
            if line is not None:
                return line
        return 1


class _Loader(yaml.SafeLoader):
    """Composes nodes without deciding the type of plain scalars: `_plain` does that."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.yaml_implicit_resolvers = {}


def load_file(path: str, *, env: Mapping[str, str]) -> Source:
    """Read a UTF-8 file. Never raises: what went wrong is in `problems`."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        return _unreadable(path, "", 1, f"the file cannot be read: {reason}")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return _unreadable(path, "", line, "the file is not UTF-8 text")
    return load_text(text, path=path, env=env)


def load_text(text: str, *, path: str, env: Mapping[str, str]) -> Source:
    """Compose the text once. `path` is the file's name in messages. Never raises."""
    if len(text) > MAX_FILE_BYTES:
        return _unreadable(path, text, 1, f"the file is larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        too_deep = _first_too_deep(text)
        if too_deep is not None:
            return _unreadable(path, text, too_deep, f"nesting is deeper than {MAX_DEPTH} levels")
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        line, message, hint = yaml_message(error, text)
        return _unreadable(path, text, line, message, hint)
    if root is None or (isinstance(root, yaml.ScalarNode) and root.value == ""):
        return Source(file=path, text=text, data={}, env=env)
    if not isinstance(root, yaml.MappingNode):
        return _unreadable(path, text, 1, "the file is not a mapping", "write KEY: VALUE lines")
    reader = _Reader(env)
    data = reader.mapping(root, ())
    return Source(
        file=path,
        text=text,
        data=data,
        lines=reader.lines,
        scalars=reader.scalars,
        problems=tuple(reader.problems),
        env=env,
    )


def _unreadable(file: str, text: str, line: int, message: str, hint: str = "") -> Source:
    problem = Problem(severity=Severity.ERROR, path="", line=line, message=message, hint=hint)
    return Source(file=file, text=text, data=None, problems=(((), problem),))


def _first_too_deep(text: str) -> int | None:
    """The line where nesting passes the bound. Events cost no stack, unlike composing."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                return _line(event.start_mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return None


def _line(mark: Any) -> int:
    return int(mark.line) + 1 if mark is not None else 1


class _Reader:
    """Turns nodes into data; remembers lines and problems. Used once."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._values = 0
        self._open: list[yaml.Node] = []
        self.lines: dict[Path, int] = {}
        self.scalars: dict[Path, Scalar] = {}
        self.problems: list[tuple[Path, Problem]] = []

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        data: dict[str, object] = {}
        merged: list[tuple[yaml.Node, yaml.Node]] = []
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = _line(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                self._say(path, line, "a key is a list or a mapping", "keys are plain words")
                continue
            key = key_node.value
            if key == "<<" and key_node.style is None:
                merged.extend(self._merge_pairs(value_node, path, line))
                continue
            here = (*path, key)
            if key in first:
                self._say(here, line, f"is written twice, first on line {first[key]}", "keep one")
                continue
            first[key] = line
            self.lines[here] = line
            data[key] = self._value(value_node, here)
        for key_node, value_node in merged:
            key = str(key_node.value)
            if key not in data:
                here = (*path, key)
                self.lines[here] = _line(key_node.start_mark)
                data[key] = self._value(value_node, here)
        return data

    def _merge_pairs(
        self, node: yaml.Node, path: Path, line: int
    ) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """The pairs that `<<` brings in, nearest first. Merges inside merges are flattened."""
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for part in nodes:
            if self._too_many(path, line):
                return
            if not isinstance(part, yaml.MappingNode) or part in self._open:
                self._say(path, line, "<< does not name a mapping", "such as <<: *defaults")
                continue
            self._open.append(part)
            for key_node, value_node in part.value:
                if isinstance(key_node, yaml.ScalarNode) and key_node.value == "<<":
                    yield from self._merge_pairs(value_node, path, line)
                elif isinstance(key_node, yaml.ScalarNode):
                    yield key_node, value_node
            self._open.pop()

    def _value(self, node: yaml.Node, path: Path) -> object:
        line = _line(node.start_mark)
        if self._too_many(path, line):
            return None
        if any(node is parent for parent in self._open):
            self._say(path, line, "an alias refers to something that contains it", "")
            return None
        if len(self._open) > MAX_DEPTH:
            self._say(path, line, f"nesting is deeper than {MAX_DEPTH} levels", "")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, line)
        if node.tag not in _COLLECTION_TAGS:
            self._say(path, line, "carries a YAML tag, which is not supported", "remove the tag")
            return None
        self._open.append(node)
        data: object
        if isinstance(node, yaml.MappingNode):
            data = self.mapping(node, path)
        else:
            data = [self._item(item, (*path, i)) for i, item in enumerate(node.value)]
        self._open.pop()
        return data

    def _too_many(self, path: Path, line: int) -> bool:
        """Count one more value; aliases count each time, so a small file cannot grow huge."""
        self._values += 1
        if self._values == MAX_VALUES + 1:
            self._say(path, line, f"the file has more than {MAX_VALUES} values", "")
        return self._values > MAX_VALUES

    def _item(self, node: yaml.Node, path: Path) -> object:
        self.lines[path] = _line(node.start_mark)
        return self._value(node, path)

    def _scalar(self, node: yaml.ScalarNode, path: Path, line: int) -> object:
        if node.tag != _TEXT_TAG:
            self._say(path, line, "carries a YAML tag, which is not supported", "remove the tag")
            return None
        text, expanded = self._expand(node.value, path, line)
        self.scalars[path] = Scalar(
            start=node.start_mark.index, end=node.end_mark.index, from_env=expanded
        )
        if expanded:
            return EnvText(text)
        return _plain(text) if node.style is None else text

    def _expand(self, text: str, path: Path, line: int) -> tuple[str, bool]:
        """`${VAR}` and `${VAR:-default}`; `$${` stands for `${`. Says what is unset or malformed.

        The default counts when the variable is unset or empty, as in a shell.
        """
        if "${" not in text:
            return text, False
        expanded = False

        def one(match: re.Match[str]) -> str:
            nonlocal expanded
            if match[0].startswith("$${"):
                return match[0][1:]
            reference = _REFERENCE.fullmatch(match[1])
            if not match[2] or reference is None or "${" in match[1]:
                hint = "write ${NAME} or ${NAME:-default}; $${ stands for ${ itself"
                self._say(path, line, "has a malformed ${...}", hint)
                return ""
            expanded = True
            name, default = reference[1], reference[2]
            value = self._env.get(name)
            if default is not None:
                return value or default
            if value is None:
                hint = f"set it, or write ${{{name}:-default}}"
                self._say(path, line, f"the environment variable {name} is not set", hint)
                return ""
            return value

        return _VARIABLE.sub(one, text), expanded

    def _say(self, path: Path, line: int, message: str, hint: str) -> None:
        problem = Problem(
            severity=Severity.ERROR, path=dotted(path), line=line, message=message, hint=hint
        )
        self.problems.append((path, problem))


def _plain(text: str) -> object:
    """A plain scalar → its value by YAML 1.2's core schema."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    if len(text) <= 64:
        if _INT.fullmatch(text):
            return int(text, 0) if text[:2] in {"0x", "0o"} else int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text
