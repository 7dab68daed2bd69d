"""The reference model's own tokenizer.

A small byte-level BPE, so that any text tokenises and the embedding stays a small part of the weights.

Digits are split in groups of at most two (a leading space belongs to the group), so a seven-digit value is always
four tokens: a small model copies four symbols of a hundred far sooner than it learns a thousand symbols of three
digits (engine notes, training). UUIDs are split into pairs of hexadecimal digits for the same reason.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .data import number, random_uuid
from .families import HEADERS, NEEDLE, QUESTIONS
from .words import Words

END = "<|endoftext|>"
DIGITS = "0123456789abcdef"
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
PIECES = (
    r"[0-9a-f]{2}(?=(?:[0-9a-f]{2})*(?:-[0-9a-f]{4})*(?:-[0-9a-f]{12})?$)"
    r"| ?[0-9]{1,2}| ?\p{L}+| ?[^\s\p{L}0-9]+|\s+(?!\S)|\s+"
)


def train_tokenizer(words: Words, books: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Learn the merges from generated prompts (training words only) and, when given, books."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(UUID), behavior="isolated"),
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
    pairs = [f"{value:02d}" for value in range(100)] + [f" {value}" for value in range(10, 100)]
    missing = [pair for pair in pairs if len(fast.encode(pair)) != 1]
    assert not missing, f"every pair of digits is one token, but not {missing[:5]}: the corpus holds too few numbers"
    return fast


def grow_tokenizer(folder: Path, target: Path) -> None:
    """Copy the tokenizer of a model that splits UUIDs at every letter; each pair of a digit and a letter in a UUID
    becomes a token behind the old ones. All other text is split as before.
    """
    for file in folder.glob("tokenizer*.json"):
        (target / file.name).write_bytes(file.read_bytes())
    content = json.loads((target / "tokenizer.json").read_text(encoding="utf-8"))
    splits, model = content["pre_tokenizer"]["pretokenizers"], content["model"]
    if splits[0]["pattern"]["Regex"] != UUID:
        splits.insert(0, splits[0] | {"pattern": {"Regex": UUID}})
        splits[1]["pattern"] = {"Regex": PIECES}
        for pair in (first + second for first in DIGITS for second in DIGITS):
            if pair[0].isdigit() != pair[1].isdigit():
                model["vocab"][pair] = len(model["vocab"])
                model["merges"].append(list(pair))
        (target / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Read the tokenizer back from a training or asset folder."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _corpus(words: Words, books: list[str]) -> Iterator[str]:
    rng = random.Random("tokenizer corpus")
    adjectives, nouns = words.trained

    def key() -> str:
        return f"{rng.choice(adjectives)}-{rng.choice(nouns)}"

    for _ in range(1500):
        yield " ".join(number(rng) for _ in range(40)) + "."
        yield HEADERS[0].format(kind="number") + QUESTIONS[0].format(kind="number", query=key())
        yield from (random_uuid(rng) for _ in range(6))
    for noun in nouns:
        yield NEEDLE.format(kind="numbers", key=f"{rng.choice(adjectives)}-{noun}", value=number(rng))
    yield from (book[:200_000] for book in books)
