"""The one exception by which a configuration value says what is wrong with it, in plain English."""

import re

_HARMLESS = re.compile(r"[A-Za-z_.]{1,24}|-?[0-9]{1,12}(\.[0-9]{1,6})?\s?[A-Za-z]{0,8}")


class EnvText(str):
    """Text into which an environment variable was expanded. It may be a secret: never echo it."""

    __slots__ = ()


class BadValue(ValueError):
    """A value that cannot be used. `message` continues "KEY: ", `hint` says what would be right.

    `at` points from the value that was being checked to the one that is wrong (empty = itself).
    Neither text may hold the value unless it went through `echo`.
    """

    def __init__(self, message: str, hint: str = "", *, at: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.at = at


def echo(value: object) -> str:
    """Return `"value" ` to begin a message with, or nothing unless it is short and harmless.

    Only a word, or a number with a unit, that was written in the file is repeated. The line number
    leads to anything else, and a secret in the wrong key is not shown in a terminal or a log.
    """
    if isinstance(value, bool):
        return "true " if value else "false "
    if isinstance(value, int | float):
        return f"{value} "
    if isinstance(value, str) and not isinstance(value, EnvText) and _HARMLESS.fullmatch(value):
        return f'"{value}" '
    return ""
