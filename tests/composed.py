"""Configurations as kvbench composes them, of words as on a command line."""

from functools import cache
from pathlib import Path
from typing import Any

from kvbench.config.compose import combinations, resolved
from kvbench.config.overrides import parse
from tests import presses

TABLE = Path(__file__).parent / "golden" / "tables" / "mine.csv"
"""Rows of `task=hub`."""
HEADS = Path(__file__).parent / "golden" / "heads" / "full_attention_heads.tsv"


@cache
def composed(*words: str) -> dict[str, Any]:
    """The resolved configuration of a command line, its policy as the policy's file is."""
    (tree,) = combinations(parse(["protocol=paper", *words]))
    return resolved(tree)


def needed(group: str, name: str) -> list[str]:
    """What a file leaves to the command line."""
    if group == "model":
        path = ["model.path=somewhere"] if name in ("hf", "indexed", "endpoint") else []
        path += ["endpoint.url=http://127.0.0.1:8000/v1", "endpoint.method=full"] if name == "endpoint" else []
        return [*path, "task.context_length=4096"]
    return {
        ("score", "head_table"): [f"score.path={HEADS}"],
        ("score", "kvpress"): [f"score.press={presses.__name__}.Norms", "score.reads=cache"],
        ("policy", "duo_attention"): [f"score.path={HEADS}"],
        ("score", "kvzap"): [f"score.gates={HEADS.with_name('kvzap.safetensors')}"],
        ("score", "fastkvzip"): [f"score.gates={HEADS.with_name('fastkvzip.safetensors')}"],
        ("score", "triattention"): [f"score.statistics={HEADS.with_name('queries.safetensors')}"],
        ("policy", "triattention"): [f"score.statistics={HEADS.with_name('queries.safetensors')}"],
        ("policy", "lukv"): [f"policy.layers.path={HEADS.with_name('budgets.npy')}"],
        ("task", "jsonl"): ["task.path=mine.jsonl"],
        ("task", "trajectories/calls"): ["task.path=mine.jsonl"],
        ("task", "trajectories/likelihood"): ["task.path=mine.jsonl"],
        ("task", "hub"): [f"task.path={TABLE}"],
    }.get((group, name), [])
