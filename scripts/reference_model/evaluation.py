"""Measure a model folder: RULER's tasks over the full cache, and perplexity of books it never read.

The official prompts, greedy decoding in float32, every figure with its n and 95 % interval. Each is appended to a file
as soon as it is there, so that a stopped measurement goes on where it was.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from .perplexity import held_back, perplexity
from .policies import policies
from .wilson import wilson
from .words import load_words

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

Figure = tuple[str, int, int]
"""A task's name, its context length and its seed."""

SEED = 1000
"""Of the prompts to measure on; 42, the protocol's own, is what runs and tests of the product use."""
TASKS = (
    *("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
    *("niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe"),
)
FIGURES: tuple[Figure, ...] = tuple((f"ruler/{task}", length, SEED) for length in (1024, 2048) for task in TASKS)
FAR, FAR_SAMPLES = 2048, 50
"""From this length on at most so many samples: a prompt costs seconds."""
TOGETHER = 8
"""Prompts answered at a time."""


class Kept:
    """Measurements in a file of JSON lines, each under the SHA-256 of the weights and the samples it was taken with."""

    def __init__(self, file: Path, folder: Path, samples: int):
        self.file = file
        weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        self.mark = {"weights": weights, "samples": samples}
        lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
        self.measured = {line["what"]: line["found"] for line in lines if self.mark.items() <= line.items()}

    def get(self, what: str, measured: Callable[[], Any]) -> Any:
        """What the file holds under this name, else what `measured` finds, which is appended."""
        if what not in self.measured:
            self.measured[what] = measured()
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.mark | {"what": what, "found": self.measured[what]}) + "\n")
            print(what, json.dumps(self.measured[what]), flush=True)
        return self.measured[what]


def measure(
    folder: Path,
    samples: int,
    into: Path,
    data: Path | None,
    device: str = "cpu",
    figures: tuple[Figure, ...] = FIGURES,
) -> dict[str, Any]:
    """Everything the card tells: figures, how far policies lie apart, perplexity (needs `data`/pg19).

    `data` is the folder of essays and books, as `data.root` of kvbench; without it essays come from kvbench's own
    default and there is no perplexity.
    """
    torch.set_num_threads(1)
    kept = Kept(into, folder, samples)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = model.eval().to(device)
    held_out = load_words(folder, None).held_out if (folder / "words.json").exists() else held_out_words(folder)

    def encode(text: str) -> list[int]:
        return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

    def figure(name: str, length: int, seed: int) -> dict[str, Any]:
        count = min(samples, FAR_SAMPLES) if length >= FAR else samples
        return _figure(model, tokenizer, held_out, _task(name, length, count, seed, data))

    results: dict[str, Any] = {"perplexity": None, "policies": kept.get("policies", lambda: policies(folder, samples))}
    if data:
        results["perplexity"] = kept.get("perplexity", lambda: perplexity(model, encode, held_back(data / "pg19")[1]))
    results["figures"] = [kept.get(" ".join(map(str, each)), lambda each=each: figure(*each)) for each in figures]
    return results


def held_out_words(folder: Path) -> frozenset[str]:
    """The words that the model of an exported folder never saw."""
    return frozenset(json.loads((folder / "held_out_words.json").read_text(encoding="utf-8")))


def _task(name: str, length: int, samples: int, seed: int, data: Path | None) -> Any:
    from kvbench.config.compose import combinations, resolved
    from kvbench.config.overrides import parse
    from kvbench.config.settings import build

    overrides = [f"task={name}", f"task.context_length={length}", f"task.samples={samples}", f"task.seed={seed}"]
    overrides += [f"data.root={data}"] if data else []
    (tree,) = combinations(parse(overrides))
    return build("task", resolved({key: tree[key] for key in ("seed", "data", "task")})["task"])


def _figure(model, tokenizer, held_out: frozenset[str], task: Any) -> dict[str, Any]:
    """Task, context length, seed, n, mean, interval, and how answers end."""
    scores, new_tokens, ended, unseen = [], [], [], []

    def count(text: str) -> int:
        return len(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)

    samples = task.generate(count, range(task.samples))
    while together := list(islice(samples, TOGETHER)):
        texts = [sample.prompt for sample in together]
        inputs = tokenizer(texts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt")
        ids, mask = inputs["input_ids"].to(model.device), inputs["attention_mask"].to(model.device)
        with torch.no_grad():
            out = model.generate(ids, attention_mask=mask, max_new_tokens=together[0].max_new_tokens, do_sample=False)
        for sample, tokens in zip(together, out[:, ids.shape[1] :].tolist(), strict=True):
            ended.append(tokenizer.eos_token_id in tokens)
            answer = tokens[: tokens.index(tokenizer.eos_token_id) + 1] if ended[-1] else tokens
            scores.append(task.score(tokenizer.decode(answer, skip_special_tokens=True), sample))
            new_tokens.append(len(answer))
            if any(_key_words(sample.question, held_out)):
                unseen.append(scores[-1])
    low, high = wilson(sum(scores), len(scores))
    return {
        "task": task.name,
        "version": task.version,
        "context_length": task.context_length,
        "seed": task.seed,
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
