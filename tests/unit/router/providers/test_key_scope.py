import hashlib

import pytest

from continuum_router.config.routing import KeyScope
from continuum_router.providers.key_scope import KeyScoper
from continuum_router.providers.prepare import sort_headers
from support.backends import prefix

KEY = prefix("system prompt")


def chat(user, system="s"):
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]}


def head(*pairs):
    return sort_headers([(name, value) for name, value in pairs])


def test_the_first_user_message():
    scoper = KeyScoper(KeyScope.SYSTEM_AND_FIRST_USER, 10)
    one = scoper.widen(KEY, chat("hello"), head())
    assert one == hashlib.sha256(KEY + b"\x00user\x00hello").digest()
    assert scoper.widen(KEY, chat("other"), head()) != one
    # only so much of it as of the system prompt, and a session is not asked for
    assert scoper.widen(KEY, chat("x" * 11), head()) == scoper.widen(KEY, chat("x" * 12), head())
    assert scoper.widen(KEY, chat("hello"), head((b"X-Session-Id", b"7"))) == one


def test_the_session_that_a_client_names():
    scoper = KeyScoper(KeyScope.SESSION, 1024)
    seven = scoper.widen(KEY, chat("a"), head((b"X-Session-Id", b"7")))
    assert seven == hashlib.sha256(KEY + b"\x00session\x007").digest()
    assert scoper.widen(KEY, chat("b"), head((b"x-session-id", b"7"))) == seven
    ours = head((b"x-session-id", b"7"), (b"x-continuum-session-id", b"8"))
    assert scoper.widen(KEY, chat("a"), ours) != seven


def test_without_a_session_the_first_user_message_stands_in():
    session = KeyScoper(KeyScope.SESSION, 1024)
    first = KeyScoper(KeyScope.SYSTEM_AND_FIRST_USER, 1024)
    for inbound in (head(), None):
        assert session.widen(KEY, chat("a"), inbound) == first.widen(KEY, chat("a"), inbound)


@pytest.mark.parametrize(
    "body", [{}, {"messages": 5}, {"messages": [5]}, {"messages": [{"role": "system"}]}]
)
def test_odd_bodies(body):
    scoper = KeyScoper(KeyScope.SYSTEM_AND_FIRST_USER, 1024)
    assert scoper.widen(KEY, body, head()) == hashlib.sha256(KEY + b"\x00user\x00").digest()


def test_responses():
    scoper = KeyScoper(KeyScope.SYSTEM_AND_FIRST_USER, 1024)
    assert scoper.widen(KEY, {"input": "a"}, head()) == scoper.widen(KEY, chat("a"), head())


def test_no_key_stays_none():
    assert KeyScoper(KeyScope.SESSION, 9).widen(None, chat("a"), head()) is None


def test_a_session_is_bounded_and_ours_is_not_passed_on():
    inbound = head((b"x-continuum-session-id", b"x" * 300), (b"x-session-id", b"s"))
    assert inbound.session == b"x" * 256
    assert inbound.lines == ((b"x-session-id", b"s"),)
