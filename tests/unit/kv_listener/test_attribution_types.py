"""Questions and verdicts as values."""

from array import array

from continuum_kv_listener.attribution_types import (
    Completion,
    PathVerdict,
    Question,
    UnattributedReason,
)
from continuum_shared.prefix_key import PrefixKey


def test_a_question_does_not_show_its_tokens() -> None:
    question = Question(node=7, tokens=array("I", [31337]), block_ends=(1,))
    assert repr(question) == "Question(node=7, block_ends=(1,), lora_name=None)"


def test_verdicts_are_values() -> None:
    completion = Completion(block_index=2, keys=(PrefixKey(b"k" * 32),))
    assert PathVerdict(completions=(completion,), done=True) == PathVerdict(
        completions=(Completion(block_index=2, keys=(PrefixKey(b"k" * 32),)),), done=True
    )
    assert PathVerdict(done=False).reason is None


def test_reasons_are_metric_labels() -> None:
    assert [reason.value for reason in UnattributedReason] == [
        "no_format",
        "no_match",
        "unknown_parent",
        "block_size",
        "unsupported_content",
    ]
