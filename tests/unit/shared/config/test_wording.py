from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field, StringConstraints

from continuum_shared.config.decode import decode
from continuum_shared.config.kinds import ByteSize, Duration, Int, Name, Number, SectionModel, Text
from continuum_shared.config.kinds import not_yet as later_keys
from continuum_shared.config.source import load_text


class Part(SectionModel):
    first: Int = 1


class Everything(SectionModel):
    later: ClassVar = later_keys("some_day", tomorrow="use number")

    whole: Int = Field(5, ge=1, le=10)
    number: Number = Field(0.5, gt=0, lt=1)
    wait: Duration = Field(30.0, ge=0.001, le=60)
    size: ByteSize = Field(1 << 20, ge=1024, le=1 << 30)
    flag: bool = True
    text: Text = "x"
    name: Name = "n"
    short: Annotated[str, StringConstraints(max_length=3)] = ""
    coded: Annotated[str, StringConstraints(pattern="^[ab]+$")] = "a"
    many: tuple[Text, ...] = ()
    some: Annotated[tuple[Text, ...], Field(min_length=1, max_length=2)] = ("a",)
    pair: Annotated[tuple[Int, ...], Field(min_length=2)] = (1, 2)
    table: dict[str, int] = Field(default_factory=dict)
    part: Part = Field(default_factory=Part)
    word: Literal["a"] = "a"


def _said(text):
    _, report = decode(Everything, load_text(text, path="f", env={}))
    return report.lines()


WHOLE = "must be a whole number; such as 10"
NUMBER = "must be a number; write it without quotes or units"
LIST = "must be a list; write [a, b] or one line with - for each item"
MAPPING = "must be a mapping; write KEY: VALUE lines below it"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("whole: x", f"whole: {WHOLE}"),
        ("whole: 1.5", f"whole: {WHOLE}"),
        ("whole: [1]", f"whole: {WHOLE}"),
        ("whole: ''", f"whole: {WHOLE}"),
        ("whole: 0", "whole: must be at least 1; default 5"),
        ("whole: 11", "whole: must be at most 10; default 5"),
        ("whole:", "whole: has no value; write one, or leave the key out"),
        ("number: x", f"number: {NUMBER}"),
        ("number: {}", f"number: {NUMBER}"),
        ("number: 0", "number: must be more than 0; default 0.5"),
        ("number: 1", "number: must be less than 1; default 0.5"),
        ("number: .nan", "number: must be a finite number"),
        ("number: .inf", "number: must be a finite number"),
        ("wait: 0.1ms", "wait: must be at least 1ms; default 30s"),
        ("wait: 2m", "wait: must be at most 60s; default 30s"),
        ("wait:", "wait: has no value; write one, or leave the key out"),
        ("size: 1", "size: must be at least 1KiB; default 1MiB"),
        ("size: 2GiB", "size: must be at most 1GiB; default 1MiB"),
        ("flag: maybe", "flag: must be true or false"),
        ("flag: 2", "flag: must be true or false"),
        ("flag: []", "flag: must be true or false"),
        ("text: 5", "text: must be text; put it in quotes"),
        ("text: true", "text: must be text; put it in quotes"),
        ("text: ''", "text: is empty; write some text or leave the key out"),
        (
            "name: a b",
            "name: is not a valid name; use 1 to 64 letters, digits, dots, dashes or underscores",
        ),
        ("short: abcd", "short: is longer than 3"),
        ("coded: x", "coded: has characters that are not allowed"),
        ("many: x", f"many: {LIST}"),
        ("many: {a: 1}", f"many: {LIST}"),
        ("many: [1]", "many[0]: must be text; put it in quotes"),
        ("some: []", "some: is empty; write at least one"),
        ("some: [a, b, c]", "some: is longer than 2"),
        ("pair: [1]", "pair: needs at least 2 items"),
        ("table: x", f"table: {MAPPING}"),
        ("table: {a: x}", f"table.a: {WHOLE}"),
        ("part: x", f"part: {MAPPING}"),
        ("part: [x]", f"part: {MAPPING}"),
        ("part: {first: x}", f"part.first: {WHOLE}"),
        ("part: {fisrt: 1}", 'part.fisrt: is not a known key; did you mean "first"?'),
        ("part: {zzz: 1}", "part.zzz: is not a known key; known: first"),
        ("Wait: 1s", 'Wait: is not a known key; did you mean "wait"?'),
        ("first: 1", 'first: is not a known key; did you mean "part.first"?'),
        ("some_day: 1", "some_day: is not in this version; remove it, or name it x_some_day"),
        ("tomorrow: 1", "tomorrow: is not in this version; use number"),
        ("word: b", "word: cannot be used here; see docs/configuration.md"),
    ],
)
def test_each_error_in_plain_english(text, said):
    assert _said(text) == [f"f:1: {said}"]


def test_flags_may_be_spelled_as_people_do():
    config, _ = decode(Everything, load_text("flag: no", path="f", env={}))
    assert config is not None
    assert config.flag is False
