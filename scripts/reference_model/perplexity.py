"""Perplexity of books that were held back, with everything attended to and with a window of the last tokens only.

What a wider view gives on text is what eviction can take away; where the two figures agree, perplexity says nothing
about it.
"""

import math
import random
from pathlib import Path
from typing import Any

import torch

WINDOW, TOKENS, STRETCHES, SKIPPED = 64, 1024, 4, 256
"""Stretches of `TOKENS` tokens a book, of which those after the first `SKIPPED` count."""


@torch.no_grad()
def perplexity(model, encode, books: list[str]) -> dict[str, Any]:
    """Mean nats a token with the full view and the window, and the 95 % interval of their difference over books."""
    rng = random.Random("held-back books")
    at = torch.arange(TOKENS, device=model.device)
    near = (at[:, None] >= at) & (at[:, None] - at < WINDOW)
    full, narrow, differences = [], [], []
    for book in books:
        starts = [rng.randrange(max(1, len(book) - 5 * TOKENS)) for _ in range(STRETCHES)]
        stretches = [encode(book[start : start + 5 * TOKENS])[:TOKENS] for start in starts]
        stretches = [stretch for stretch in stretches if len(stretch) == TOKENS]
        if not stretches:
            continue
        ids = torch.tensor(stretches, device=model.device)
        wide = _nats(model, ids, None)
        local = _nats(model, ids, near[None, None].expand(len(ids), 1, -1, -1))
        full.append(wide)
        narrow.append(local)
        differences.append(local - wide)
    mean = sum(differences) / len(differences)
    spread = math.sqrt(sum((value - mean) ** 2 for value in differences) / (len(differences) - 1) / len(differences))
    wide, local = sum(full) / len(full), sum(narrow) / len(narrow)
    return {
        "books": len(full),
        "stretches": STRETCHES,
        "tokens": TOKENS,
        "skipped": SKIPPED,
        "window": WINDOW,
        "nats_full": round(wide, 4),
        "nats_window": round(local, 4),
        "perplexity_full": round(math.exp(wide), 2),
        "perplexity_window": round(math.exp(local), 2),
        "difference": round(mean, 4),
        "low": round(mean - 1.96 * spread, 4),
        "high": round(mean + 1.96 * spread, 4),
    }


def _nats(model, ids: torch.Tensor, seen: torch.Tensor | None) -> float:
    """Mean nats a token; `seen` [rows, 1, tokens, tokens] says who sees whom, None: all that came before."""
    logits = model(input_ids=ids, attention_mask=seen, use_cache=False).logits[:, SKIPPED - 1 : -1].float()
    targets = ids[:, SKIPPED:]
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))


def held_back(folder: Path) -> tuple[list[str], list[str]]:
    """Names and texts of the books that training never read: every third one by name."""
    files = sorted(folder.glob("*.txt"))[2::3]
    return [file.name for file in files], [file.read_text(encoding="utf-8").replace("\r\n", "\n") for file in files]
