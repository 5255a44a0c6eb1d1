"""Whatever else a body holds: the name changes, every other value and byte stays."""

import json

from hypothesis import given
from hypothesis import strategies as st

from continuum_router.providers.model_splice import splice_model

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["model", '"model"', '\\"model\\":', "}", "{", "\\", "response"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:  ")])
OBJECTS = st.dictionaries(TEXTS.filter(lambda text: text != "model"), VALUES, max_size=4)


@given(OBJECTS, OBJECTS, TEXTS, TEXTS, SEPARATORS, st.booleans())
def test_only_the_model_changes(before, after, old, new, separators, ascii_only):
    def written(value):
        return json.dumps(value, separators=separators, ensure_ascii=ascii_only)

    comma, colon = separators

    def body(name):
        parts = [written(before)[1:-1], f'"model"{colon}{name}', written(after)[1:-1]]
        return ("{" + comma.join(part for part in parts if part) + "}").encode()

    raw = body(written(old))
    assert splice_model(raw, new) == body(json.dumps(new))
