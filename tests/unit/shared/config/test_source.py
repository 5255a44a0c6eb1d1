import math

import pytest

from continuum_shared.config.bad_value import EnvText
from continuum_shared.config.source import MAX_FILE_BYTES, load_file, load_text


def _load(text, **env):
    return load_text(text, path="f", env=env)


def _said(source):
    return [problem.text(source.file) for _, problem in source.problems]


def test_scalars_follow_the_core_schema():
    source = _load(
        "{a: yes, b: on, c: true, d: False, e: null, f: ~, g: 10, h: 0x10, i: 0o17, j: 010, "
        "k: 1.5, l: 1e3, m: .inf, n: 2024-01-01, o: '10', p: \"true\", q: 1:30, r: +5, s: -0.5}"
    )
    assert source.problems == ()
    assert source.data == {
        "a": "yes",
        "b": "on",
        "c": True,
        "d": False,
        "e": None,
        "f": None,
        "g": 10,
        "h": 16,
        "i": 15,
        "j": 10,
        "k": 1.5,
        "l": 1000.0,
        "m": math.inf,
        "n": "2024-01-01",
        "o": "10",
        "p": "true",
        "q": "1:30",
        "r": 5,
        "s": -0.5,
    }
    assert math.isnan(_load("a: .nan").data["a"])


def test_keys_are_text():
    assert _load("{1: a, true: b, null: c, 7b: d}").data == {
        "1": "a",
        "true": "b",
        "null": "c",
        "7b": "d",
    }


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n"])
def test_an_empty_file_is_an_empty_mapping(text):
    assert _load(text).data == {}
    assert _load(text).problems == ()


def test_json_is_yaml():
    assert _load('{"a": {"b": [1, 2.5, null, "x"]}}').data == {"a": {"b": [1, 2.5, None, "x"]}}


def test_every_key_and_item_has_its_line():
    source = _load("a:\n  b: 1\n  c:\n  - x\n  - d: 2\n    e: 3\n")
    assert dict(source.lines) == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 3,
        ("a", "c", 0): 4,
        ("a", "c", 1): 5,
        ("a", "c", 1, "d"): 5,
        ("a", "c", 1, "e"): 6,
    }
    assert source.line_of(("a", "c", 1, "missing")) == 5
    assert source.line_of(("a", "c", 7)) == 3
    assert source.line_of(("nowhere",)) == 1
    assert source.line_of(()) == 1


def test_variables_are_expanded_in_values_only():
    source = _load(
        "a: ${A}\nb: x-${A}-${B:-dflt}-y\nc: ${EMPTY:-d}\nd: ${EMPTY}\ne: $${A}\nf: $A ${A}\n"
        "${A}: g\nh: ${N}\ni: ${A:-}\nj: '${U:-a:b-c}'\n",
        A="va",
        EMPTY="",
        N="5",
    )
    assert source.problems == ()
    assert source.data == {
        "a": "va",
        "b": "x-va-dflt-y",
        "c": "d",
        "d": "",
        "e": "${A}",
        "f": "$A va",
        "${A}": "g",
        "h": "5",
        "i": "va",
        "j": "a:b-c",
    }
    assert isinstance(source.data["a"], EnvText)
    assert not isinstance(source.data["e"], EnvText)
    assert source.scalars["a",].from_env
    assert not source.scalars["e",].from_env


def test_the_text_of_a_variable_is_not_expanded_again():
    assert _load("a: ${A}", A="${B}").data == {"a": "${B}"}


def test_unset_and_malformed_variables_are_named_with_their_line():
    source = _load("a: 1\nb: ${GONE}\nc:\n- ${}\n- ${1X}\n- ${OPEN\n- ${A:-${B}}\n- ${A-x}\n")
    malformed = (
        "has a malformed ${...}; write ${NAME} or ${NAME:-default}; $${ stands for ${ itself"
    )
    assert _said(source) == [
        "f:2: b: the environment variable GONE is not set; set it, or write ${GONE:-default}",
        f"f:4: c[0]: {malformed}",
        f"f:5: c[1]: {malformed}",
        f"f:6: c[2]: {malformed}",
        f"f:7: c[3]: {malformed}",
        f"f:8: c[4]: {malformed}",
    ]


def test_a_key_written_twice_is_an_error():
    source = _load("a: 1\nb: {c: 1, c: 2}\na: 3\n")
    assert _said(source) == [
        "f:2: b.c: is written twice, first on line 2; keep one",
        "f:3: a: is written twice, first on line 1; keep one",
    ]
    assert source.data == {"a": 1, "b": {"c": 1}}


def test_anchors_aliases_and_merges():
    source = _load(
        "x_base: &base\n  a: 1\n  b: 2\nx_more: &more {<<: *base, c: 3}\n"
        "one: *base\ntwo:\n  <<: *base\n  b: 20\nthree: {<<: [*more, *base]}\n"
    )
    assert source.problems == ()
    assert source.data["one"] == {"a": 1, "b": 2}
    assert source.data["two"] == {"b": 20, "a": 1}
    assert source.data["three"] == {"a": 1, "b": 2, "c": 3}
    assert source.line_of(("two", "a")) == 2
    assert source.line_of(("two", "b")) == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a [*a]", ["f:1: a[0]: an alias refers to something that contains it"]),
        ("a: &a {b: {<<: *a}}", ["f:1: a.b: << does not name a mapping; such as <<: *defaults"]),
        ("a: {<<: 5}", ["f:1: a: << does not name a mapping; such as <<: *defaults"]),
        ("a: {? [x] : 1}", ["f:1: a: a key is a list or a mapping; keys are plain words"]),
        (
            "a: !!python/object:os.system x",
            ["f:1: a: carries a YAML tag, which is not supported; remove the tag"],
        ),
        ("a: !t [1]", ["f:1: a: carries a YAML tag, which is not supported; remove the tag"]),
        ("- a", ["f:1: the file is not a mapping; write KEY: VALUE lines"]),
        ("just text", ["f:1: the file is not a mapping; write KEY: VALUE lines"]),
        ("a: 1\n---\nb: 2", ["f:2: the file holds more than one document; keep one, remove ---"]),
        ("a: " + "[" * 40 + "]" * 40, ["f:1: nesting is deeper than 32 levels"]),
        ("a: '" + "x" * (1 << 20) + "'", ["f:1: the file is larger than 1 MiB"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_refused(text, said):
    assert _said(_load(text)) == said


def test_alias_bombs_stay_small():
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
    )
    source = _load(text)
    assert [line for line in _said(source) if "more than 100000 values" in line] == _said(source)
    assert len(source.problems) == 1


def test_merge_bombs_stay_small():
    text = "a0: &a0 {x: 1}\n" + "".join(
        f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 9)
    )
    assert len(_load(text).problems) == 1


def test_aliases_cannot_nest_deeper_than_a_file_may():
    text = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 40))
    assert {line.split(": ", 2)[2] for line in _said(_load(text))} == {
        "nesting is deeper than 32 levels"
    }


def test_files(tmp_path):
    good = tmp_path / "good.yaml"
    good.write_bytes(b"\xef\xbb\xbfa: \xed\x95\x9c\r\n")
    assert load_file(str(good), env={}).data == {"a": "한"}
    bad = tmp_path / "bad.yaml"
    bad.write_bytes(b"a: 1\nb: \xff\n")
    assert _said(load_file(str(bad), env={})) == [f"{bad}:2: the file is not UTF-8 text"]
    none = tmp_path / "none.yaml"
    assert _said(load_file(str(none), env={})) == [
        f"{none}:1: the file cannot be read: no such file or directory"
    ]
    assert _said(load_file(str(tmp_path), env={})) == [
        f"{tmp_path}:1: the file cannot be read: is a directory"
    ]
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    assert _said(load_file(str(large), env={})) == [f"{large}:1: the file is larger than 1 MiB"]
