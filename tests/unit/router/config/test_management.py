"""No management path of an engine is one that clients reach, however it is spelled."""

import pytest

from continuum_router.config.management import (
    SGLANG_MANAGEMENT,
    TRTLLM_MANAGEMENT,
    VLLM_MANAGEMENT,
    is_management,
)
from support.config_files import router_lines

PATHS = sorted(VLLM_MANAGEMENT | SGLANG_MANAGEMENT | TRTLLM_MANAGEMENT)


@pytest.mark.parametrize("path", PATHS)
def test_every_spelling_is_known(path: str) -> None:
    for spelled in (path, path + "/", path.upper(), path + "/below", "/v1" + path):
        assert is_management(spelled)


@pytest.mark.parametrize("path", PATHS)
def test_a_configuration_cannot_list_it(path: str) -> None:
    (line,) = router_lines(
        f"server: {{passthrough_paths: ['{path}']}}\nbackends: [{{name: a, url: 'http://h'}}]"
    )
    assert line.endswith(
        "is a management path of engines and is never passed on; call the engine itself"
    )


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/embeddings",
        "/tokenize",
        "/v1/messages",
        "/v1/sleeper",
        "/sleep_well",
        "/pooling",
        "/",
        "",
    ],
)
def test_what_is_none(path: str) -> None:
    assert not is_management(path)
