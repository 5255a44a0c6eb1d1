"""A local tokenizer beside the engine's own template."""

from collections.abc import Mapping, Sequence

from continuum_kv_listener.engine_text import LocalText


class Words:
    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[str] = []

    async def tokenize_chat(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        self.asked.append("chat")
        return [len(messages), len(tools)]

    async def tokenize_prompt(self, prompt: str) -> list[int]:
        self.asked.append("prompt")
        return [len(prompt)]

    async def detokenize(self, tokens: Sequence[int]) -> str:
        self.asked.append("text")
        return f"{self.name} {list(tokens)}"


async def test_texts_are_local_and_templates_the_engines() -> None:
    engine, local = Words("engine"), Words("local")
    text = LocalText(engine, local)
    assert await text.tokenize_chat([{"role": "user"}], [{}, {}]) == [1, 2]
    assert await text.tokenize_prompt("abc") == [3]
    assert await text.detokenize([7, 8]) == "local [7, 8]"
    assert (engine.asked, local.asked) == (["chat", "prompt"], ["text"])
