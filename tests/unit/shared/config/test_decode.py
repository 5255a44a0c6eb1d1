import json
from collections.abc import Iterator, Mapping
from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from continuum_shared.config.decode import ANY, Check, Finding, View, decode
from continuum_shared.config.kinds import Int, Name, SectionModel
from continuum_shared.config.report import Severity
from continuum_shared.config.source import load_text


class Item(SectionModel):
    stand_ins: ClassVar[Mapping[str, object]] = {"name": "-", "size": 1}

    name: Name
    size: Int = Field(ge=1)
    extra: Int = 0


class Root(SectionModel):
    low: Int = 1
    high: Int = 10
    items: tuple[Item, ...] = ()
    matrix: tuple[tuple[Int, ...], ...] = ()


def _in_order(root: Root, view: View) -> Iterator[Finding]:
    if root.low > root.high:
        yield Finding(path=("low",), message="is above high")


def _unique(root: Root, view: View) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, item in enumerate(root.items):
        if not view.sure(("items", index, "name")):
            continue
        if item.name in seen:
            yield Finding(path=("items", index, "name"), message="is taken")
        seen.add(item.name)


def _small(root: Root, view: View) -> Iterator[Finding]:
    if sum(item.size for item in root.items) > 100:
        yield Finding(path=("items",), message="is much", severity=Severity.WARNING)


def _low_written(root: Root, view: View) -> Iterator[Finding]:
    if view.written(("low",)):
        yield Finding(path=("low",), message="is written", severity=Severity.WARNING)


CHECKS = (
    Check(_in_order, (("low",), ("high",))),
    Check(_unique),
    Check(_small, (("items", ANY, "size"),)),
)


def _decode(text, checks=CHECKS, **env):
    return decode(Root, load_text(text, path="f", env=env), checks)


def test_a_good_file():
    root, report = _decode("{low: 2, items: [{name: a, size: 3}]}")
    assert root == Root(low=2, items=(Item(name="a", size=3),))
    assert report.lines() == []


def test_errors_of_keys_and_of_rules_come_together():
    root, report = _decode(
        "low: 20\n"
        "hihg: 3\n"
        "items:\n"
        "- {name: a, size: 0}\n"
        "- {name: a, size: 1, extra: x}\n"
        "- {name: b c, size: 200}\n"
        "- {size: 1}\n"
        "- text\n"
        "- {name: a, size: '${UNSET}'}\n"
    )
    assert root is None
    assert report.lines() == [
        "f:1: low: is above high",
        'f:2: hihg: is not a known key; did you mean "high"?',
        "f:4: items[0].size: must be at least 1",
        "f:5: items[1].extra: must be a whole number; such as 10",
        "f:5: items[1].name: is taken",
        "f:6: items[2].name: is not a valid name; use 1 to 64 letters, digits, dots, dashes or "
        "underscores",
        "f:7: items[3].name: is required",
        "f:8: items[4]: must be a mapping; write KEY: VALUE lines below it",
        "f:9: items[5].name: is taken",
        "f:9: items[5].size: the environment variable UNSET is not set; set it, or write "
        "${UNSET:-default}",
    ]


def test_a_rule_stays_silent_when_what_it_reads_is_in_doubt():
    assert _decode("{low: 20, high: x}")[1].lines() == [
        "f:1: high: must be a whole number; such as 10"
    ]
    much = "{items: [{name: a, size: 200}, {name: b, size: 0}]}"
    assert _decode(much)[1].lines() == ["f:1: items[1].size: must be at least 1"]


def test_warnings_do_not_cost_the_instance():
    root, report = _decode("{items: [{name: a, size: 200}]}")
    assert root is not None
    assert report.lines() == ["f:1: warning: items: is much"]


def test_only_written_keys_count_as_written():
    checks = (Check(_low_written),)
    assert _decode("{low: 1}", checks)[1].lines() == ["f:1: warning: low: is written"]
    assert _decode("{}", checks)[1].lines() == []


def test_notes_may_hold_anything():
    root, report = _decode(
        "x_a: ${UNSET}\nx_b: {c: !t 1}\nitems: [{name: a, size: 1, x_c: '${UNSET}'}]"
    )
    assert report.lines() == []
    assert root is not None


def test_nested_lists_are_mended():
    root, report = _decode("{matrix: [[1, x], [2], y]}")
    assert root is None
    assert report.lines() == [
        "f:1: matrix[0][1]: must be a whole number; such as 10",
        "f:1: matrix[2]: must be a list; write [a, b] or one line with - for each item",
    ]


def test_an_unreadable_file_has_one_problem():
    root, report = _decode("a: [")
    assert root is None
    assert len(report.errors) == 1


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_TREES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["low", "high", "items", "matrix", "name", "size", "x_a", "zz"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["low", "high", "items", "matrix", "zz"]), _TREES))
def test_no_data_whatever_raises_or_shows_pydantic(tree):
    root, report = _decode(json.dumps(tree))
    assert (root is None) == bool(report.errors)
    for line in report.lines():
        for foreign in ("pydantic", "Input should", "validation error", "type=", "dict", "tuple"):
            assert foreign not in line
