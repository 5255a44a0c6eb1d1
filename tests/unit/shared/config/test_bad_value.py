import pytest

from continuum_shared.config.bad_value import BadValue, EnvText, echo


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("RoundRobbin", '"RoundRobbin" '),
        ("event_bus", '"event_bus" '),
        ("3 parsecs", '"3 parsecs" '),
        ("30", '"30" '),
        ("1.5x", '"1.5x" '),
        (30, "30 "),
        (True, "true "),
        (False, "false "),
        ("sk-canary-123", ""),
        ("http://user:pw@host", ""),
        ("two words", ""),
        ("line\nbreak", ""),
        ("a" * 25, ""),
        (EnvText("word"), ""),
        (["a"], ""),
        (None, ""),
    ],
)
def test_only_harmless_values_are_echoed(value, shown):
    assert echo(value) == shown


def test_a_bad_value_keeps_its_parts():
    error = BadValue("is wrong", "be right", at=("k", 2))
    assert (error.message, error.hint, error.at, str(error)) == (
        "is wrong",
        "be right",
        ("k", 2),
        "is wrong",
    )
