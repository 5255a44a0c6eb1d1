"""Splicing one value of a JSON text: what is replaced, what is left, to the byte."""

import pytest

from continuum_router.providers.json_scan import (
    MAX_KEPT,
    BodyRewrite,
    EventScan,
    JsonScan,
    ResponseIdTap,
)

LEFT: dict[str, bytes] = {
    "null": b'{"model":null,"x":"model"}',
    "number": b'{"model":5}',
    "array": b'{"model":["a"]}',
    "object": b'{"model":{"model":"a"}}',
    "nested": b'{"messages":[{"model":"a","content":"\\"model\\":\\"b\\""}]}',
    "in response": b'{"response":{"model":"a"}}',
    "value that looks like a key": b'{"x":"model","y":"a"}',
    "root array": b'[{"model":"a"},"model","b"]',
    "long key": b'{"%b":"a"}' % (b"model" * 999),
    "bad escape in a key": b'{"mod\\xel":"a"}',
    "no json": b'model: "a" }}]] "model":"b"',
    "empty": b"",
}


@pytest.mark.parametrize("name", LEFT)
def test_everything_else_is_left_to_the_byte(name: str) -> None:
    assert JsonScan("model", replacement=b'"NEW"').feed(LEFT[name]) == LEFT[name]


def test_an_answer_has_its_model_in_the_response_object_too() -> None:
    rewrite = BodyRewrite("alias", events=False)
    before = b'{"response":{"model":"a","output":[{"model":"keep"}],"tools":{"model":"keep"}},'
    assert rewrite.feed(before + b'"model":"b"}') == (
        before.replace(b'"a"', b'"alias"') + b'"model":"alias"}'
    )


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_each_event_is_a_text_of_its_own(end: bytes) -> None:
    lines = [
        b": comment with model",
        b"",
        b"event: x",
        b'data: {"model":"a","choices":[{"delta":{"content":"data: {\\"model\\":1}"}}]}',
        b"",
        b'data: {"broken": "',
        b"",
        b'data:{"object":"chunk",',
        b'data:"model":"b"}',
        b"",
        b'model: {"model":"c"}',
        b"",
        b"data: [DONE]",
        b"",
        b"",
    ]
    before = end.join(lines)
    after = before.replace(b'"model":"a"', b'"model":"N"').replace(b'"model":"b"', b'"model":"N"')
    assert BodyRewrite("N", events=True).feed(before) == after
    singly = BodyRewrite("N", events=True)
    assert b"".join(singly.feed(before[i : i + 1]) for i in range(len(before))) == after


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"id":"resp_1","object":"response"}', "resp_1"),
        (b'\n {"object":"response","output":[{"id":"msg_1"}],"id":"resp_2"}', "resp_2"),
        (
            b'event: response.created\ndata: {"type":"x","response":{"id":"resp_3"}}\n\n'
            b'data: {"response":{"id":"resp_4"}}\n\n',
            "resp_3",
        ),
        (b'data: {"item":{"id":"msg_1"}}\n\n', None),
        (b'{"id":7}', None),
        (b'{"id":"%b"}' % (b"x" * (MAX_KEPT + 1)), None),
        (b"plain", None),
    ],
)
def test_the_id_of_a_response(body: bytes, found: str | None) -> None:
    whole, singly = ResponseIdTap(), ResponseIdTap()
    whole.feed(body)
    for i in range(len(body)):
        singly.feed(body[i : i + 1])
    assert whole.found == found
    assert singly.found == found


def test_nothing_is_held_back() -> None:
    """What is given comes out at once, but for the value that is being replaced."""
    scan = JsonScan("model", replacement=b'"N"')
    assert scan.feed(b'{"mod') == b'{"mod'
    assert scan.feed(b'el":"a') == b'el":"N"'
    assert scan.feed(b"bc\\") == b""
    assert scan.feed(b'"d","x":"') == b',"x":"'
    assert EventScan(scan).feed(b"dat") == b"dat"
