"""Bearer tokens: who is admitted, and why not."""

import hashlib

import pytest

from continuum_kv_listener.bearer import MAX_HEADER, BearerGate, Refusal


def gate(*tokens: str) -> BearerGate:
    return BearerGate(hashlib.sha256(token.encode()).digest() for token in tokens)


@pytest.mark.parametrize(
    ("header", "refusal"),
    [
        ("Bearer first-token", None),
        ("bearer first-token", None),
        ("Bearer   second-token ", None),
        ("Bearer first-toke", Refusal.WRONG_TOKEN),
        ("Bearer first-token2", Refusal.WRONG_TOKEN),
        ("Bearer FIRST-TOKEN", Refusal.WRONG_TOKEN),
        ("Bearer \udcff", Refusal.WRONG_TOKEN),
        ("Basic first-token", Refusal.NO_TOKEN),
        ("first-token", Refusal.NO_TOKEN),
        ("Bearer", Refusal.NO_TOKEN),
        ("Bearer ", Refusal.NO_TOKEN),
        ("Bearer " + "x" * (MAX_HEADER + 1), Refusal.NO_TOKEN),
        ("", Refusal.NO_TOKEN),
        (None, Refusal.NO_TOKEN),
    ],
)
def test_who_is_admitted(header, refusal):
    assert gate("first-token", "second-token").refuses(header) is refusal


def test_without_tokens_everybody_is():
    assert gate().open
    assert gate().refuses(None) is None
    assert not gate("x").open


def test_the_gate_keeps_no_token():
    held = gate("canary-token")
    assert "canary" not in repr(vars(held))
