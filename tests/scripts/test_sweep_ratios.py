"""Where two sides of a benchmark answer otherwise: a near tie is told as one, anything else is a fault."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.models.conftest import tiny_llama

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, BENCHMARKS / path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def sweep_ratios() -> ModuleType:
    return module("sweep_ratios.py")


@torch.inference_mode()
def test_answers_part_where_the_first_token_differs() -> None:
    model: Any = tiny_llama()
    parting = module("ratios/generate_side.py").parting
    assert parting(model, [5, 6, 7], [1, 2, 3], [1, 2, 3]) is None
    found = parting(model, [5, 6, 7], [1, 2, 3], [1, 4, 9])
    logits = model(torch.tensor([[5, 6, 7, 1]])).logits[0, -1]
    assert (found["place"], found["tokens"]) == (1, [2, 4])
    assert [*found["logits"], found["size"]] == pytest.approx([*logits[[2, 4]].tolist(), float(logits.abs().max())])


def test_a_near_tie_is_told_as_one(sweep_ratios: ModuleType) -> None:
    parting = {"place": 3, "tokens": [17, 40], "logits": [9.0, 8.9999], "size": 10.0}
    words, tied = sweep_ratios.parted(parting, "float32")
    assert tied and "new token 3: kvbench chooses 40, transformers' generate 17" in words
    assert words.endswith("its logits are 8.9999 and 9, apart by 1.0e-05 of the largest: a near tie")
    words, tied = sweep_ratios.parted(parting | {"logits": [9.0, 8.9]}, "float32")
    assert not tied and words.endswith("apart by 1.0e-02 of the largest: no tie, a fault of one side")
    assert sweep_ratios.parted(parting | {"logits": [9.0, 8.9]}, "bfloat16")[1]
    assert not sweep_ratios.parted(None, "float32")[1]


def test_a_ratio_below_its_bound_is_named(sweep_ratios: ModuleType) -> None:
    parts = {name: {"cpu": {"ratio": ratio}} for name, ratio in (("full", 1.15), ("generate", 5.0))}
    assert sweep_ratios.too_slow({"lengths": {"768": parts}}, (0.7, 5.0)) == []
    (line,) = sweep_ratios.too_slow({"lengths": {"768": parts}}, (0.7, 6))
    assert line == "768 tokens, all cells, generate once per cell: 5.00 times as fast, less than 6"
