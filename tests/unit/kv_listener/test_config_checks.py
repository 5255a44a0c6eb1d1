from pathlib import Path

import pytest

from support.config_files import listener_lines

REST = "  model: m\n  engine_url: http://h:8000\n"


def _lines(*sources):
    return listener_lines("sources:\n" + "".join(f"- {text}\n{REST}" for text in sources))


@pytest.mark.parametrize(
    ("endpoint", "allowed", "accepted"),
    [
        ("tcp://127.0.0.1:1", "", True),
        ("tcp://localhost:1", "", True),
        ("'tcp://[::1]:1'", "", True),
        ("ipc:///tmp/x", "", True),
        ("tcp://10.0.0.7:1", "", False),
        ("tcp://10.0.0.7:1", "10.0.0.7", True),
        ("tcp://10.0.0.7:1", "10.0.0.0/8", True),
        ("tcp://10.0.0.7:1", "11.0.0.0/8, engine", False),
        ("tcp://engine:1", "", False),
        ("tcp://engine:1", "ENGINE", True),
        ("tcp://engine:1", "10.0.0.0/8", False),
        ("'tcp://[2001:db8::1]:1'", "'2001:db8::/32'", True),
        ("'tcp://[2001:db8::1]:1'", "10.0.0.0/8", False),
    ],
)
def test_what_is_connected_to_must_be_listed(endpoint, allowed, accepted):
    lines = _lines(
        f"backend_name: a\n  zmq_endpoint: {endpoint}\n  allowed_publishers: [{allowed}]"
    )
    assert (lines == []) is accepted
    if not accepted:
        assert "zmq_endpoint: its host is not in allowed_publishers; add " in lines[0]


def test_the_replay_socket_too_in_either_mode():
    lines = _lines(
        "backend_name: a\n  zmq_endpoint: tcp://*:1\n  allowed_publishers: [10.0.0.0/8]\n"
        "  zmq_replay_endpoint: tcp://11.0.0.1:2"
    )
    assert lines == [
        "l.yaml:5: sources[0].zmq_replay_endpoint: its host is not in allowed_publishers; add "
        '"11.0.0.1" to allowed_publishers'
    ]


def test_topics_tell_sources_of_one_publisher_apart():
    same = "zmq_endpoint: tcp://127.0.0.1:1"
    assert (
        _lines(
            f"backend_name: a\n  {same}\n  zmq_topic: a",
            f"backend_name: b\n  {same}\n  zmq_topic: b",
        )
        == []
    )
    assert _lines(f"backend_name: a\n  {same}", f"backend_name: b\n  {same}") == [
        "l.yaml:7: sources[1].zmq_endpoint: is also the zmq_endpoint of sources[0]; give each "
        "engine its own endpoint"
    ]


def test_a_socket_is_bound_once_whatever_the_topic():
    bound = "zmq_endpoint: tcp://127.0.0.1:1\n  zmq_mode: bind"
    lines = _lines(
        f"backend_name: a\n  {bound}\n  zmq_topic: a", f"backend_name: b\n  {bound}\n  zmq_topic: b"
    )
    assert len(lines) == 1


def test_nothing_is_said_about_what_is_in_doubt():
    assert _lines("backend_name: a\n  zmq_endpoint: tcp://10.0.0.1:1\n  zmq_mode: bnid") == [
        'l.yaml:4: sources[0].zmq_mode: "bnid" is not a known value; did you mean "bind"? known: '
        "bind, connect"
    ]


BARE = "sources: [{backend_name: a, zmq_endpoint: 'tcp://127.0.0.1:1', model: m"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BARE + "}]\nsalt_echo: {enabled: true, secret_env: SALT}", []),
        (
            BARE + "}]\nsalt_echo: {enabled: false, secret_env: UNSET}",
            [
                "1: sources[0].detokenize_endpoint: is required: prompts can be read back only by "
                'asking the engine; such as "http://10.0.0.5:8000/detokenize", or set engine_url'
            ],
        ),
        (
            BARE + ", engine_url: 'http://h'}]\nsalt_echo: {enabled: true}",
            [
                "2: salt_echo.enabled: salt echo needs a secret; name an environment variable in "
                "secret_env"
            ],
        ),
        (
            BARE + ", engine_url: 'http://h'}]\nsalt_echo: {enabled: true, secret_env: UNSET}",
            [
                "2: salt_echo.secret_env: the environment variable UNSET is not set or empty; "
                "export it before the start"
            ],
        ),
        (
            BARE + ", engine_url: 'http://h', tokenizer: /no/such/folder}]",
            [
                "1: sources[0].tokenizer: has no tokenizer.json; name the model's folder, or the "
                "file itself"
            ],
        ),
        (
            BARE + ", calibrate_by_request: true}]\nsalt_echo: {enabled: true, secret_env: SALT}",
            [
                "1: warning: sources[0].calibrate_by_request: has no engine to send a chat to; "
                "set engine_url"
            ],
        ),
    ],
)
def test_where_keys_come_from(text: str, said: list[str]) -> None:
    env = {"SALT": "0123456789abcdef"}
    assert listener_lines(text, env) == [f"l.yaml:{line}" for line in said]


def test_a_local_tokenizer_takes_the_place_of_an_endpoint(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert listener_lines(BARE + f", tokenizer: '{path}'}}]") == []
