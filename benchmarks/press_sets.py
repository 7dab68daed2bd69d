"""Kept sets of `score=kvpress` against kvpress' own, for every press with a score: tables of the extra's page.

    python benchmarks/press_sets.py [--python PYTHON_OF_KVPRESS] [--write]

Tiny random models, one prompt of 150 distinct tokens, three budgets. kvpress runs by its own hooks in an environment of
its own, that of benchmarks/sweep_ratios.py; this process imports it too and takes `score` alone. The version on both
sides should be the same: PYTHONPATH may name a folder with another one.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.ratios.presses import CASES, KEPT, stand_in
from kvbench.config.compose import combinations, resolved
from kvbench.config.overrides import parse
from kvbench.config.settings import build
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score
from kvbench.extras.kvpress.press import REFUSED, Press, imported
from kvbench.models import bridge
from kvbench.models.engine import Engine

ROOT = Path(__file__).resolve().parents[1]
SIDE = ROOT / "benchmarks" / "ratios" / "press_side.py"
TOKENS, VOCABULARY = 150, 400
PAGE = ROOT / "kvbench" / "extras" / "kvpress" / "kvpress.md"
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", {}),
    "Qwen3": ("qwen3", {"head_dim": 16}),
    "Phi-3": ("phi3", {}),
    "Gemma 3": (
        "gemma3_text",  # windows wider than the prompt: every layer can be evicted from
        {"head_dim": 16, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 1024},
    ),
}


def main() -> None:
    """Compare, print the table, and write it with --write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="of an environment with kvpress; by default it is made")
    parser.add_argument("--write", action="store_true", help="into kvbench/extras/kvpress/kvpress.md")
    options = parser.parse_args()
    if options.python is None:
        from benchmarks.sweep_ratios import environment

        options.python = environment()
    torch.set_num_threads(1)
    ids = random.Random(0).sample(range(3, VOCABULARY), TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "prompt.json").write_text(json.dumps(ids), "utf-8")
        models = {name: model_in(Path(folder) / name, *MODELS[name]) for name in MODELS}
        command = [str(options.python), str(SIDE), folder]
        theirs = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    stand_in(imported("kvpress"))
    lines = ["| press | " + " | ".join(MODELS) + " |", "| :-- |" + " :-- |" * len(MODELS)]
    for press, args in CASES.items():
        cells = []
        for name, model in models.items():
            try:
                kept = {n: theirs[f"{name} {press} {n}"] for n in KEPT}
                failed = next((each["error"] for each in kept.values() if "error" in each), None)
                cells.append(f"kvpress fails: {failed}" if failed else verdict(model, press, args, ids, kept))
            except ValueError as error:
                cells.append(f"kvbench fails: {error}")
            print(press, name, cells[-1], file=sys.stderr)
        lines.append(f"| `{press}` | " + " | ".join(cells) + " |")
    table = "\n".join(lines)
    print(table)
    if options.write:
        PAGE.write_text(
            with_part(with_part(PAGE.read_text("utf-8"), "kept sets", table), "refused", refused()), "utf-8"
        )


def with_part(page: str, name: str, text: str) -> str:
    """The page with another text between the two comments of a part."""
    before, _, rest = page.partition(f"<!-- {name} -->")
    return f"{before}<!-- {name} -->\n{text}\n<!-- end of {name} -->{rest.partition(f'<!-- end of {name} -->')[2]}"


def refused() -> str:
    """The presses that are no score, as a table."""
    return "\n".join(["| press | why |", "| :-- | :-- |", *(f"| `{name}` | {why} |" for name, why in REFUSED.items())])


def model_in(folder: Path, kind: str, changes: dict[str, Any]) -> Any:
    """A random model, also saved in a folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(SIZES | changes))).eval()
    for parameter in model.parameters():  # norms of ones would hide whether they are read
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    bridge.attach(model)
    return model


def verdict(model: Any, press: str, args: dict[str, Any], ids: list[int], theirs: dict[int, Any]) -> str:
    """What the table says of a press on a model: kvpress' kept sets are given by the pairs of a KV head."""
    differing, tied = zip(*(compared(model, press, args, n, ids, theirs[n]["kept"]) for n in KEPT), strict=True)
    words = "equal"
    if any(differing):
        words = f"{', '.join(map(str, differing))} pairs differ"
    elif any(tied):
        words = f"equal but for ties: {', '.join(map(str, tied))} pairs"
    if press == "PyramidKVPress":
        alike = [str(n) for n in KEPT if len({len(head) for layer in theirs[n]["kept"] for head in layer}) == 1]
        words += f"; layers alike at {', '.join(alike) or 'none'}"
    masked = all(sum(len(head) for layer in theirs[n]["kept"] for head in layer) < theirs[n]["held"] for n in KEPT)
    return words + "; masked, all pairs held" * masked


def compared(
    model: Any, press: str, args: dict[str, Any], pairs: int, ids: list[int], theirs: list[list[list[int]]]
) -> tuple[int, int]:
    """Pairs that are kept here and not there: of another score, and of an equal one."""
    budget = TokenBudget(pairs)
    policy, score = method(press, args)
    score = score.of_budget(budget)
    windows = {policy.rows(TOKENS)} if score.inputs.window else set()
    cache = Engine(model, max_length=1024).prefill(torch.tensor(ids), windows, [score]).cache
    eviction = Eviction(policy, score, budget)
    rankings = eviction.rank(cache)
    differing = tied = 0
    for ranking, mask, heads in zip(rankings, eviction.decide(cache, rankings).kept, theirs, strict=True):
        for head, kept in enumerate(heads):
            ours = set(mask[head].nonzero()[:, 0].tolist())
            if press == "PyramidKVPress":  # how many is the policy's: as many as kvpress keeps of this layer
                ours = set(ranking.order[head, : len(kept)].tolist())
            values = ranking.scores[head, sorted(ours ^ set(kept))].numpy()
            alone = len(ours - set(kept))
            spread = values.max(initial=-np.inf) - values.min(initial=np.inf)
            if len(ours) == len(kept) and spread <= 1e-5 * np.abs(values).max(initial=0):
                tied += alone
            else:
                differing += alone + (len(ours) < len(kept))
    return differing, tied


def method(press: str, args: dict[str, Any]) -> tuple[Policy, Score]:
    """The policy and score that stand for a press: `plain` and its score, but for two that are policies."""
    words = ["policy=plain"]
    if press == "AdaKVPress":
        words += ["policy.heads={kind:safeguard,alpha:0.2}"]
        press, args = args["press"]["press"], args["press"]["args"]
    if press == "ObservedAttentionPress":
        words += ["score=attn", "policy.window=all", "policy.reduce=observed_attention"]
    (tree,) = combinations(parse(words))
    tree = resolved(tree)
    score = build("score", tree["score"]) if "score=attn" in words else Press(press, args)
    return build("policy", tree["policy"]), score


if __name__ == "__main__":
    main()
