"""The values of one call."""

import dataclasses

import pytest

from continuum_router.backends.exchange import BodyState, ReplyHead, UpstreamRequest

HEAD = ReplyHead(
    status=200,
    reason="OK",
    headers=(("Content-Type", "text/plain"), ("X-A", "1"), ("x-a", "2")),
    body_length=None,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [("content-type", "text/plain"), ("X-A", "1"), ("x-A", "1"), ("retry-after", None)],
)
def test_a_header_is_found_in_any_case_the_first_one_wins(name, value):
    assert HEAD.header(name) == value


def test_values_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        HEAD.status = 500  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        UpstreamRequest(method="GET", head=b"").body = b"x"  # type: ignore[misc]


def test_a_request_does_not_show_its_contents():
    request = UpstreamRequest(method="POST", head=b"Authorization: canary", body=b"canary")
    assert "canary" not in repr(request)


def test_the_body_states_are_labels():
    assert [state.value for state in BodyState] == ["open", "complete", "failed", "aborted"]
