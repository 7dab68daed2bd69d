"""Where two sides of a benchmark answer otherwise: a near tie is told as one, anything else is a fault."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kvbench.eviction.schedule import Schedule
from tests.models.conftest import tiny_llama
from tests.pretended_gpu import PretendedGpu

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, BENCHMARKS / path)
    assert spec is not None and spec.loader is not None
    loaded = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
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


def test_a_gpu_runs_what_a_sweep_runs(tmp_path: Path) -> None:
    """The kernels of a run, one capture for all prompts of a size, and prompts together where a run has them so."""
    ours, setup = (module(f"ratios/{name}.py") for name in ("kvbench_side", "setup"))
    tiny_llama(vocab_size=120, max_position_embeddings=512).save_pretrained(tmp_path)
    request = setup.Request(
        str(tmp_path), "float32", "cuda", 1, setup.ids(150, 120, 1), setup.ids(4, 120, 2), 4, [("snapkv", 80)]
    )
    after_context = ours.cells_of(request)
    after_prompt = [replace(cell, schedule=Schedule("prompt")) for cell in after_context]
    with PretendedGpu(interpret=False) as gpu:
        model = ours.loaded(request)
        assert (model.engine.kernels, model.device["kernels"]) == ("triton", "triton")
        for cells in (after_context, after_prompt):
            assert ours.decodes_jointly(model, cells) == (cells is after_prompt)
            rows = ours.run_together(model, request, cells, 3)
            assert [(row.sample, row.new_tokens) for row in rows] == [(0, 4), (1, 4), (2, 4)]
            captures, gpu.captures = gpu.captures, 0
            assert captures == 1
    assert not gpu.mixed
