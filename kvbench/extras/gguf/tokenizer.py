"""The tokenizer of a GGUF file as the `tokenizer.json` of the package tokenizers.

A GGUF file has vocabulary and merges, and names the rule that splits a text before them (`tokenizer.ggml.pre`), but
does not contain the rule. transformers ignores that name and splits every text as GPT-2.

Source of the rules: `llm_tokenizer_bpe` in llama.cpp's src/llama-vocab.cpp, and the publishers' tokenizer.json.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvbench.support.errors import UserError

CONTROL, USER_DEFINED = 3, 4
"""Token types of GGUF that are found in a text before it is split."""


@dataclass(frozen=True)
class Rule:
    """How the publisher of a vocabulary splits a text: by pre-tokenizers of the package tokenizers, in order.

    ignore_merges: a part that is a token is taken as it is. adds_bos: what a file means that does not say it.
    """

    split: tuple[dict[str, Any], ...]
    normalizer: Literal["NFC"] | None = None
    ignore_merges: bool = False
    adds_bos: bool = False


def _byte_level(use_regex: bool) -> dict[str, Any]:
    """Bytes as printable characters, after GPT-2's pattern or without it."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _pattern(digits: str) -> tuple[dict[str, Any], ...]:
    """Return the pattern of Llama 3 and Qwen 2, which differ in the digits of a part."""
    regex = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}, _byte_level(False)


GPT2 = (_byte_level(True),)
SINGLE_DIGITS = ({"type": "Digits", "individual_digits": True}, *GPT2)
RULES = {
    "gpt-2": Rule(GPT2),
    "llama-bpe": Rule(_pattern(r"\p{N}{1,3}"), ignore_merges=True, adds_bos=True),
    "qwen2": Rule(_pattern(r"\p{N}"), normalizer="NFC"),
    "smollm": Rule(SINGLE_DIGITS),
    "starcoder": Rule(SINGLE_DIGITS),
}
"""The rules that are known, by the names that GGUF files have for them. `default` is missing: it names none."""


def tokenizer_json(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the content of `tokenizer.json`. fields: the metadata of a GGUF file by name; `where` begins error
    messages.

    Raises UserError for a kind of tokenizer, or a rule of splitting, that is not known here.
    """
    kind, pre = fields.get("tokenizer.ggml.model"), str(fields.get("tokenizer.ggml.pre"))
    if kind != "gpt2":
        raise UserError(f"{where}: tokenizer.ggml.model is {kind!r}; allowed: 'gpt2' (byte-level BPE)")
    if pre not in RULES:
        raise UserError(f"{where}: tokenizer.ggml.pre is {pre!r}; allowed: {', '.join(RULES)}")
    if fields.get("tokenizer.ggml.add_eos_token"):
        raise UserError(f"{where}: tokenizer.ggml.add_eos_token is true: allowed: tokenizers that end no text")
    rule = RULES[pre]
    tokens: Sequence[str] = fields["tokenizer.ggml.tokens"]
    types: Sequence[int] = fields["tokenizer.ggml.token_type"]
    added = [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == CONTROL,
        }
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": rule.normalizer and {"type": rule.normalizer},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(rule.split)},
        "post_processor": _beginning(fields) if fields.get("tokenizer.ggml.add_bos_token", rule.adds_bos) else None,
        "decoder": _byte_level(True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": rule.ignore_merges,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def _beginning(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the post-processor that puts the token of the beginning before a text."""
    number = fields["tokenizer.ggml.bos_token_id"]
    token = fields["tokenizer.ggml.tokens"][number]
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    parts = [first, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": parts,
        "pair": [*parts, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }


def tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`: special tokens and the chat template of a GGUF file."""
    tokens: Sequence[str] = fields["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    special = {name: tokens[number] for name, number in ids.items() if number is not None}
    template = fields.get("tokenizer.chat_template")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "clean_up_tokenization_spaces": False,
        **({} if template is None else {"chat_template": template}),
    }
