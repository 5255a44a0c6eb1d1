"""Secrets that a file does not hold: it names the environment variables that do.

The variables are looked up while the file is read (`Source.env`), so that nothing else of a daemon
has to know the environment.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    WithJsonSchema,
)
from pydantic import GetJsonSchemaHandler as SchemaHandler
from pydantic_core import CoreSchema, core_schema

from continuum_shared.config.bad_value import BadValue

MAX_SECRETS = 8
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class EnvSecret:
    """The name of an environment variable and what it held; only `reveal()` gives that out.

    Prints, compares and serialises as its name.
    """

    __slots__ = ("_text", "name")

    def __init__(self, name: str, text: str | None) -> None:
        self.name = name
        self._text = text or None

    @property
    def given(self) -> bool:
        """False when the variable is unset or empty."""
        return self._text is not None

    def reveal(self) -> str:
        """The secret. Raises ValueError when it is not given (a checked file has it)."""
        if self._text is None:
            raise ValueError(f"{self.name} is not set")
        return self._text

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnvSecret) and other.name == self.name

    def __hash__(self) -> int:
        return hash((EnvSecret, self.name))

    def __reduce__(self) -> str:
        raise TypeError("an EnvSecret is not pickled")

    @classmethod
    def _read(cls, value: object, info: core_schema.ValidationInfo) -> "EnvSecret":
        if isinstance(value, EnvSecret):
            return value
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise BadValue(
                "must be the name of an environment variable",
                "letters, digits and _, not the secret itself",
            )
        env = info.context if isinstance(info.context, Mapping) else {}
        return cls(value, env.get(value))

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            cls._read, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: SchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _once(secrets: tuple[EnvSecret, ...]) -> tuple[EnvSecret, ...]:
    for index, secret in enumerate(secrets):
        if secret in secrets[:index]:
            raise BadValue("is listed twice", "remove one", at=(index,))
    return secrets


EnvSecrets = Annotated[
    tuple[EnvSecret, ...],
    BeforeValidator(_listed),
    AfterValidator(_once),
    Field(max_length=MAX_SECRETS),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "maxItems": MAX_SECRETS},
            ]
        }
    ),
]
"""One name or a list of them."""
