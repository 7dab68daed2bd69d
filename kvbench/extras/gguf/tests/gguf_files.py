"""Tiny GGUF files: a Llama whose weights are drawn at random, with a byte-level tokenizer."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, HEADS, KV_HEADS, LAYERS, INNER = 64, 4, 2, 2, 96
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTES = sorted(ByteLevel.alphabet())
MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("1", "2"), ("Ġ", "1"), ("o", "n"), ("Ġ", "Ġ"), ("'", "s"), ("Ċ", "Ċ")]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_gguf(path: Path, pre: str = "smollm", extra: dict[str, Any] | None = None, kind: str = "gpt2") -> Path:
    """A Llama in Q4_1 with embeddings in Q8_0. extra: further tensors."""
    draw = np.random.default_rng(0)
    tokens = [*SPECIAL, *BYTES, *("".join(pair) for pair in MERGES)]
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_1)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)

    def add(name: str, *shape: int, stored: GGMLQuantizationType = GGMLQuantizationType.Q4_1) -> None:
        values = draw.normal(0, 0.1, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values + 1)
        else:
            writer.add_tensor(name, quantize(values, stored), raw_dtype=stored)

    add("token_embd.weight", len(tokens), HIDDEN, stored=GGMLQuantizationType.Q8_0)
    add("output_norm.weight", HIDDEN)
    head = HIDDEN // HEADS
    for layer in range(LAYERS):
        add(f"blk.{layer}.attn_norm.weight", HIDDEN)
        add(f"blk.{layer}.ffn_norm.weight", HIDDEN)
        add(f"blk.{layer}.attn_q.weight", HIDDEN, HIDDEN)
        add(f"blk.{layer}.attn_k.weight", KV_HEADS * head, HIDDEN)
        add(f"blk.{layer}.attn_v.weight", KV_HEADS * head, HIDDEN)
        add(f"blk.{layer}.attn_output.weight", HIDDEN, HIDDEN)
        add(f"blk.{layer}.ffn_gate.weight", INNER, HIDDEN)
        add(f"blk.{layer}.ffn_up.weight", INNER, HIDDEN)
        add(f"blk.{layer}.ffn_down.weight", HIDDEN, INNER)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
