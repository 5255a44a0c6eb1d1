"""The `admin` section."""

from support.config_files import ROUTER_BASE, good_router, router_lines


def test_no_token_by_default_and_secrets_never_print() -> None:
    assert good_router("").admin.token_env == ()
    config = good_router("admin: {token_env: [NEW, OLD]}", env={"NEW": "n" * 20, "OLD": "o" * 20})
    assert [token.reveal()[0] for token in config.admin.token_env] == ["n", "o"]
    assert "nnn" not in repr(config) + config.model_dump_json()


def test_what_is_wrong_with_tokens() -> None:
    text = ROUTER_BASE + "admin: {token_env: ADMIN}"
    assert router_lines(text) == [
        "r.yaml:2: admin.token_env: the environment variable ADMIN is not set or empty; export it "
        "before the start, or remove the key"
    ]
    assert router_lines(text, {"ADMIN": "short"}) == [
        "r.yaml:2: warning: admin.token_env: the token in ADMIN is short enough to be guessed; "
        "such as the output of: openssl rand -hex 32"
    ]
    assert router_lines(text, {"ADMIN": "long enough to be good"}) == []
