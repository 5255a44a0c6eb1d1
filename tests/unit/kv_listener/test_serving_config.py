"""The keys of the HTTP side and what is said about wrong ones."""

import hashlib

import pytest
import yaml

from continuum_kv_listener.config import parse_config
from continuum_kv_listener.serving_config import token_digests, tokens

SOURCE = {
    "backend_name": "a",
    "zmq_endpoint": "tcp://127.0.0.1:5557",
    "engine_url": "http://127.0.0.1:9",
    "model": "m",
}
LONG = "0123456789abcdef0123456789abcdef"


def read(env: dict[str, str] | None = None, **top: object):
    text = yaml.safe_dump({**top, "sources": [SOURCE]})
    return parse_config(text, path="f", env=env or {})


def test_the_defaults_are_open_and_plain():
    config, report = read()
    assert report.lines() == []
    assert (config.tls, config.auth_token_env, config.max_subscribers) == (None, (), 4096)


def test_one_name_or_several():
    env = {"OLD": LONG, "NEW": LONG[::-1]}
    one, _ = read(env, auth_token_env="OLD")
    two, report = read(env, auth_token_env=["NEW", "OLD"])
    assert report.lines() == []
    assert tokens(one, env) == (LONG,)
    assert tokens(two, env) == (LONG[::-1], LONG)
    assert token_digests((LONG,)) == (hashlib.sha256(LONG.encode()).digest(),)


@pytest.mark.parametrize(
    ("env", "top", "line"),
    [
        (
            {},
            {"auth_token_env": "T"},
            "f:1: auth_token_env: the environment variable T is not set or empty; "
            "export it before the start, or remove auth_token_env",
        ),
        (
            {"T": "two words and more"},
            {"auth_token_env": "T"},
            "f:1: auth_token_env: the token in T cannot be sent in a header; "
            "printable ASCII without blanks and line ends",
        ),
        (
            {"T": "x" * 4097},
            {"auth_token_env": "T"},
            "f:1: auth_token_env: the token in T is longer than 4096 characters; "
            "such as the output of: openssl rand -hex 32",
        ),
        (
            {"T": "short"},
            {"auth_token_env": "T"},
            "f:1: warning: auth_token_env: the token in T is short enough to be guessed; "
            "such as the output of: openssl rand -hex 32",
        ),
        (
            {"T": LONG},
            {"auth_token_env": ["T", "U"]},
            "f:3: auth_token_env[1]: the environment variable U is not set or empty; "
            "export it before the start, or remove auth_token_env",
        ),
        (
            {"T": LONG},
            {"auth_token_env": ["T", "T"]},
            "f:3: auth_token_env[1]: is listed twice; remove one",
        ),
        (
            {"T": LONG},
            {"auth_token_env": "T", "listen": "0.0.0.0:7817"},
            "f:1: warning: auth_token_env: without tls the token travels in the clear; "
            "set tls, or listen on 127.0.0.1 behind something that has it",
        ),
        ({}, {"tls": {"key": "k"}}, "f:6: tls.cert: is required"),
    ],
)
def test_what_is_said(env, top, line):
    _, report = read(env, **top)
    assert report.lines() == [line]


def test_a_token_over_tls_or_near_by_is_fine():
    env = {"T": LONG}
    for more in (
        {"listen": "0.0.0.0:1", "tls": {"cert": "c"}},
        {"listen": "[::1]:1"},
        {"listen": "unix:/run/l.sock"},
    ):
        config, report = read(env, auth_token_env="T", **more)
        assert (config is not None, report.lines()) == (True, [])


def test_a_token_is_never_in_the_report():
    _, report = read({"T": "canary token"}, auth_token_env="T")
    assert "canary" not in str(report)
