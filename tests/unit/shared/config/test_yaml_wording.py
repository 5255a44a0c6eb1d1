import pytest

from continuum_shared.config.source import load_text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\n\tb: 2", "f:2: a tab is used where YAML wants spaces; indent with spaces"),
        ("a: *nope", "f:1: an alias (*name) has no anchor (&name) above it"),
        (
            "a: b: c",
            'f:1: a colon is not expected here; a value that holds ": " goes in quotes; check the '
            "indentation",
        ),
        ("a: 1\nb\nc: 2", "f:3: a key has no colon after it; write KEY: VALUE"),
        ("a: 'x\n", "f:2: a quote is opened and never closed"),
        (
            'a: "\\d"',
            "f:1: a double-quoted text has an unknown \\ escape; use single quotes, or \\\\ for a "
            "backslash",
        ),
        ("a: [1, 2\nb: 3", "f:2: a list in [ ] is not closed or lacks a comma"),
        (
            "a: {b: 1, c: 2\nd: [",
            "f:2: a mapping in { } is not closed or lacks a comma; inside { } quote ${VAR}",
        ),
        ("a:\n  b: 1\n c: 2", "f:3: this line does not fit the lines above; check the indentation"),
        ("a: 1\nb: @x", "f:2: a value begins with a reserved character (@ ` %); put it in quotes"),
        ("a: 1\nb: \x01", "f:2: the file has a character that YAML forbids"),
        ("a: |x\n b", "f:1: this is not valid YAML; check quotes, colons and indentation"),
        ("a: &", "f:1: this is not valid YAML; check quotes, colons and indentation"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_syntax_errors_in_plain_english(text, said):
    source = load_text(text, path="f", env={})
    assert source.data is None
    assert [problem.text("f") for _, problem in source.problems] == [said]


def test_the_text_of_a_broken_file_is_not_repeated():
    for text in ("a: 'canary", "a: @canary", "canary: {", "a: *canary", "a: !canary<", "%canary"):
        source = load_text(text, path="f", env={})
        assert not any("canary" in problem.text("f") for _, problem in source.problems)
