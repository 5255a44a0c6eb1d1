"""Token counts from the end of an answer, in every form they come in (user report S7)."""

import json

import pytest

from continuum_router.upstream.usage import TAIL, Usage, UsageTail

FULL = {
    "prompt_tokens": 7,
    "completion_tokens": 2,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 0},
}
READ = Usage(prompt_tokens=7, completion_tokens=2, total_tokens=9, cached_tokens=0)
DONE = b"data: [DONE]\n\n"


def _event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


CASES: dict[str, tuple[bytes, Usage | None]] = {
    "plain answer": (json.dumps({"choices": [], "usage": FULL}).encode(), READ),
    "usage before other fields": (json.dumps({"usage": FULL, "id": "x"}).encode(), READ),
    "own chunk": (_event(choices=[{}]) + _event(choices=[], usage=FULL) + DONE, READ),
    "on the last content chunk": (_event(choices=[{"delta": {}}], usage=FULL) + DONE, READ),
    "null after the real one": (_event(usage=FULL) + _event(usage=None) + DONE, READ),
    "null only": (_event(choices=[{}], usage=None) + DONE, None),
    "absent": (_event(choices=[{}]) + DONE, None),
    "odd types": (
        _event(usage={"prompt_tokens": "7", "completion_tokens": -1, "total_tokens": True}),
        Usage(),
    ),
    "in the text only": (_event(content='say "usage": {"prompt_tokens": 5}'), None),
    "not an object": (_event(usage=[1]), None),
    "cut": (b'data: {"usage": {"prompt_tokens": 7', None),
    "empty": (b"", None),
    "no details": (_event(usage={"prompt_tokens": 1}), Usage(prompt_tokens=1)),
    "last one wins": (_event(usage={"total_tokens": 1}) + _event(usage=FULL), READ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("step", [1, 13, 100_000])
def test_cases(name: str, step: int) -> None:
    wire, usage = CASES[name]
    tail = UsageTail()
    for at in range(0, len(wire), step):
        tail.feed(wire[at : at + step])
    assert tail.read() == usage


@pytest.mark.parametrize("step", [100, 5000])
def test_only_the_end_is_kept_and_read(step: int) -> None:
    early = _event(usage={"total_tokens": 1})
    filler = b"x" * step
    tail = UsageTail()
    tail.feed(early)
    for _ in range(TAIL // step + 2):
        tail.feed(filler)
    assert tail.read() is None
    assert sum(map(len, tail._pieces)) <= TAIL + step
    tail.feed(_event(usage=FULL))
    assert tail.read() == READ
