import pytest

from continuum_router.providers.prompt_text import prompt_text
from continuum_router.request import Endpoint


def chat(*messages, **more):
    return prompt_text(Endpoint.CHAT, {"messages": list(messages), **more})


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def test_role_separator_content():
    text = chat(say("system", "Be short."), say("user", "Grüße"))
    assert text.data == b"\x00system\x01Be short.\x00user\x01Gr\xc3\xbc\xc3\x9fe"
    assert text.media == []


def test_a_conversation_grows_at_its_end():
    turns = [say("system", "s"), say("user", "q"), say("assistant", "a"), say("user", "r")]
    texts = [chat(*turns[: count + 1]).data for count in range(4)]
    for shorter, longer in zip(texts, texts[1:], strict=False):
        assert longer.startswith(shorter)


def test_tools_come_first_and_in_any_order_of_keys():
    one = chat(say("user", "q"), tools=[{"a": 1, "b": 2}])
    assert one.data == b'\x03[{"a":1,"b":2}]\x00user\x01q'
    assert chat(say("user", "q"), tools=[{"b": 2, "a": 1}]).data == one.data
    assert chat(say("user", "q"), tools=[]).data == chat(say("user", "q")).data


DIFFERENT = {
    "role": (say("user", "x"), say("assistant", "x")),
    "content": (say("user", "x"), say("user", "y")),
    "tool calls": (say("assistant", None, tool_calls=[1]), say("assistant", None, tool_calls=[2])),
    "name": (say("user", "x", name="a"), say("user", "x", name="b")),
    "images": (
        say("user", [{"type": "image_url", "image_url": {"url": "http://a"}}]),
        say("user", [{"type": "image_url", "image_url": {"url": "http://b"}}]),
    ),
    "odd content": (say("user", 7), say("user", 8)),
    "odd message": (["x"], ["y"]),
    "odd part": (say("user", [1]), say("user", [2])),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_tells_prompts_apart(case):
    one, other = DIFFERENT[case]
    assert chat(one).data != chat(other).data


def test_a_cache_marker_tells_nothing_apart():
    assert chat(say("user", "x", cache_control={})).data == chat(say("user", "x")).data


def test_parts_and_where_media_stand():
    image = {"type": "image_url", "image_url": {"url": "data:..."}}
    text = chat(say("user", [{"type": "text", "text": "ä"}, image, "z", image]))
    start = len(b"\x00user\x01\xc3\xa4\n")
    assert text.data.startswith(b"\x00user\x01\xc3\xa4\n[image_url:")
    digest = len("[image_url:0123456789abcdef]\n")
    assert text.media == [start, start + digest + 2]


def test_unpaired_surrogates_and_huge_numbers_do_no_harm():
    assert chat(say("user", "a\ud800b")).data == "\x00user\x01a\ufffdb".encode()
    assert chat(say("assistant", None, tool_calls=["\ud800"])).data.endswith(
        b'{"tool_calls": ["\\ud800"]}'
    )
    assert b"1" + b"0" * 30 in chat(say("user", "q", seed=10**30)).data


def test_completions():
    def text(prompt):
        found = prompt_text(Endpoint.COMPLETIONS, {"prompt": prompt})
        return None if found is None else found.data

    assert text("abc") == b"abc"
    assert text(["abc", "d"]) == b"abc"
    assert text([1, 2]) == text([[1, 2], [3]])
    assert text([1, 2, 3]).startswith(text([1, 2]))
    for nothing in ("", [], [[]], [-1], [1, "a"], 7, None, [None]):
        assert text(nothing) is None


def test_responses():
    def text(**body):
        return prompt_text(Endpoint.RESPONSES, body).data

    assert text(instructions="i", input="q") == b"\x00system\x01i\x00user\x01q"
    assert text(input=[say("user", "q")]) == b"\x00user\x01q"
    assert text(input="q", tools=[1]) == b"\x03[1]\x00user\x01q"


@pytest.mark.parametrize("endpoint", [Endpoint.EMBEDDINGS, Endpoint.TOKENIZE, Endpoint.AUDIO])
def test_other_endpoints_have_no_prompt(endpoint):
    assert prompt_text(endpoint, {"input": "x", "messages": [], "prompt": "x"}) is None


def test_a_body_without_messages_has_none_either():
    assert prompt_text(Endpoint.CHAT, {}) is None
    assert prompt_text(Endpoint.RESPONSES, {"input": 5}) is None
