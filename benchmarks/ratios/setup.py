"""What both sides of a comparison are given: a model folder, prompts as token ids, and cells as plain words.

Written once as a folder and read by processes of two environments, so this file knows neither kvbench nor kvpress.
"""

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

POLICIES = ("snapkv", "tova", "key_norm", "key_diff", "streaming_llm", "ada_snapkv")
KEEP = (0.5, 0.3, 0.2, 0.1)

LLAMA = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 8192,
    "max_position_embeddings": 16384,
    "initializer_range": 0.06,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
"""A Llama of 30 million parameters whose wide initialisation makes attention peaky."""


@dataclass(frozen=True)
class Request:
    """One comparison. `cells` are (policy, pairs a KV head); (full, None) evicts nothing."""

    folder: str
    dtype: str
    device: str
    threads: int
    context: list[int]
    question: list[int]
    new: int
    cells: list[tuple[str, int | None]]


def grid(tokens: int, budgets: int = len(KEEP)) -> list[tuple[str, int | None]]:
    """Six policies at the first of four budgets, rounded as kvpress does."""
    return [(policy, int(tokens * keep)) for policy in POLICIES for keep in KEEP[:budgets]]


def write(request: Request, path: Path) -> None:
    """As one JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(request)), "utf-8")


def read(path: str) -> Request:
    """What `write` wrote."""
    data: dict[str, Any] = json.loads(Path(path).read_text("utf-8"))
    return Request(**{**data, "cells": [tuple(cell) for cell in data["cells"]]})


def ids(tokens: int, vocabulary: int, seed: int) -> list[int]:
    """Random token ids."""
    draw = random.Random(seed)
    return [draw.randrange(vocabulary) for _ in range(tokens)]
