"""Measure a model folder.

The official prompts, greedy decoding over the full cache, every figure with its n and 95 % interval.
"""

import math
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from .words import load_words

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from kvbench.tasks.ruler.niah import Niah

FIGURES = (
    ("ruler/niah_single_1", 512, 42),
    ("ruler/niah_single_1", 512, 1000),
    ("ruler/niah_single_1", 1024, 42),
    ("ruler/niah_multikey_2", 512, 42),
    ("ruler/niah_multikey_2", 1024, 42),
    ("ruler/niah_multikey_3", 1024, 42),
)
KINDS = {
    "ruler/niah_single_1": ("noise", "words", "numbers"),
    "ruler/niah_multikey_2": ("needle", "words", "numbers"),
    "ruler/niah_multikey_3": ("needle", "uuids", "uuids"),
}


def evaluate(folder: Path, samples: int, figures: tuple[tuple[str, int, int], ...] = FIGURES) -> list[dict[str, Any]]:
    """One line a figure: task, context length, seed, n, mean, interval, and how answers end."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    held_out = load_words(folder, None).held_out if (folder / "words.json").exists() else held_out_words(folder)
    return [_figure(model, tokenizer, held_out, samples, *figure) for figure in figures]


def held_out_words(folder: Path) -> frozenset[str]:
    """The words that the model of an exported folder never saw."""
    import json

    return frozenset(json.loads((folder / "held_out_words.json").read_text(encoding="utf-8")))


def _figure(
    model, tokenizer, held_out: frozenset[str], samples: int, name: str, length: int, seed: int
) -> dict[str, Any]:
    haystack, keys, values = KINDS[name]
    task = Niah(
        name=name,
        haystack=haystack,
        keys=keys,
        values=values,
        context_length=length,
        samples=samples,
        seed=seed,
    )

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    scores, new_tokens, ended, unseen = [], [], [], []
    for sample in task.generate(count, range(samples)):
        ids = torch.tensor([tokenizer.encode(sample.prompt, add_special_tokens=False)])
        with torch.no_grad():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=sample.max_new_tokens, do_sample=False
            )
        answer = out[0, ids.shape[1] :]
        score = task.score(tokenizer.decode(answer, skip_special_tokens=True), sample)
        scores.append(score)
        new_tokens.append(len(answer))
        ended.append(int(answer[-1]) == tokenizer.eos_token_id)
        if any(word in held_out for word in _key_words(sample.question, held_out)):
            unseen.append(score)
    low, high = wilson(sum(scores), len(scores))
    return {
        "task": name,
        "context_length": length,
        "seed": seed,
        "n": len(scores),
        "mean": round(sum(scores) / len(scores), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "mean_new_tokens": round(sum(new_tokens) / len(new_tokens), 2),
        "ended": round(sum(ended) / len(ended), 4),
        "n_held_out_key": len(unseen),
        "mean_held_out_key": round(sum(unseen) / len(unseen), 4) if unseen else None,
    }


def _key_words(question: str, held_out: frozenset[str]) -> list[str]:
    """The held-out words in the asked key: `adjective-noun`, either of which may hold a hyphen itself."""
    key = question.split(" for ", 1)[1].split(" mentioned", 1)[0]
    parts = key.split("-")
    halves = [("-".join(parts[:cut]), "-".join(parts[cut:])) for cut in range(1, len(parts))]
    return [half for pair in halves for half in pair if half in held_out]


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, p = 1.959964, successes / n
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)
