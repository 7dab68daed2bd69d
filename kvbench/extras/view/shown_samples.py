"""A sample as a page shows it: the answer, its value, what was kept of the prompt, and the prompt's end or tokens."""

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from kvbench.records import KeptSets, PromptRecord, Row

BARS = 96
"""Ranges of positions in which a sample's kept KV pairs are shown."""
LONGEST = 4000
"""Characters of a prediction that a page shows."""
MOST_TOKENS, EDGE, AROUND = 2000, 400, 60
"""Of a prompt of more tokens the first and last are shown, and those around right answers."""


@dataclass(frozen=True)
class ShownPrompt:
    """Shown part of a prompt, and the positions of the tokens in it; a gap is None."""

    data: dict[str, Any]
    num_tokens: int
    places: list[int | None]

    @classmethod
    def of(cls, record: PromptRecord) -> "ShownPrompt":
        data = {"tail": record.tail, "references": list(record.references)}
        if record.tokens is None:
            return cls(data, 0, [])
        tokens, places = record.tokens, readable_places(record.tokens, record.references)
        texts = ["" if place is None else tokens[place] for place in places]
        return cls(data | {"tokens": texts, "places": places}, len(tokens), places)


def readable_places(tokens: Sequence[str], references: Sequence[str]) -> list[int | None]:
    """Return which tokens of a prompt are shown, by position; None stands for a gap."""
    count, shown = len(tokens), set(range(len(tokens)))
    if count > MOST_TOKENS:
        starts = np.cumsum([len(token) for token in tokens])
        mentions = [
            int(np.searchsorted(starts, match.start(), "right"))
            for reference in references
            if reference.strip()
            for match in re.finditer(re.escape(reference), "".join(tokens))
        ]
        shown = {*range(EDGE), *range(count - EDGE, count)}
        shown |= {i for place in mentions[:20] for i in range(place - AROUND, place + AROUND) if 0 <= i < count}
    places: list[int | None] = []
    for place in sorted(shown):
        places += [None] if place and place - 1 not in shown else []
        places.append(place)
    return places


def sample_data(row: Row, sets: KeptSets | None, prompt: ShownPrompt | None, longest: int = LONGEST) -> dict[str, Any]:
    """Return a row as a page shows it, as values for JSON; of a prediction at most `longest` characters."""
    shares = None if sets is None or sets.masks is None else _shares(sets.masks, sets.num_tokens)
    bars = tokens = None
    if shares is not None:
        edges = np.linspace(0, len(shares), min(BARS, len(shares)) + 1).astype(int)
        bars = _base64([shares[start:stop].mean() for start, stop in pairwise(edges)])
        if prompt is not None and prompt.num_tokens == len(shares):
            tokens = _base64([0.0 if place is None else shares[place] for place in prompt.places])
    text = row.prediction or ""
    return {
        "sample": row.sample,
        "value": row.value,
        "error": row.error,
        "prediction": text if len(text) <= longest else f"{text[:longest]} ... ({len(text)} characters)",
        "prompt": None if prompt is None else row.prompt_sha256,
        "kept": bars,
        "tokens": tokens,
        "seen": None if sets is None else sets.num_tokens,
    }


def _shares(masks: Sequence[Sequence[bytes]], num_tokens: int) -> np.ndarray:
    """Return the share of KV pairs that were kept at each position, over layers and heads."""
    packed = np.stack([np.frombuffer(mask, np.uint8) for heads in masks for mask in heads])
    return np.unpackbits(packed, axis=1, count=num_tokens).mean(axis=0)


def _base64(shares: Sequence[float]) -> str:
    """Shares as base64 of bytes 0..255."""
    return b64encode(np.round(np.array(shares) * 255).astype(np.uint8).tobytes()).decode()
