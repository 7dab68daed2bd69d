"""Tiny tokenizers of bytes, with and without the habits of real ones."""

from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

TURNS = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}"
)
SPECIAL = ["<s>", "</s>", "<|user|>", "<|system|>", "<|bot|>"]


def of_bytes(begin: bool = False, end: bool = False, template: str | None = None) -> Any:
    """A tokenizer of bytes and the marks above; `begin` and `end` put <s> and </s> around what it reads."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    built = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    around = f"{'<s> ' if begin else ''}$A{' </s>' if end else ''}"
    built.post_processor = TemplateProcessing(single=around, special_tokens=[("<s>", 0), ("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=built, bos_token="<s>", eos_token="</s>", additional_special_tokens=SPECIAL[2:]
    )
    tokenizer.chat_template = template
    return tokenizer
