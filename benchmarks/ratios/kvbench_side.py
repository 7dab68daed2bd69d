"""kvbench's side of a comparison: all cells of a prompt as one unit, from text to rows.

    python benchmarks/ratios/kvbench_side.py ASKED.json [--repeat N] [--alone] [--prompt] [--prompts N]
        [--profile]

Prints one JSON object: seconds by the wall and of the process for each repeat, answers and kept pairs, and what of the
process' seconds reading and scoring take. `--alone` gives every cell a prefill of its own, `--prompt` cuts after the
question. With `--prompts` it answers so many prompts, decoded together where a run does that (`together`); the first is
the one that is asked.
"""

import argparse
import json
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from kvbench.eviction.allocation.heads import SafeguardHeads
from kvbench.eviction.budget import TokenBudget, parse_budget
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.keys import KeyDiff, KeyNorm
from kvbench.eviction.scores.recency import Recency
from kvbench.eviction.scores.score import Score
from kvbench.models.loading.load import LoadedModel, ModelInfo, choose_device, load, read_config
from kvbench.models.loading.spec import Dtype, ModelSpec
from kvbench.models.prompts.prompt import Prompt
from kvbench.records import Row
from kvbench.run.cell import Cell
from kvbench.run.evict_cell import SharedPrefill, eviction_of, rankings_of
from kvbench.run.eviction_method import EvictionMethod
from kvbench.run.joint_batch import JointBatch, decodes_jointly
from kvbench.run.plan import PrefillJob
from kvbench.run.prefill_job import run_prefill_job
from kvbench.tasks.task import Sample, Task

sys.path.insert(0, str(Path(__file__).parent))
from setup import Request, read

TILE = 24
"""`model.max_batch`: all cells of a sweep decode together."""

SNAPKV = Policy("snapkv", window=64, reduce="mean", pool=Pool("avg", 5), order=("pool", "group"), recent=64)
HOSTS: dict[str, tuple[Policy, Score]] = {
    "snapkv": (SNAPKV, Attention()),
    "tova": (Policy("tova", window=1, recent=1, group="layer_mean"), Attention()),
    "key_norm": (Policy("plain"), KeyNorm()),
    "key_diff": (Policy("plain"), KeyDiff()),
    "streaming_llm": (Policy("streaming_llm", window=1, sink=4, state="none", accepts=("budget",)), Recency()),
    "ada_snapkv": (replace(SNAPKV, name="ada_snapkv", heads=SafeguardHeads(alpha=0.2)), Attention()),
    "full": (Policy("full", accepts=()), Attention()),
}
"""Policies as kvpress defines them by default."""


class Numbers:
    """A tokenizer whose texts are token ids in words."""

    chat_template = bos_token = bos_token_id = None

    def __call__(self, text: str | list[str], add_special_tokens: bool = True) -> Any:
        if isinstance(text, list):
            return SimpleNamespace(input_ids=[self(each).input_ids for each in text])
        return SimpleNamespace(input_ids=[int(word) if word.isdigit() else 0 for word in text.split()])

    def decode(self, ids: Collection[int], skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, ids))


@dataclass(frozen=True)
class Reading(Task):
    """One prompt of given tokens."""

    name: str = "ids"
    version: str = "1"
    metric: str = "length"
    context_length: int | None = None
    samples: int = 1
    seed: int = 0
    max_new_tokens: int = 32

    def generate(self, count_tokens: Any, indices: Collection[int]) -> Iterator[Sample]:
        raise NotImplementedError("the benchmark has the sample")

    def score(self, prediction: str, sample: Sample) -> float:
        return 1.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("request")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--prompt", action="store_true")
    parser.add_argument("--prompts", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    request = read(options.request)
    model = loaded(request)
    schedule = Schedule("prompt" if options.prompt else "context")
    cells = [replace(cell, schedule=schedule) for cell in cells_of(request)]
    units = [[cell] for cell in cells] if options.alone else [cells]

    def go() -> list[Row]:
        if options.prompts > 1:
            return run_together(model, request, cells, options.prompts)
        return [row for unit in units for row in run(model, request, unit)]

    _ = go() if model.engine.gpus else run(model, request, [cells[0]])  # warm: kernels, allocator, a captured step
    measured: dict[str, Any] = {"wall": [], "cpu": [], "device": model.device["name"]}
    measured |= {"kernels": model.engine.kernels, "together": options.prompts > 1 and decodes_jointly(model, cells)}
    for _ in range(options.repeat):
        wall, cpu = time.perf_counter(), time.process_time()
        rows = go()
        measured["wall"].append(time.perf_counter() - wall)
        measured["cpu"].append(time.process_time() - cpu)
        measured["answers"] = [[int(word) for word in (row.prediction or "").split()] for row in rows]
        measured["kept"] = [row.kept_tokens for row in rows]
    measured["prefill_cpu"], measured["score_cpu"] = scoring(model, request, cells)
    if options.profile:
        profile(lambda: run(model, request, cells))
    print(json.dumps(measured))


def run(model: LoadedModel, request: Request, cells: list[Cell]) -> list[Row]:
    """The rows of cells that share a prefill."""
    return without_errors(run_prefill_job(model, PrefillJob({0: tuple(cells)}), [sample_of(request, 0)], "here").rows)


def run_together(model: LoadedModel, request: Request, cells: list[Cell], prompts: int) -> list[Row]:
    """The rows of several prompts, decoded as one batch where `kvbench run` does that."""
    jobs = [PrefillJob({number: tuple(cells)}, number) for number in range(prompts)]
    if not decodes_jointly(model, cells):
        return without_errors(
            [row for job in jobs for row in run_prefill_job(model, job, [sample_of(request, job.key)], "here").rows]
        )
    assert prompts * len(cells) <= TILE, "not decoded together"
    joint = JointBatch(model, "here")
    for job in jobs:
        joint.add(job, sample_of(request, job.key))
    results = joint.finish()
    return without_errors([row for job in jobs for row in results[job.key].rows])


def sample_of(request: Request, number: int) -> Sample:
    """The prompt that was asked for, its context rotated by `number` tokens."""
    context = request.context[number:] + request.context[:number]
    text, question = (" ".join(map(str, part)) + " " for part in (context, request.question))
    return Sample(number, "ids", text, question, "", ("",), request.new)


def without_errors(rows: list[Row]) -> list[Row]:
    """The same rows; ends the process if one has an error."""
    for row in rows:
        if row.error is not None:
            sys.exit(f"{row.policy} {row.budget}: {row.error}")
    return rows


def scoring(model: LoadedModel, request: Request, cells: list[Cell]) -> tuple[float, float]:
    """Seconds of the process that reading the context and ranking it for all cells take."""
    start, tokens = time.process_time(), len(request.context)
    windows = {cell.policy.rows(tokens) for cell in cells if cell.score.inputs.window}
    prefilled = model.engine.prefill(torch.tensor(request.context), windows)
    model.engine.sync()
    middle = time.process_time()
    shared = SharedPrefill(prefilled.cache, Prompt(tuple(request.context), (), ""), cells)
    for cell in cells:
        eviction = eviction_of(cell, shared.prompt)
        if not eviction.keeps_all(prefilled.cache):
            rankings_of(model, shared, eviction, prefilled.cache)
    model.engine.sync()
    return middle - start, time.process_time() - middle


def cells_of(request: Request) -> list[Cell]:
    """The cells in the order that they were asked for."""
    task, schedule, cells = Reading(max_new_tokens=request.new), Schedule("context"), []
    for name, pairs in request.cells:
        policy, score = HOSTS[name]
        budget = parse_budget("1.0") if pairs is None else TokenBudget(pairs)
        cells.append(Cell(ModelSpec("reference"), task, EvictionMethod(policy, score, budget, name, None), schedule, 0))
    return cells


def loaded(request: Request) -> LoadedModel:
    """The folder's model as `kvbench run` loads it, whose answers no token ends."""
    spec = ModelSpec(
        "hf", request.folder, dtype=cast("Dtype", request.dtype), chat="never", threads=request.threads,
        max_batch=TILE, device=request.device,
    )  # fmt: skip
    folder = Path(request.folder)
    model = load(ModelInfo(spec, folder, read_config(folder), Numbers(), choose_device(spec)))
    return replace(model, stop=frozenset())


def profile(call: Any) -> None:
    """Where the time of one call goes, on stderr."""
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    profiler.runcall(call)
    pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
