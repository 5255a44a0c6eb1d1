"""Limits are positive; every reason of the attributor has a label of its own."""

import pytest

from continuum_kv_listener.attribution_types import UnattributedReason
from continuum_kv_listener.chain_stats import ChainLimits, TokenCount, Unattributed


def test_defaults_are_those_of_the_source():
    limits = ChainLimits()
    assert limits.max_chain_tokens == 16_384
    assert limits.max_tracked_blocks == 100_000
    assert limits.max_retained_tokens == 16_777_216


@pytest.mark.parametrize("name", ["max_chain_tokens", "max_tracked_blocks", "max_retained_tokens"])
def test_a_limit_of_nothing_is_refused(name: str):
    with pytest.raises(ValueError, match="at least 1"):
        ChainLimits(**{name: 0})


@pytest.mark.parametrize("reason", list(UnattributedReason))
def test_the_attributors_reasons_keep_their_names(reason: UnattributedReason):
    assert Unattributed.of(reason).value == reason.value


def test_no_reason_is_pending():
    assert Unattributed.of(None) is Unattributed.PENDING


def test_a_reason_is_found_by_its_name_and_by_itself():
    counts = {Unattributed.FOREIGN_SALT: 3}
    assert counts[Unattributed("foreign_salt")] == 3
    assert hash(Unattributed.FOREIGN_SALT) == hash("foreign_salt")


def test_token_counts_are_the_configurations_words():
    assert [each.value for each in TokenCount] == ["longest_chain", "shared_head"]
