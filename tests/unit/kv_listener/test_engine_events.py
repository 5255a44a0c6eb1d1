"""The event types keep their contents out of representations and their labels closed."""

from array import array
from dataclasses import fields

from continuum_kv_listener.engine_events import (
    Cleared,
    DropReason,
    Medium,
    RawBatch,
    Removed,
    Stored,
)


def test_representations_hold_no_tokens_salts_or_payloads():
    stored = Stored(
        hashes=(7,),
        tokens=array("I", [424242]),
        block_size=1,
        extra_keys=(("canary-extra",),),
        cache_salt="canary-salt",
    )
    raw = RawBatch(source="a", rank=0, seq=3, payload=b"canary-payload")
    text = f"{stored!r} {raw!r}"
    assert "canary" not in text
    assert "424242" not in text


def test_defaults_are_a_plain_gpu_block_of_the_only_group():
    stored = Stored(hashes=(1,), block_size=16)
    assert (stored.medium, stored.group, stored.full_attention) == (Medium.GPU, 0, True)
    assert (stored.parent, list(stored.tokens), stored.extra_keys) == (None, [], ())
    assert Removed(hashes=(1,)) == Removed(hashes=(1,), medium=Medium.GPU, group=0)
    assert Cleared() == Cleared()


def test_each_default_is_its_own():
    one, other = Stored(hashes=(1,), block_size=1), Stored(hashes=(1,), block_size=1)
    one.tokens.append(5)
    assert list(other.tokens) == []


def test_the_order_of_fields_is_the_one_that_the_decoder_gives_them_in():
    assert [field.name for field in fields(Stored)] == [
        "hashes",
        "block_size",
        "parent",
        "tokens",
        "lora_name",
        "medium",
        "extra_keys",
        "cache_salt",
        "group",
        "full_attention",
    ]
    assert [field.name for field in fields(Removed)] == ["hashes", "medium", "group", "merged"]


def test_drop_reasons_are_the_published_labels():
    """Decisions J5: nothing is dropped under any other name."""
    assert {reason.value for reason in DropReason} == {
        "bad_frames",
        "not_allowed",
        "oversized",
        "undecodable_batch",
        "malformed_event",
        "unknown_tag",
        "unknown_block",
        "foreign_salt",
        "bad_salt",
        "duplicate",
    }
