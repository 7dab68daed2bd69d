"""The reference model's own tokenizer.

A small byte-level BPE, so that any text tokenises and the embedding stays a small part of the weights.

Digits are split in groups of at most two (a leading space belongs to the group), so a seven-digit value is always
four tokens: a small model copies four symbols of a hundred far sooner than it learns a thousand symbols of three
digits (engine notes, training).
"""

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .data import haystack_header, needle_text, question_text
from .words import Words

END = "<|endoftext|>"
PIECES = r" ?[0-9]{1,2}| ?\p{L}+| ?[^\s\p{L}0-9]+|\s+(?!\S)|\s+"


def train_tokenizer(words: Words, books: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Learn the merges from generated prompts (training words only) and, when given, books."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(words, books), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END, bos_token=END)
    pairs = [f"{number:02d}" for number in range(100)] + [f" {number}" for number in range(10, 100)]
    missing = [pair for pair in pairs if len(fast.encode(pair)) != 1]
    assert not missing, f"every pair of digits is one token, but not {missing[:5]}: the corpus holds too few numbers"
    return fast


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Read the tokenizer back from a training or asset folder."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _corpus(words: Words, books: list[str]) -> Iterator[str]:
    rng = random.Random("tokenizer corpus")
    adjectives, nouns = words.trained
    for _ in range(300):
        yield " ".join(str(rng.randrange(10**6, 10**7)) for _ in range(40)) + "."
        yield haystack_header("number") + question_text("number", f"{rng.choice(adjectives)}-{rng.choice(nouns)}")
    for noun in nouns:
        yield needle_text("number", f"{rng.choice(adjectives)}-{noun}", str(rng.randrange(10**6, 10**7)))
    yield from (book[:200_000] for book in books)
