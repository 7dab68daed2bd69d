"""Tiny tokenizers of bytes, with and without the habits of real ones."""

from functools import lru_cache
from typing import Any, Literal

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

TURNS = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}"
)
LAST = 8
"""Tokenizers that are kept: each has a process that renders its template. Copy one to change it."""
SPECIAL = ["<s>", "</s>", "<|user|>", "<|system|>", "<|bot|>"]


@lru_cache(LAST)
def of_bytes(begin: bool = False, end: bool = False, template: str | None = None) -> Any:
    """A tokenizer of bytes and the marks above; `begin` and `end` put <s> and </s> around what it reads."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    built = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    around = f"{'<s> ' if begin else ''}$A{' </s>' if end else ''}"
    built.post_processor = TemplateProcessing(single=around, special_tokens=[("<s>", 0), ("</s>", 1)])
    return _wrapped(built, template)


@lru_cache(LAST)
def of_words(
    kind: Literal["first", "always", "legacy", "bytes"], begin: bool = False, template: str | None = None
) -> Any:
    """A tokenizer of words with a blank before them, as of Llama 2.

    first, always: Metaspace with that prepend_scheme. legacy: a normaliser puts the blank there, as in tokenizers made
    from SentencePiece files. bytes: byte level, with no blank of its own.
    """
    blank = "\u0120" if kind == "bytes" else "\u2581"
    words = ["The", "the", "sky", "is", "Is", "blue", "Which", "colour"]
    merges = [(word[:end], word[end]) for word in words for end in range(1, len(word))]
    merges = list(dict.fromkeys(merges)) + [(blank, word) for word in words]
    letters = sorted({*pre_tokenizers.ByteLevel.alphabet(), blank, "\n"})
    tokens = ["<unk>", *SPECIAL, *letters, *("".join(pair) for pair in merges)]
    built = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, merges, unk_token="<unk>"))
    if kind == "bytes":
        built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind == "legacy":
        built.normalizer = normalizers.Sequence([normalizers.Prepend(blank), normalizers.Replace(" ", blank)])
    else:
        built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind)
    around = f"{'<s> ' if begin else ''}$A"
    start = built.token_to_id("<s>")
    built.post_processor = TemplateProcessing(single=around, special_tokens=[("<s>", start)])
    return _wrapped(built, template)


def _wrapped(built: Tokenizer, template: str | None) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=built,
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=SPECIAL[2:],
        chat_template=template,
    )


class Counted:
    """A tokenizer that notes what it encodes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.encoded: list[Any] = []

    def __call__(self, text: Any, **arguments: Any) -> Any:
        self.encoded.append(text)
        return self._tokenizer(text, **arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)
