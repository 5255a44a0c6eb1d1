"""The kinds of value that configuration keys have, and the base of every section model.

Imports no network library: reading and checking a file needs neither a loop nor a socket.
"""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any, ClassVar, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from continuum_shared.config.addresses import (
    BackendUrl,
    HttpEndpoint,
    ListenAddress,
    Network,
    StreamEndpoint,
    ZmqEndpoint,
    parse_network,
)
from continuum_shared.config.bad_value import BadValue, echo

__all__ = [
    "BackendUrl",
    "ByteSize",
    "Duration",
    "HttpEndpoint",
    "Int",
    "IpNetwork",
    "Kind",
    "ListenAddress",
    "Name",
    "Number",
    "Reload",
    "Secret",
    "SectionModel",
    "StreamEndpoint",
    "Text",
    "ZmqEndpoint",
    "choice",
    "format_bytes",
    "format_duration",
    "not_yet",
    "parse_bytes",
    "parse_duration",
    "with_unit",
]

_UNITS = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
_DURATION_PART = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(ms|s|m|h|d)\s*")
_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_BYTE_SIZE = re.compile(r"(\d{1,18})\s*([A-Za-z]{0,3})")


class Kind(StrEnum):
    """Marks a number whose text form has a unit, so that bounds are worded in that unit."""

    DURATION = "duration"
    BYTES = "bytes"


class Reload(StrEnum):
    """What changing a key of a running daemon needs (decisions H4, H14)."""

    HOT = "hot"
    RESTART = "restart"
    REFUSED = "refused"


def parse_duration(value: object) -> float:
    """Text such as `"1m30s"` → seconds (decisions E17). A bare number is refused, except 0.

    Units ms, s, m, h, d; decimals allowed; combinable from large to small, each once.
    """
    hint = 'write a number with a unit, such as "250ms", "30s" or "1h30m" (ms, s, m, h, d)'
    if isinstance(value, float | int) and not isinstance(value, bool):
        if value == 0:
            return 0.0
        raise BadValue(f"{echo(value)}has no unit", hint)
    if not isinstance(value, str):
        raise BadValue("is not a duration", hint)
    text = value.strip()
    if re.fullmatch(r"0+(\.0+)?", text):
        return 0.0
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(_DURATION_PART.sub("", text)):
        bare = re.fullmatch(r"\d+(\.\d+)?", text)
        raise BadValue(f"{echo(value)}" + ("has no unit" if bare else "is not a duration"), hint)
    order = [list(_UNITS).index(unit) for _, unit in parts]
    if order != sorted(set(order)):
        raise BadValue(f"{echo(value)}has its units out of order or twice", hint)
    return float(sum(Decimal(number) * _UNITS[unit] for number, unit in parts))


def format_duration(seconds: float) -> str:
    """Seconds → shortest text that `parse_duration` reads back to the same value."""
    exact = Decimal(repr(seconds))
    if exact == exact.to_integral_value():
        return f"{int(exact)}s"
    milli = exact * 1000
    if milli == milli.to_integral_value():
        return f"{int(milli)}ms"
    return f"{exact:f}s"


def parse_bytes(value: object) -> int:
    """A count of bytes, or text such as `"10MiB"` (KiB… are powers of 1024, KB… of 1000)."""
    hint = 'write a number of bytes or a size such as "64KiB" or "10MiB"'
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise BadValue(f"{value} is negative", hint)
        return value
    match = _BYTE_SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    factor = _BYTE_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise BadValue(f"{echo(value)}is not a size in bytes", hint)
    return int(match[1]) * factor


def format_bytes(count: int) -> str:
    """Bytes → `64MiB` where that is exact, else the plain number."""
    for unit in ("GiB", "MiB", "KiB"):
        size = _BYTE_UNITS[unit.lower()]
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def with_unit(value: float, unit: Kind | None) -> str:
    """A number as a file would have it."""
    if unit is Kind.DURATION:
        return format_duration(float(value))
    if unit is Kind.BYTES:
        return format_bytes(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _no_flag(value: object) -> object:
    """Python counts true as 1; a reader of the file does not."""
    if isinstance(value, bool):
        raise BadValue("must be a number, not true or false")
    return value


def _network(value: object) -> Network:
    if not isinstance(value, str):
        raise BadValue("must be an IP address or a CIDR block", 'such as "10.0.0.0/8"')
    return parse_network(value)


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^\s*(\d+(\.\d+)?\s*(ms|s|m|h|d)\s*)+$|^0$|\$\{"},
                {"const": 0},
            ],
            "examples": ["250ms", "30s", "1h30m"],
        }
    ),
    Kind.DURATION,
]
ByteSize = Annotated[
    int,
    BeforeValidator(parse_bytes),
    PlainSerializer(format_bytes, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}],
            "examples": [65536, "64KiB", "10MiB"],
        }
    ),
    Kind.BYTES,
]
Int = Annotated[int, BeforeValidator(_no_flag)]
Number = Annotated[float, BeforeValidator(_no_flag)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
IpNetwork = Annotated[
    Network,
    BeforeValidator(_network),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["10.0.0.7", "10.0.0.0/8"]}),
]


class Secret:
    """Text that prints as `***` everywhere; only `reveal()` gives it out (decisions P2)."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = str(text)

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __deepcopy__(self, memo: object) -> "Secret":
        return self

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not pickled")

    @classmethod
    def _validate(cls, value: object) -> "Secret":
        if isinstance(value, Secret):
            return value
        if not isinstance(value, str):
            raise BadValue("must be text", "put it in quotes")
        if not value:
            raise BadValue("is empty", "leave the key out when there is no secret")
        if any(ch < " " or ch == "\x7f" for ch in value):
            raise BadValue("contains a line break or another control character")
        return cls(value)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "writeOnly": True, "examples": ["${API_KEY}"]}


def choice(members: type[StrEnum], *, later: Iterable[str] = ()) -> BeforeValidator:
    """Validator of a key with a closed list of words; PascalCase equals snake_case (A16).

    `later` are words of the source documents that this version does not build: they get a
    message of their own instead of "unknown".
    """
    known = {_folded(member.value): member for member in members}
    waiting = {_folded(word) for word in later}
    listed = ", ".join(member.value for member in members)

    def read(value: object) -> object:
        if value is None:
            return None
        if not isinstance(value, str):
            raise BadValue(f"must be one of {listed}")
        found = known.get(_folded(value))
        if found is not None:
            return found
        if _folded(value) in waiting:
            raise BadValue(f"{echo(value)}is not in this version", f"available: {listed}")
        near = get_close_matches(_folded(value), known, n=1)
        guess = f'did you mean "{known[near[0]].value}"? ' if near else ""
        raise BadValue(f"{echo(value)}is not a known value", f"{guess}known: {listed}")

    return BeforeValidator(read)


def not_yet(*names: str, **reasons: str) -> Mapping[str, str]:
    """Keys of the source documents that this version does not build, for `SectionModel.later`."""
    return {**dict.fromkeys(names, ""), **reasons}


def _folded(word: str) -> str:
    return re.sub(r"[_\-\s.]", "", word).lower()


def _for_editors(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Editors must accept the `x_` keys that the reader ignores, and show defaults as written."""
    schema["patternProperties"] = {"^x_": {}}
    defaults = model.model_construct().model_dump(mode="json")
    for name, shown in schema.get("properties", {}).items():
        if "default" in shown:
            shown["default"] = defaults[name]


class SectionModel(BaseModel):
    """Base of every section: frozen, unknown keys refused, input never echoed by pydantic.

    `reload` is the class of every key of the section unless the field's `json_schema_extra` has
    `{"reload": ...}`; `identity` names the key by which items of a list are told apart in a diff;
    `stand_ins` are harmless values for required keys, used only to go on checking a file that
    already has errors; `later` maps keys of the source documents that this version does not build
    to a short reason.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        json_schema_extra=_for_editors,
        use_attribute_docstrings=False,
    )

    reload: ClassVar[Reload] = Reload.HOT
    identity: ClassVar[str] = ""
    stand_ins: ClassVar[Mapping[str, object]] = {}
    later: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_notes_and_empties(cls, data: object) -> object:
        """`x_` keys are notes (H5); a section or list without content means its defaults."""
        if data is None:
            return {}
        if not isinstance(data, dict):
            return data
        return {
            key: value
            for key, value in data.items()
            if not str(key).startswith("x_") and not (value is None and cls._may_be_empty(key))
        }

    @classmethod
    def _may_be_empty(cls, key: str) -> bool:
        field = cls.model_fields.get(key)
        if field is None or field.is_required():
            return False
        kind = field.annotation
        section = isinstance(kind, type) and issubclass(kind, SectionModel)
        return section or get_origin(kind) in {tuple, dict}
