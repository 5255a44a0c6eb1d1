"""The prefix key against its published vectors and the corners that the decisions name."""

import json
from pathlib import Path

import pytest

from continuum_shared import prefix_key as pk

VECTORS = json.loads((Path(__file__).parents[2] / "fixtures" / "prefix_keys.json").read_text())
READERS = {
    "chat": pk.chat_key_text,
    "completions": pk.completions_key_text,
    "responses": pk.responses_key_text,
    "anthropic": pk.anthropic_key_text,
}


@pytest.mark.parametrize("row", VECTORS, ids=[f"{v['api']}: {v['name']}" for v in VECTORS])
def test_published_vector(row):
    found = READERS[row["api"]](row["body"])
    if row["key"] is None:
        assert found is None
        return
    assert found == pk.KeyText(tag=pk.KeyTag(row["tag"]), text=row["text"])
    key = pk.derive(row["body"]["model"], found, row["max_prefix_length"])
    assert key.hex() == row["key"]


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("abc", 5, b"abc"),
        ("abc", 3, b"abc"),
        ("abc", 2, b"ab"),
        ("a가", 3, b"a"),
        ("a가", 4, "a가".encode()),
        ("🙂", 3, b""),
        ("x\ud83dy", 10, "x\ufffdy".encode()),
        ("\ud83d\ude42", 10, "🙂".encode()),
        ("abc", 0, b""),
    ],
)
def test_cut_goes_down_to_a_character(text, limit, expected):
    assert pk.cut_utf8(text, limit) == expected


def test_a_foreign_salt_separates_keys_and_no_salt_is_the_formula():
    text = pk.KeyText(tag=pk.KeyTag.SYSTEM, text="A")
    plain = pk.derive("m", text, 1024)
    assert pk.derive("m", text, 1024, salt="a") != plain
    assert pk.derive("m", text, 1024, salt="a") != pk.derive("m", text, 1024, salt="b")
    assert pk.derive("m", text, 1024, salt="") != plain


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": "text"},
        {"messages": [1, None, "x"]},
        {"messages": [{}]},
        {"messages": [{"role": "user", "content": 3}]},
        {"messages": [{"role": "user", "content": [None, 3, {"type": "text", "text": 4}]}]},
        {"system": 4, "instructions": 3, "input": 5, "prompt": {}},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    ],
)
def test_odd_bodies_have_no_key_and_raise_nothing(body):
    assert [read(body) for read in READERS.values()] == [None] * 4


def test_media_of_any_size_is_told_apart():
    def chat(url):
        part = {"type": "image_url", "image_url": {"url": url}}
        return pk.chat_key_text({"messages": [{"role": "user", "content": [part]}]})

    big = "data:image/png;base64," + "A" * 400_000
    assert chat(big) is not None
    assert chat(big) != chat(big + "A")
    assert chat(big) != chat(big[:-1] + "B")
    assert chat("x" * 10) != chat("y" * 10)


def test_responses_system_items_join_the_instructions():
    body = {
        "instructions": "A",
        "input": [{"role": "developer", "content": "B"}, {"role": "user", "content": "C"}],
    }
    assert pk.responses_key_text(body) == pk.KeyText(tag=pk.KeyTag.SYSTEM, text="A\nB")
