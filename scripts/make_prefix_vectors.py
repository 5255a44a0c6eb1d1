"""Write tests/fixtures/prefix_keys.json: published vectors of the prefix key.

Works from the formula of the source document with hashlib alone, not with the product's code, so
that the file is an independent statement of the contract. Run it by hand when a decision changes.
"""

import hashlib
import json
from pathlib import Path

LONG = "가나다라마바사아자차카타파하" * 60
ANCHOR = "You are a careful assistant.\nAnswer in short sentences."
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.test/a.png"}}


def key(model: str, tag: str, text: str, limit: int) -> str:
    """SHA-256 over model, NUL, tag and the text cut at a character boundary."""
    data = text.encode()[:limit].decode("utf-8", "ignore").encode()
    return hashlib.sha256(model.encode() + b"\x00" + tag.encode() + data).hexdigest()


def vector(name: str, api: str, body: dict, anchor: tuple[str, str] | None, limit: int = 1024):
    """One row of the file; ``anchor`` is (tag, whole text) or None for a body without a key."""
    row: dict = {"name": name, "api": api, "max_prefix_length": limit, "body": body}
    row["tag"], row["text"] = anchor or (None, None)
    row["key"] = key(body["model"], *anchor, limit) if anchor else None
    return row


def chat(*messages: tuple[str, object]) -> dict:
    return {"model": "m", "messages": [{"role": r, "content": c} for r, c in messages]}


def rows() -> list[dict]:
    digest = hashlib.sha256(b"26:https://example.test/a.png").hexdigest()[:16]
    parts = [{"type": "text", "text": "one"}, IMAGE, {"type": "text", "text": "two"}]
    return [
        vector("system and user", "chat", chat(("system", ANCHOR), ("user", "Hi")), ("S", ANCHOR)),
        vector("user only", "chat", chat(("user", "Hi")), ("M", "Hi")),
        vector("same text, other place", "chat", chat(("user", ANCHOR)), ("M", ANCHOR)),
        vector(
            "two system messages",
            "chat",
            chat(("system", "A"), ("developer", "B"), ("user", "C")),
            ("S", "A\nB"),
        ),
        vector("a late system message", "chat", chat(("user", "A"), ("system", "B")), ("M", "A")),
        vector("assistant first", "chat", chat(("assistant", "A"), ("user", "B")), ("M", "A")),
        vector("empty system message", "chat", chat(("system", ""), ("user", "B")), ("M", "B")),
        vector("no text at all", "chat", chat(("user", "")), None),
        vector("no messages", "chat", {"model": "m", "messages": []}, None),
        vector("text parts", "chat", chat(("system", parts[:1] + parts[2:])), ("S", "one\ntwo")),
        vector(
            "an image after the text",
            "chat",
            chat(("user", parts)),
            ("M", f"one\ntwo\n[image_url:{digest}]"),
        ),
        vector("cut inside a character", "chat", chat(("system", LONG)), ("S", LONG)),
        vector("cut at ten bytes", "chat", chat(("system", LONG)), ("S", LONG), 10),
        vector("emoji", "chat", chat(("system", "🙂" * 5)), ("S", "🙂" * 5), 6),
        vector("another model", "chat", {**chat(("user", "Hi")), "model": "n"}, ("M", "Hi")),
        vector("completion", "completions", {"model": "m", "prompt": "Hi"}, ("M", "Hi")),
        vector("completion, list", "completions", {"model": "m", "prompt": ["A", "B"]}, ("M", "A")),
        vector("completion, tokens", "completions", {"model": "m", "prompt": [1, 2]}, None),
        vector(
            "responses",
            "responses",
            {"model": "m", "instructions": ANCHOR, "input": "Hi"},
            ("S", ANCHOR),
        ),
        vector("responses, text", "responses", {"model": "m", "input": "Hi"}, ("M", "Hi")),
        vector(
            "responses, items",
            "responses",
            {
                "model": "m",
                "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
            },
            ("M", "Hi"),
        ),
        vector(
            "anthropic string",
            "anthropic",
            {**chat(("user", "Hi")), "system": ANCHOR},
            ("S", ANCHOR),
        ),
        vector(
            "anthropic blocks with a marker",
            "anthropic",
            {
                **chat(("user", "Hi")),
                "system": [
                    {"type": "text", "text": "one"},
                    {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}},
                ],
            },
            ("S", "one\ntwo"),
        ),
        vector("anthropic without system", "anthropic", chat(("user", "Hi")), ("M", "Hi")),
    ]


if __name__ == "__main__":
    target = Path(__file__).parent.parent / "tests" / "fixtures" / "prefix_keys.json"
    target.write_text(json.dumps(rows(), ensure_ascii=False, indent=1) + "\n")
    print(f"{len(rows())} vectors written to {target.name}")
