"""PyYAML's complaints → a line and plain English. No part of the file's text is repeated."""

import yaml

_PHRASES: tuple[tuple[str, str, str], ...] = (
    (
        "found character '\\t'",
        "a tab is used where YAML wants spaces",
        "indent with spaces",
    ),
    ("'<stream end>'", "the file ends before a [ or { is closed", ""),
    ("found undefined alias", "an alias (*name) has no anchor (&name) above it", ""),
    ("found duplicate anchor", "an anchor (&name) is defined twice", ""),
    (
        "mapping values are not allowed here",
        "a colon is not expected here",
        'a value that holds ": " goes in quotes; check the indentation',
    ),
    ("expected a single document", "the file holds more than one document", "keep one, remove ---"),
    ("but found another document", "the file holds more than one document", "keep one, remove ---"),
    ("could not find expected ':'", "a key has no colon after it", "write KEY: VALUE"),
    ("found unexpected end of stream", "a quote is opened and never closed", ""),
    (
        "unknown escape character",
        "a double-quoted text has an unknown \\ escape",
        "use single quotes, or \\\\ for a backslash",
    ),
    ("expected ',' or ']'", "a list in [ ] is not closed or lacks a comma", ""),
    (
        "expected ',' or '}'",
        "a mapping in { } is not closed or lacks a comma",
        "inside { } quote ${VAR}",
    ),
    ("expected <block end>", "this line does not fit the lines above", "check the indentation"),
    ("special characters are not allowed", "the file has a character that YAML forbids", ""),
    ("unacceptable character", "the file has a character that YAML forbids", ""),
    (
        "cannot start any token",
        "a value begins with a reserved character (@ ` %)",
        "put it in quotes",
    ),
)


def yaml_message(error: yaml.YAMLError, text: str) -> tuple[int, str, str]:
    """Return (line, message, hint) for an error in a text."""
    said = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "")
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    before = text[: getattr(error, "position", None) or 0]
    line = mark.line + 1 if mark is not None else before.count("\n") + 1
    for phrase, message, hint in _PHRASES:
        if phrase in said:
            return line, message, hint
    return line, "this is not valid YAML", "check quotes, colons and indentation"
