"""`make gpu-check` without a GPU: it runs where nothing but torch, triton, transformers and numpy can be imported."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_check import decoding
from benchmarks.gpu_check.checks import Check
from benchmarks.gpu_check.results import record
from kvbench.cache.kv_cache import LayerCache, ObservationWindow, from_dense
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.ranking import Ranking

BLOCKED = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"blocked: {{name}}", name=name)
sys.meta_path.insert(0, Missing())
import importlib.util
found = importlib.util.find_spec
def find_spec(name, package=None):
    try:
        return found(name, package)
    except ModuleNotFoundError:
        return None
importlib.util.find_spec = find_spec
import runpy
sys.argv = ["gpu_check", *{arguments!r}]
runpy.run_module("benchmarks.gpu_check", run_name="__main__")
"""
ROOT = Path(__file__).parents[3]
DEPENDENCIES = [
    *("accelerate", "beartype", "hydra", "jaxtyping", "jinja2", "matplotlib", "omegaconf", "pandas"),
    *("pyarrow", "pydantic", "rich", "scipy", "submitit", "wonderwords"),
]


def gpu_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "OUT")}
    code = BLOCKED.format(blocked=DEPENDENCIES, arguments=arguments)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400
    )


@pytest.mark.slow
def test_it_needs_nothing_but_torch_triton_transformers_and_numpy(tmp_path: Path) -> None:
    done = gpu_check("--interpret", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (tmp_path / "interpreter" / "gpu_check.jsonl").read_text("utf-8").splitlines()
    head, *results = map(json.loads, lines)
    comparisons = [result for result in results if "allowed" in result and result["skipped"] is None]
    assert len(comparisons) >= 25 and all(check["error"] <= check["allowed"] for check in comparisons)
    assert head["device"] == "interpreter" and head["versions"]["jaxtyping"] == "stand-in"
    for part in ("column sums", "ragged decode triton", "prefill", "decoding, sums", "a model's logits"):
        assert any(check["name"].startswith(part) for check in comparisons), part
    report = (tmp_path / "interpreter" / "gpu_check.md").read_text("utf-8")
    assert report in done.stdout and "the times below mean nothing" in report
    assert {result["unit"] for result in results if "unit" in result} == {"x", "GB/s", "TFLOP/s"}
    printed = done.stdout.partition("# Kernels on")[0].splitlines()
    assert all(result["name"] in line for result, line in zip(results, printed, strict=True))


def test_a_run_that_is_stopped_has_written_what_it_had(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for error in (0.5, 2.0):
            check = record(Check(f"error {error}", error, 1.0), file)
            assert json.loads(path.read_text("utf-8").splitlines()[-1])["error"] == check.error == error


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_how_to_run() -> None:
    done = gpu_check()
    assert done.returncode == 2 and "run with --interpret" in done.stderr


def test_a_number_that_is_none_is_wrong() -> None:
    assert not Check("x", float("nan"), 1.0).passed and not Check("x", 2.0, 1.0).passed
    assert Check("x", 1.0, 1.0).passed and Check("x", skipped="no package").passed


NEAR, FAR = 1e-6, 1e-2
"""Relative gaps between two scores: rounding of float32, and more than that."""


@pytest.mark.parametrize(("gap", "explained"), [(NEAR, True), (FAR, False)])
@pytest.mark.parametrize("by_score", [False, True])
def test_a_near_tie_is_told_from_a_fault(gap: float, explained: bool, by_score: bool) -> None:
    """Two neighbours in rank change places: one is evicted for the other, or they lie in each other's slots."""
    policy = decoding.BY_SCORE if by_score else decoding.H2O
    scores = torch.tensor([[0.9, 0.5, 0.5 * (1 - gap), 0.1]], dtype=torch.float64)
    before = from_dense(0, 1, torch.zeros(1, 6, 2), torch.zeros(1, 6, 2))  # two newest pairs are protected
    ranking = Ranking(scores, scores, first=0)

    def judged(*positions: int) -> bool:
        kept = torch.tensor(positions)
        after = replace(before.select(torch.isin(torch.arange(6), kept)[None], (len(kept),)), positions=kept.int())
        return decoding._explained(policy, before, ranking, after, torch.float32)

    assert judged(0, 1, 4, 5)
    assert judged(*((0, 2, 1, 4, 5) if by_score else (0, 2, 4, 5))) == explained
    assert not judged(1, 3, 4, 5) and not judged(0, 1, 4), "a fault: the best or a protected pair is gone"


@pytest.mark.parametrize(("gap", "ties", "wrong"), [(NEAR, 1, 0), (FAR, 0, 1)])
def test_near_ties_of_decoding_are_no_faults(
    monkeypatch: pytest.MonkeyPatch, gap: float, ties: int, wrong: int
) -> None:
    """Scores that rise on one side and fall on the other: by rounding of float32, and by more than that."""
    ranked = IncrementalEviction.rank

    def planted(
        self: IncrementalEviction, layer: LayerCache, window: ObservationWindow | None, finite: list[torch.Tensor]
    ) -> tuple[LayerCache, Ranking]:
        layer, ranking = ranked(self, layer, window, finite)
        rises = torch.arange(ranking.scores.shape[-1], dtype=ranking.scores.dtype)
        sign = -1 if window is not None and window.kernels == "triton" else 1
        return layer, ranking.mapped(lambda scores: (1 + sign * gap * rises).expand_as(scores))

    arrays = decoding._drawn(1, 18, 0, 16, torch.float32, torch.device("cpu"))
    pairs = [(decoding.TOVA, decoding.Attention())]
    assert decoding.compared(pairs, 18, arrays).wrong == 0
    monkeypatch.setattr(IncrementalEviction, "rank", planted)
    found = decoding.compared(pairs, 18, arrays)
    assert (found.ties, found.wrong) == (ties, wrong)
