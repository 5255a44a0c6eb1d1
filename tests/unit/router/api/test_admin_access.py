"""The access table of `/admin/*` (decisions P4): each way in, and what it is told."""

import pytest

from continuum_router.api.admin_access import Denied, admin_verdict

LOCAL = {"host": "127.0.0.1:8080", "content-type": "application/json"}
CHARSET = {**LOCAL, "content-type": "Application/JSON; charset=utf-8"}
FORM = {**LOCAL, "content-type": "application/x-www-form-urlencoded"}
TEXT = {**LOCAL, "content-type": "text/plain"}


def named(host: str) -> dict[str, str]:
    return {**LOCAL, "host": host}


TOKENS = (b"the-old-token", b"the-new-token")
WITHOUT_TOKEN = [
    ("local read", "GET", {"host": "localhost:8080"}, "127.0.0.1", None),
    ("local write", "POST", LOCAL, "127.0.0.1", None),
    ("local over IPv6", "POST", named("[::1]:8080"), "::1", None),
    ("mapped IPv4", "POST", LOCAL, "::ffff:127.0.0.1", None),
    ("with a charset", "POST", CHARSET, "::1", None),
    ("a unix socket", "POST", named("localhost"), None, None),
    ("from elsewhere", "GET", LOCAL, "10.0.0.9", Denied.NOT_LOCAL),
    ("from elsewhere, mapped", "GET", LOCAL, "::ffff:10.0.0.9", Denied.NOT_LOCAL),
    ("no address", "GET", LOCAL, "nowhere", Denied.NOT_LOCAL),
    ("an address that is lost", "POST", LOCAL, "", Denied.NOT_LOCAL),
    ("forwarded", "GET", {**LOCAL, "forwarded": "for=1.2.3.4"}, "127.0.0.1", Denied.FORWARDED),
    ("x-forwarded-for", "GET", {**LOCAL, "x-forwarded-for": ""}, "::1", Denied.FORWARDED),
    ("x-forwarded-anything", "GET", {**LOCAL, "x-forwarded-zzz": "1"}, "::1", Denied.FORWARDED),
    ("via", "GET", {**LOCAL, "via": "1.1 proxy"}, "127.0.0.1", Denied.FORWARDED),
    ("x-real-ip", "GET", {**LOCAL, "x-real-ip": "1.2.3.4"}, "127.0.0.1", Denied.FORWARDED),
    ("a rebound name", "GET", named("evil.example"), "127.0.0.1", Denied.FOREIGN_HOST),
    ("a name that looks local", "GET", named("localhost.evil.example"), "::1", Denied.FOREIGN_HOST),
    ("user and host", "GET", named("localhost@evil.example"), "::1", Denied.FOREIGN_HOST),
    ("no host", "GET", {}, "127.0.0.1", Denied.FOREIGN_HOST),
    ("a form from a page", "POST", FORM, "::1", Denied.NOT_JSON),
    ("text from a page", "POST", TEXT, "127.0.0.1", Denied.NOT_JSON),
    ("no type", "POST", {"host": "localhost"}, "127.0.0.1", Denied.NOT_JSON),
    ("a token that nobody asked for", "GET", {**LOCAL, "authorization": "Bearer x"}, "::1", None),
]  # fmt: skip
WITH_TOKEN = [
    ("the first", "Bearer the-old-token", None),
    ("the second", "bearer  the-new-token ", None),
    ("none", None, Denied.NO_TOKEN),
    ("an empty one", "Bearer ", Denied.NO_TOKEN),
    ("another scheme", "Basic the-old-token", Denied.NO_TOKEN),
    ("a wrong one", "Bearer the-old-tokem", Denied.WRONG_TOKEN),
    ("a part of it", "Bearer the-old", Denied.WRONG_TOKEN),
    ("odd bytes", "Bearer \udcff", Denied.WRONG_TOKEN),
]


@pytest.mark.parametrize(
    ("method", "headers", "peer", "verdict"),
    [row[1:] for row in WITHOUT_TOKEN],
    ids=[row[0] for row in WITHOUT_TOKEN],
)
def test_without_a_token(
    method: str, headers: dict[str, str], peer: str | None, verdict: Denied | None
) -> None:
    assert admin_verdict(method, headers, peer, ()) is verdict


@pytest.mark.parametrize(
    ("sent", "verdict"), [row[1:] for row in WITH_TOKEN], ids=[row[0] for row in WITH_TOKEN]
)
def test_with_a_token_nothing_else_counts(sent: str | None, verdict: Denied | None) -> None:
    headers = {"host": "router.example", "x-forwarded-for": "1.2.3.4"}
    if sent is not None:
        headers["authorization"] = sent
    assert admin_verdict("POST", headers, "10.0.0.9", TOKENS) is verdict
