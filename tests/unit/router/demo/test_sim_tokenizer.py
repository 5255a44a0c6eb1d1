"""The simulated tokenizer: reversible, prefix-stable over turns, ids that mean bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuum_router.demo import sim_tokenizer


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert sim_tokenizer.decode(sim_tokenizer.encode(text)) == text


@given(st.text(alphabet=st.characters(exclude_characters="<|>"), max_size=80))
def test_an_answer_written_into_the_chat_keeps_the_tokens_it_was_generated_with(
    answer: str,
) -> None:
    asked = [{"role": "user", "content": "Wie geht's? 안녕"}]
    prompt = sim_tokenizer.encode(sim_tokenizer.render_chat(asked))
    generated = sim_tokenizer.encode(answer)
    later = sim_tokenizer.render_chat([*asked, {"role": "assistant", "content": answer}])
    assert sim_tokenizer.encode(later)[: len(prompt) + len(generated)] == prompt + generated


def test_special_tokens_are_single_ids_and_are_kept_in_the_text() -> None:
    tokens = sim_tokenizer.encode("<|im_start|>user\nhi<|im_end|>")
    assert tokens[0] == sim_tokenizer.TURN_START
    assert tokens[-1] == sim_tokenizer.TURN_END
    assert sim_tokenizer.decode([0, 1, 2]) == "<|endoftext|><|im_start|><|im_end|>"


def test_half_a_character_decodes_to_the_replacement_character() -> None:
    tokens = sim_tokenizer.encode("ab한")
    assert len(tokens) == 2
    assert sim_tokenizer.decode(tokens) == "ab한"
    assert sim_tokenizer.decode(tokens[:1]) == "ab�"


def test_surrogates_count_as_replacement_characters() -> None:
    assert sim_tokenizer.decode(sim_tokenizer.encode("a\ud800b")) == "a�b"


@pytest.mark.parametrize("token", [3, 15, sim_tokenizer.VOCABULARY, 2**32 - 1])
def test_ids_without_a_meaning_give_nothing(token: int) -> None:
    assert sim_tokenizer.decode([token]) == ""


def test_the_highest_id_is_three_bytes() -> None:
    assert sim_tokenizer.piece_bytes(sim_tokenizer.VOCABULARY - 1) == b"\xff\xff\xff"


def test_negative_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        sim_tokenizer.decode([-1])


@pytest.mark.parametrize(
    ("messages", "tools", "generate", "expected"),
    [
        pytest.param(
            [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
            [],
            True,
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
            "<|im_start|>assistant\n",
            id="system and user",
        ),
        pytest.param(
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "x"}]}],
            [],
            False,
            "<|im_start|>user\na<|im_end|>\n",
            id="parts, no generation prompt",
        ),
        pytest.param(
            [{"role": "user", "content": [{"text": "a"}, {"text": "b"}]}],
            [],
            False,
            "<|im_start|>user\na\nb<|im_end|>\n",
            id="parts are joined with a newline",
        ),
        pytest.param(
            [{"role": "assistant", "content": None}],
            [{"name": "é"}],
            False,
            '<|im_start|>system\n# Tools\n{"name": "é"}\n<|im_end|>\n'
            "<|im_start|>assistant\n<|im_end|>\n",
            id="tools come first, null content is empty",
        ),
    ],
)
def test_the_chat_template(
    messages: list[dict[str, object]], tools: list[object], generate: bool, expected: str
) -> None:
    rendered = sim_tokenizer.render_chat(messages, tools=tools, add_generation_prompt=generate)
    assert rendered == expected
