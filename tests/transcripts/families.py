"""Four families of small tokenizers, and the chat templates that prompts meet: what transcripts are made with.

`bytes.json` is a byte-level BPE, `blanks.json` a BPE of SentencePiece's form that falls back to bytes;
scripts/transcripts trains both on this repository's pages. What differs between the families of real models is put
around them here:

    bytes       no first token                             Qwen 2.5 and 3
    bytes_bos   a first token                              Llama 3
    first       a first token, a blank before a text       Mistral v0.3, Llama 2 with legacy=False
    always      the same, also after each special token    Llama 2, Mistral v0.1
"""

from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.processors import ByteLevel, TemplateProcessing
from transformers import PreTrainedTokenizerFast

FOLDER = Path(__file__).parents[1] / "golden" / "transcripts"
FAMILIES = ("bytes", "bytes_bos", "first", "always")
BLANK = "\u2581"
SPECIAL = ("<bos>", "</s>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>")
TURN = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
TRIMMED = "<|im_start|>{{ m['role'] }}\n\n{{ m['content'] | trim }}<|im_end|>"
EACH, LAST = "{% for m in messages %}", "{% endfor %}{% if add_generation_prompt %}"
HEADER = "<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
HEADED = LAST + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
TEMPLATES = {
    "raw": None,
    "inst": EACH + "[INST]{{ m['content'] }}[/INST]{% endfor %}",
    "meta": EACH + "[INST] {{ m['content'] }} [/INST]{% endfor %}",
    "chatml": EACH + TURN + LAST + "<|im_start|>assistant\n{% endif %}",
    "gemma": "{{ bos_token }}{% set n = 1 if messages[0]['role'] == 'system' else 0 %}{% for m in messages[n:] %}"
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{% if n and loop.first %}{{ messages[0]['content'] }}\n\n{% endif %}{{ m['content'] | trim }}<end_of_turn>\n"
    + LAST
    + "<start_of_turn>model\n{% endif %}",
    "qwen3": EACH
    + TURN
    + LAST
    + "<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
    "llama3": "{{ bos_token }}" + EACH + HEADER + "{{ m['content'] | trim }}<|eot_id|>" + HEADED,
    "llama3_kvzip": "{{ bos_token }}"
    + EACH
    + HEADER
    + "{{ m['content'] | trim }}{{ '' if m['role'] == 'system' else '\n\n' }}<|eot_id|>"
    + HEADED,
    "trimmed": "{{ bos_token }}" + EACH + TRIMMED + LAST + "<|im_start|>assistant\n\n{% endif %}",
}
"""raw: none. gemma: Gemma 3's. inst: Llama 2's turn as LongBench's pred.py writes it. meta: the same as
RULER's template.py does. chatml: Qwen 2.5's, text as it is. trimmed: the
first token is in it and white space around a text is not, as in Llama 3.1. qwen3: Qwen 3's, whose thinking can be
left empty. llama3: Llama 3's. llama3_kvzip: the same as KVzip writes it out.
"""
ADDED = {
    "qwen3": ["<think>", "</think>"],
    "llama3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
}
"""Tokens that templates need besides `SPECIAL`, by the first part of a template's name. The first one of Llama 3 is its
first token."""


@cache
def tokenizer(family: str, template: str = "raw") -> Any:
    """The tokenizer of a family with a chat template of `TEMPLATES`."""
    built = Tokenizer.from_file(
        str(FOLDER / "tokenizers" / f"{'bytes' if family.startswith('bytes') else 'blanks'}.json")
    )
    if family.startswith("bytes"):
        built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        built.decoder, built.post_processor = decoders.ByteLevel(), ByteLevel(trim_offsets=False)
    elif family == "first":
        built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        built.normalizer = normalizers.Sequence([normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)])
    if not family.startswith("bytes"):
        parts = decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
        built.decoder = decoders.Sequence(list(parts))
    added = ADDED.get(template.partition("_")[0], [])
    built.add_special_tokens(added)
    first = added[0] if template.startswith("llama3") else "<bos>"
    begins = {} if family == "bytes" else {"bos_token": first}
    if begins:
        start = (first, built.token_to_id(first))
        both = f"{first} $A {first} $B"
        built.post_processor = TemplateProcessing(single=f"{first} $A", pair=both, special_tokens=[start])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=built,
        eos_token="</s>",
        additional_special_tokens=list(SPECIAL[2:]),
        clean_up_tokenization_spaces=False,
        **begins,
    )
    wrapped.chat_template = TEMPLATES[template]
    return wrapped


def model_ends(tok: Any) -> list[int]:
    """The tokens that end the answers of a model with this tokenizer."""
    return tok.convert_tokens_to_ids(["</s>", "<|im_end|>"])
