import pytest

from continuum_router.backends.kinds import KINDS
from continuum_router.config.backends import BackendType


def test_every_type_has_its_row():
    assert set(KINDS) == set(BackendType)


@pytest.mark.parametrize("kind", list(BackendType))
def test_health_is_asked_without_generating(kind):
    # user report O2: a probe must never be a completion
    assert KINDS[kind].health_paths == ("/health", "/v1/models")
    assert KINDS[kind].models_path == "/v1/models"


def test_a_key_is_sent_as_a_bearer_token():
    row = KINDS[BackendType.VLLM]
    assert row.auth_header + ": " + row.auth_prefix + "k" == "Authorization: Bearer k"


def test_only_engines_publish_events():
    publishing = {kind for kind, row in KINDS.items() if row.publishes_events}
    assert publishing == {BackendType.VLLM, BackendType.SGLANG, BackendType.TRTLLM}
