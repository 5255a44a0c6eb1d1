"""The chats that are sent to learn a template."""

from continuum_kv_listener.probe_chats import (
    FRAGILE,
    Probe,
    plain_prompt,
    probe_chats,
    request_chat,
)


def test_every_probe_is_sent_once_in_order() -> None:
    probes = [chat.probe for chat in probe_chats("n0")]
    assert probes == [each for each in Probe if each not in (Probe.PLAIN, Probe.REQUEST)]


def test_the_first_two_hold_what_templates_break() -> None:
    for chat in probe_chats("n0")[:2]:
        assert all(FRAGILE in message["content"] for message in chat.messages)
    for chat in probe_chats("n0")[2:]:
        assert all(message["content"].isalnum() for message in chat.messages)


def test_two_nonces_share_no_sentinel() -> None:
    assert plain_prompt("n0") != plain_prompt("n1")
    assert "n0" in plain_prompt("n0")


def test_texts_of_the_real_chat_fill_several_blocks() -> None:
    system, user, assistant, last = request_chat("n0")
    assert [turn["role"] for turn in (system, user, assistant, last)] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert min(len(turn["content"].split()) for turn in (system, user, last)) > 200
