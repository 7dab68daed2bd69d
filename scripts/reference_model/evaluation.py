"""Measure a model folder: RULER's tasks over the full cache, and perplexity of books it never read.

The official prompts, greedy decoding in float32, every figure with its n and 95 % interval. Each figure is appended to a
file as soon as it is there, under the SHA-256 of the weights: a stopped measurement goes on where it was.
"""

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from .words import load_words

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

Figure = tuple[str, int, int]
"""A task's name, its context length and its seed."""

LENGTHS = {
    "niah_single_1": (512, 1024, 2048, 4096),
    "niah_single_2": (512, 1024, 2048, 4096),
    "niah_multikey_1": (512, 1024, 2048, 4096),
    "niah_multikey_2": (512, 1024, 2048, 4096),
    "niah_multivalue": (1024, 2048, 4096),
    "niah_multiquery": (1024, 2048, 4096),
    "vt": (1024, 2048, 4096),
    "niah_single_3": (1024,),
    "niah_multikey_3": (1024,),
}
SEED = 1000
"""Of the prompts to measure on; 42, the protocol's own, is what runs and tests of the product use."""
FIGURES: tuple[Figure, ...] = (
    *((f"ruler/{task}", length, SEED) for length in (512, 1024, 2048, 4096) for task in LENGTHS if length in LENGTHS[task]),
    ("ruler/niah_single_1", 512, 42),
)


def evaluate(
    folder: Path,
    samples: int,
    into: Path,
    figures: tuple[Figure, ...] = FIGURES,
    data: Path | None = None,
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """One line a figure: task, context length, seed, n, mean, interval, how answers end; lines in `into` are kept.

    `data` is the folder of the essays, as `data.root` of kvbench.
    """
    torch.set_num_threads(1)
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    done = [json.loads(line) for line in into.read_text("utf-8").splitlines()] if into.exists() else []
    done = [line for line in done if line["weights"] == weights and line.get("n") == samples]
    have = {(line["task"], line["context_length"], line["seed"]): line for line in done if "task" in line}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(device)
    held_out = load_words(folder, None).held_out if (folder / "words.json").exists() else held_out_words(folder)
    for figure in figures:
        if figure not in have:
            line = {"weights": weights} | _figure(model, tokenizer, held_out, samples, data, *figure)
            with into.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
            have[figure] = line
    return [have[figure] for figure in figures]


def held_out_words(folder: Path) -> frozenset[str]:
    """The words that the model of an exported folder never saw."""
    return frozenset(json.loads((folder / "held_out_words.json").read_text(encoding="utf-8")))


def _task(name: str, length: int, samples: int, seed: int, data: Path | None) -> Any:
    from hydra import compose, initialize_config_dir
    from hydra.utils import instantiate

    from kvbench import paths

    asked = [f"task={name}", f"task.context_length={length}", f"task.samples={samples}", f"task.seed={seed}"]
    asked += [f"data.root={data}"] if data else []
    with initialize_config_dir(str(paths.conf().resolve()), version_base="1.3"):
        return instantiate(compose("run", overrides=asked).task)


def _figure(
    model, tokenizer, held_out: frozenset[str], samples: int, data: Path | None, name: str, length: int, seed: int
) -> dict[str, Any]:
    task = _task(name, length, samples, seed, data)
    scores, new_tokens, ended, unseen = [], [], [], []

    def count(text: str) -> int:
        return len(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)

    for sample in task.generate(count, range(samples)):
        ids = torch.tensor([tokenizer.encode(sample.prompt, add_special_tokens=False)], device=model.device)
        with torch.no_grad():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=sample.max_new_tokens, do_sample=False
            )
        answer = out[0, ids.shape[1] :]
        score = task.score(tokenizer.decode(answer, skip_special_tokens=True), sample)
        scores.append(score)
        new_tokens.append(len(answer))
        ended.append(int(answer[-1]) == tokenizer.eos_token_id)
        if any(_key_words(sample.question, held_out)):
            unseen.append(score)
    low, high = wilson(sum(scores), len(scores))
    return {
        "task": name,
        "version": task.version,
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


def _key_words(question: str, held_out: frozenset[str]) -> Iterator[str]:
    """The held-out words in the asked keys: `adjective-noun`, either of which may hold a hyphen itself."""
    for key in question.partition(" for ")[2].partition(" mentioned")[0].replace(", and ", ", ").split(", "):
        parts = key.split("-")
        for cut in range(1, len(parts)):
            yield from {"-".join(parts[:cut]), "-".join(parts[cut:])} & held_out


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, p = 1.959964, successes / n
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)
