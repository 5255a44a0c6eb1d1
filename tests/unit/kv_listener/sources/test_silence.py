import pytest

from continuum_kv_listener.sources.silence import (
    BOTH_BIND,
    NOBODY_BINDS,
    NOBODY_CONNECTS,
    TELL_SECONDS,
    Silence,
)


def told(caplog):
    return [record.__dict__ for record in caplog.records]


@pytest.mark.parametrize(
    ("binds", "error", "hint"),
    [
        (True, "Address already in use", BOTH_BIND),
        (True, None, NOBODY_CONNECTS),
        (False, "connection refused", NOBODY_BINDS),
    ],
)
def test_it_is_said_once_with_what_to_do(caplog, binds, error, hint):
    silence = Silence("s", "tcp://h:1", binds=binds, now=100.0)
    silence.note(100.0 + TELL_SECONDS - 0.1, connected=False, error=error)
    assert told(caplog) == []
    for now in (100.0 + TELL_SECONDS, 1000.0):
        silence.note(now, connected=False, error=error)
    assert len(told(caplog)) == 1
    assert hint in str(told(caplog))
    assert silence.sooner(None) is None


def test_a_source_that_was_connected_once_is_left_alone(caplog):
    silence = Silence("s", "tcp://h:1", binds=True, now=0.0)
    silence.note(1.0, connected=True, error=None)
    silence.note(1000.0, connected=False, error=None)
    assert told(caplog) == []


def test_when_to_look_again():
    silence = Silence("s", "tcp://h:1", binds=True, now=5.0)
    assert silence.sooner(None) == 5.0 + TELL_SECONDS
    assert silence.sooner(7.0) == 7.0
    assert silence.sooner(99.0) == 5.0 + TELL_SECONDS
    silence.note(6.0, connected=True, error=None)
    assert (silence.sooner(None), silence.sooner(99.0)) == (None, 99.0)
