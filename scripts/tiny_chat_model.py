#!/usr/bin/env python3
"""Make a chat model small enough for any CPU: random weights, a real tokenizer, a ChatML template.
Beside it, in OUT_DIR-lora, an adapter of random weights.

Run by the engine's own Python, which has torch, transformers and tokenizers; needs no network:

    tiny_chat_model.py OUT_DIR

The tokenizer learns from the interpreter's own help texts, so one Python version always gives the
same model. Its answers are noise; its chats, tokens and blocks are those of a real model.
"""

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 1024
LAYERS = 2
HEADS = 2
HEAD_SIZE = 32  # one that the engine's CPU attention knows
CONTEXT = 8192
RANK = 4
ADAPTED = ("q_proj", "v_proj")
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE, so that any text can be written and read back."""
    bytes_to_pieces = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = bytes_to_pieces
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((topics[name] for name in sorted(topics)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=END_OF_TEXT,
        eos_token=TURN_END,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )


def main(folder: Path) -> None:
    """Write tokenizer and model where the engine can serve them from."""
    tokenizer = make_tokenizer()
    torch.manual_seed(1)
    width = HEADS * HEAD_SIZE
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    make_adapter(folder.with_name(f"{folder.name}-lora"), width)


def make_adapter(folder: Path, width: int) -> None:
    """Write a LoRA adapter in the layout that the engine reads."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for layer in range(LAYERS):
        for name in ADAPTED:
            where = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{where}.lora_A.weight"] = torch.randn(RANK, width) * 0.1
            weights[f"{where}.lora_B.weight"] = torch.randn(width, RANK) * 0.1
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny-chat",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(ADAPTED),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
