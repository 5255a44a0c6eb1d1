import copy
import pickle
from enum import StrEnum
from typing import Annotated, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from continuum_shared.config.bad_value import BadValue
from continuum_shared.config.kinds import (
    ByteSize,
    Duration,
    Int,
    Kind,
    Number,
    Secret,
    SectionModel,
    choice,
    format_bytes,
    format_duration,
    not_yet,
    parse_bytes,
    parse_duration,
    with_unit,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("35ms", 0.035),
        ("30s", 30.0),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        ("1d2h3m4s5ms", 93784.005),
        (" 2 m 1s ", 121.0),
        ("0", 0.0),
        ("0.0", 0.0),
        ("0s", 0.0),
        (0, 0.0),
        (0.0, 0.0),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (30, "30 has no unit"),
        (1.5, "1.5 has no unit"),
        ("30", '"30" has no unit'),
        ("1.5", '"1.5" has no unit'),
        ("-1s", '"-1s" is not a duration'),
        ("1 parsec", '"1 parsec" is not a duration'),
        ("1s2", "is not a duration"),
        ("x1s", "is not a duration"),
        ("", "is not a duration"),
        ("1m1h", "has its units out of order or twice"),
        ("1s1s", "has its units out of order or twice"),
        ("1e3s", "is not a duration"),
        ("nan", '"nan" is not a duration'),
        (True, "is not a duration"),
        (None, "is not a duration"),
        ([1], "is not a duration"),
    ],
)
def test_bad_durations(value, message):
    with pytest.raises(BadValue) as caught:
        parse_duration(value)
    assert caught.value.message == message
    assert caught.value.hint == (
        'write a number with a unit, such as "250ms", "30s" or "1h30m" (ms, s, m, h, d)'
    )


@given(st.integers(min_value=0, max_value=10**12))
def test_a_duration_prints_as_what_it_was(milliseconds):
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == seconds


def test_durations_print_in_the_units_of_the_source():
    printed = [format_duration(s) for s in (600.0, 0.1, 1.5, 0.0001, 0.0)]
    assert printed == ["600s", "100ms", "1500ms", "0.0001s", "0s"]


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (0, 0),
        (65536, 65536),
        ("65536", 65536),
        ("64KiB", 65536),
        ("64 kib", 65536),
        ("10MiB", 10485760),
        ("1GiB", 1 << 30),
        ("10MB", 10_000_000),
        ("5b", 5),
    ],
)
def test_byte_sizes(value, count):
    assert parse_bytes(value) == count


@pytest.mark.parametrize("value", ["", "MiB", "1.5MiB", "-1", "10 XB", True, 1.0, None, "1M"])
def test_bad_byte_sizes(value):
    with pytest.raises(BadValue) as caught:
        parse_bytes(value)
    assert caught.value.message.endswith("is not a size in bytes")


def test_a_negative_size_is_named():
    with pytest.raises(BadValue, match="-5 is negative"):
        parse_bytes(-5)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_a_size_prints_as_what_it_was(count):
    assert parse_bytes(format_bytes(count)) == count


def test_numbers_with_their_unit():
    assert with_unit(0.001, Kind.DURATION) == "1ms"
    assert with_unit(1 << 20, Kind.BYTES) == "1MiB"
    assert with_unit(0.25, None) == "0.25"
    assert with_unit(7, None) == "7"


class Colour(StrEnum):
    DARK_RED = "dark_red"
    BLUE = "blue"


class Sample(SectionModel):
    later: ClassVar = not_yet("old", newer="use wait")

    colour: Annotated[Colour, choice(Colour, later=("Green",))] = Colour.BLUE
    wait: Duration = Field(1.0, ge=0.5, le=10)
    size: ByteSize = Field(1024, ge=1)
    count: Int = 1
    share: Number = 1.0
    key: Secret | None = None
    names: tuple[str, ...] = ()
    more: "Sample | None" = None


def _bad(**data):
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate(data)
    (error,) = caught.value.errors()
    return error.get("ctx", {}).get("error") or error["type"]


@pytest.mark.parametrize("text", ["DarkRed", "dark_red", "darkred", "DARK-RED"])
def test_choices_fold_case_and_separators(text):
    assert Sample.model_validate({"colour": text}).colour is Colour.DARK_RED


def test_choices_say_what_would_be_right():
    near = _bad(colour="dark_rad")
    assert (near.message, near.hint) == (
        '"dark_rad" is not a known value',
        'did you mean "dark_red"? known: dark_red, blue',
    )
    assert _bad(colour="zzz").hint == "known: dark_red, blue"
    later = _bad(colour="green")
    assert (later.message, later.hint) == (
        '"green" is not in this version',
        "available: dark_red, blue",
    )
    assert _bad(colour=3).message == "must be one of dark_red, blue"


def test_numbers_take_the_text_of_a_variable_but_no_flag():
    sample = Sample.model_validate({"count": "5", "share": "0.5", "wait": "2s", "size": "1KiB"})
    assert (sample.count, sample.share, sample.wait, sample.size) == (5, 0.5, 2.0, 1024)
    assert _bad(count=True).message == "must be a number, not true or false"
    assert _bad(share=False).message == "must be a number, not true or false"
    assert _bad(share=float("nan")) == "finite_number"
    assert _bad(wait="100ms") == "greater_than_equal"


def test_sections_are_frozen_and_drop_notes_and_empties():
    sample = Sample.model_validate({"x_note": 1, "names": None})
    assert sample.names == ()
    with pytest.raises(ValidationError):
        sample.count = 2
    assert _bad(unknown=1) == "extra_forbidden"
    assert _bad(count=None) == "int_type"
    assert Sample.model_validate(None) == Sample()


def test_not_yet_keeps_reasons():
    assert dict(Sample.later) == {"old": "", "newer": "use wait"}


def test_a_secret_never_prints():
    secret = Secret("canary")
    sample = Sample.model_validate({"key": "canary"})
    printed = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>9}",
        "%s" % secret,  # noqa: UP031
        repr(sample),
        str(sample),
        repr(sample.model_dump()),
        sample.model_dump_json(),
        repr([secret]),
    ]
    assert not any("canary" in text for text in printed)
    assert secret.reveal() == "canary"
    assert sample.key == secret
    assert copy.deepcopy(secret) == secret
    assert secret != Secret("other")
    assert len({secret, Secret("canary")}) == 1
    with pytest.raises(TypeError):
        pickle.dumps(secret)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "is empty"),
        (5, "must be text"),
        ("canary\n", "contains a line break or another control character"),
        ("canary\x7f", "contains a line break or another control character"),
    ],
)
def test_bad_secrets_are_not_repeated(value, message):
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate({"key": value})
    (error,) = caught.value.errors()
    assert error["ctx"]["error"].message == message
    assert "canary" not in str(caught.value)


def test_editors_accept_notes():
    assert Sample.model_json_schema()["$defs"]["Sample"]["patternProperties"] == {"^x_": {}}
