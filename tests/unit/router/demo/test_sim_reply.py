"""The shapes of answers, as OpenAI clients read them."""

import json

from continuum_router.demo import sim_tokenizer
from continuum_router.demo.sim_reply import ReplyHead, TextPieces, error_body
from continuum_router.demo.sim_request import Generation

ANSWER = tuple(sim_tokenizer.encode("So 한 it\nis"))


def head(*, chat: bool) -> ReplyHead:
    asked = Generation(
        model="demo",
        chat=chat,
        prompt=(1, 2, 3),
        answer=ANSWER,
        finish_reason="stop",
        salt=None,
        stream=False,
        include_usage=False,
    )
    return ReplyHead(id="x-1", created=12, generation=asked)


def data(event: bytes) -> dict[str, object]:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    told = json.loads(event[6:])
    assert isinstance(told, dict)
    return told


USAGE = {
    "prompt_tokens": 3,
    "total_tokens": 3 + len(ANSWER),
    "completion_tokens": len(ANSWER),
    "prompt_tokens_details": {"cached_tokens": 2},
}


def test_a_whole_chat() -> None:
    assert head(chat=True).whole(ANSWER, 2) == {
        "id": "x-1",
        "object": "chat.completion",
        "created": 12,
        "model": "demo",
        "choices": [
            {
                "index": 0,
                "logprobs": None,
                "message": {"role": "assistant", "content": "So 한 it\nis", "refusal": None},
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }


def test_a_whole_completion() -> None:
    told = head(chat=False).whole(ANSWER, 2)
    assert told["object"] == "text_completion"
    assert told["choices"] == [
        {"index": 0, "logprobs": None, "text": "So 한 it\nis", "finish_reason": "stop"}
    ]


def test_chunks_of_a_chat() -> None:
    first = data(head(chat=True).first_chunk())
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    last = data(head(chat=True).text_chunk("x", last=True))
    assert last["choices"] == [
        {"index": 0, "delta": {"content": "x"}, "logprobs": None, "finish_reason": "stop"}
    ]


def test_chunks_of_a_completion() -> None:
    assert head(chat=False).first_chunk() == b""
    chunk = data(head(chat=False).text_chunk("x", last=False))
    assert chunk["object"] == "text_completion"
    assert chunk["choices"] == [{"index": 0, "text": "x", "logprobs": None, "finish_reason": None}]


def test_the_usage_chunk_has_no_choices() -> None:
    told = data(head(chat=True).usage_chunk(len(ANSWER), 2))
    assert (told["choices"], told["usage"]) == ([], USAGE)


def test_pieces_never_show_half_a_character() -> None:
    pieces = TextPieces()
    texts = [pieces.feed(token, last=token is ANSWER[-1]) for token in ANSWER]
    assert "�" not in "".join(texts)
    assert "".join(texts) == "So 한 it\nis"


def test_a_cut_character_comes_out_with_the_last_piece() -> None:
    (token, *_) = sim_tokenizer.encode("ab한")
    assert TextPieces().feed(token, last=True) == "ab�"


def test_errors() -> None:
    assert error_body(404, "gone", "NotFoundError") == {
        "error": {"message": "gone", "type": "NotFoundError", "param": None, "code": 404}
    }
