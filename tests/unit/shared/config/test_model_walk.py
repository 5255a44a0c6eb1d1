from typing import Annotated, ClassVar

import pytest
from pydantic import Field

from continuum_shared.config.kinds import Duration, Kind, Name, Reload, Secret, SectionModel
from continuum_shared.config.model_walk import (
    field_at,
    is_note,
    kind_of,
    places_of,
    reload_class,
    secret_paths,
    section_at,
    strip_optional,
    type_at,
)


class Leaf(SectionModel):
    reload: ClassVar[Reload] = Reload.RESTART
    identity: ClassVar[str] = "name"

    name: Name
    key: Secret | None = None
    warm: bool = Field(True, json_schema_extra={"reload": "hot"})


class Root(SectionModel):
    wait: Duration = 1.0
    leaves: tuple[Leaf, ...] = ()
    hot_leaves: tuple[Leaf, ...] = Field((), json_schema_extra={"reload": "refused"})
    only: Leaf | None = None
    keys: dict[str, Secret] = Field(default_factory=dict)


def test_optional_and_annotated_are_stripped():
    assert strip_optional(Annotated[int | None, "x"]) is int
    assert strip_optional(int | str) == (int | str)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ((), Root),
        (("wait",), float),
        (("leaves", 3), Leaf),
        (("leaves", "by-name"), Leaf),
        (("leaves", 3, "name"), str),
        (("only",), Leaf),
        (("only", "key"), Secret),
        (("keys", "any"), Secret),
        (("nowhere",), None),
        (("leaves", 3, "nowhere"), None),
        (("wait", "below"), None),
        ((0,), None),
    ],
)
def test_types_along_a_path(path, found):
    assert type_at(Root, path) is found


def test_sections_fields_and_kinds():
    assert section_at(Root, ("leaves", 0)) is Leaf
    assert section_at(Root, ("wait",)) is None
    assert kind_of(field_at(Root, ("wait",))) is Kind.DURATION
    assert kind_of(field_at(Root, ("leaves", 0, "name"))) is None
    assert field_at(Root, ("leaves", 0)) is None
    assert field_at(Root, ()) is None
    assert kind_of(None) is None


def test_notes_are_keys_of_sections_only():
    assert is_note(Root, ("x_any", "thing"))
    assert is_note(Root, ("leaves", 0, "x_note"))
    assert not is_note(Root, ("keys", "x_header"))
    assert not is_note(Root, ("wait",))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (("wait",), "hot"),
        (("leaves",), "hot"),
        (("leaves", 0, "name"), "restart"),
        (("leaves", "a", "warm"), "hot"),
        (("hot_leaves",), "refused"),
        (("only",), "restart"),
        (("only", "warm"), "hot"),
    ],
)
def test_reload_classes(path, expected):
    assert reload_class(Root, path) == expected


def test_where_a_key_exists():
    assert list(places_of(Root, "wait")) == ["wait"]
    assert list(places_of(Root, "warm")) == ["leaves[].warm", "hot_leaves[].warm", "only.warm"]
    assert list(places_of(Root, "nowhere")) == []


def test_secrets_are_found_where_they_stand():
    root = Root.model_validate(
        {
            "leaves": [{"name": "a"}, {"name": "b", "key": "s"}],
            "only": {"name": "c", "key": "s"},
            "keys": {"h": "s"},
        }
    )
    assert set(secret_paths(root)) == {("leaves", 1, "key"), ("only", "key"), ("keys", "h")}
