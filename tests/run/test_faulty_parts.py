"""Units: a fault in a score, an allocation or a step fails the cells that have it, and names its code; no other row
changes.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.eviction.allocation.allocation import UniformLayers
from kvbench.eviction.budget import parse_budget
from kvbench.eviction.policy import Policy
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.score import ContextRepetition, Reduce, Score, ScoreInputs
from kvbench.eviction.step import Step
from kvbench.models.loading.load import LoadedModel
from kvbench.models.loading.spec import ModelSpec
from kvbench.records import Row
from kvbench.run.cell import Cell
from kvbench.run.eviction_method import EvictionMethod
from kvbench.run.plan import PrefillJob
from kvbench.run.prefill_job import run_prefill_job
from kvbench.run.rows import JobResult
from kvbench.support.errors import UserError
from tests.questions import Questions, answered

TASK = Questions()
SNAPKV = Policy("snapkv", window=8, recent=8)
HERE = str(Path(__file__).relative_to(Path.cwd())) if Path(__file__).is_relative_to(Path.cwd()) else __file__
CALLED: list[str] = []


@dataclass(frozen=True)
class Mine(Score):
    """Scores of attention that a function spoils."""

    name: str = "mine"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)
    spoilt: str = ""

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Any:
        CALLED.append(self.name)
        return SPOIL[self.spoilt](Attention()(layer, window, reduce), layer)


class Undeclared(Mine):
    """It reads a window that it has not asked for."""

    inputs: ClassVar[ScoreInputs] = ScoreInputs()

    def __call__(self, layer: LayerCache, window: Any, reduce: Reduce) -> Any:
        return window.queries.sum(dim=-1)


class Weighed(Mine):
    """Its factors are none."""

    def weigh(self, layer: LayerCache, recent: int) -> Any:
        return [][recent]


class ReadsHidden(Mine):
    """It fails while the prompt is read."""

    inputs: ClassVar[ScoreInputs] = ScoreInputs(hidden_states="block")

    def read_hidden(self, layer: LayerCache, hidden: Tensor) -> Any:
        return hidden.no_such_name  # type: ignore[attr-defined]


class RefusesHidden(ReadsHidden):
    """It has no gates for this model."""

    def read_hidden(self, layer: LayerCache, hidden: Tensor) -> Any:
        raise UserError("gates of another size")


def gradient(*_: Any, **__: Any) -> Any:
    """Record no repetition."""
    raise KeyError("pass")


class Repeats(Mine):
    """It fails in the repetition of the context."""

    inputs: ClassVar[ScoreInputs] = ScoreInputs(repeat=ContextRepetition(16, 0, "", "", True, by_gradient=gradient))


def add_in_place(scores: Tensor, layer: LayerCache) -> Tensor:
    layer.keys.zero_()
    return scores


def stop(error: BaseException, scores: Tensor, layer: LayerCache) -> Tensor:
    raise error


def refuse(scores: Tensor, layer: LayerCache) -> Tensor:
    raise ValueError("a line\nand another")


SPOIL: dict[str, Callable[[Tensor, LayerCache], Any]] = {
    "": lambda scores, _: scores,
    "int64": lambda scores, _: scores.long(),
    "None": lambda scores, _: None,
    "numpy": lambda scores, _: scores.numpy(),
    "device": lambda scores, _: scores.to("meta"),
    "shape": lambda scores, _: scores[:, 1:],
    "in place": add_in_place,
    "ValueError": refuse,
}


def line_of(code: Any, text: str = "def __call__") -> int:
    """The number of a line of this file."""
    lines, first = inspect.getsourcelines(code)
    return first + next(place for place, line in enumerate(lines) if text in line)


def cells_of(*scores: Score, policy: Policy = SNAPKV) -> tuple[Cell, ...]:
    """The full cache, and a score at two budgets each."""
    model = ModelSpec("reference")
    method = EvictionMethod(Policy("full", accepts=()), Attention(), parse_budget("1.0"), "full", None)
    full = Cell(model, TASK, method, Schedule("context"), 1)
    budgets = [parse_budget(text) for text in ("0.3", "0.6")]
    evicting = full.with_method(policy=policy, policy_label="snapkv")
    methods = [(score, budget) for score in scores for budget in budgets]
    return full, *(
        evicting.with_method(score=score, score_label=score.name, budget=budget) for score, budget in methods
    )


def made(model: LoadedModel, cells: Sequence[Cell]) -> JobResult:
    missing = {0: tuple(cells), 2: tuple(cells)}
    return run_prefill_job(model, PrefillJob(missing), answered(TASK, missing), "here")


def outcomes(rows: Sequence[Row]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row.cell, row.sample): row.outcome() for row in rows}


FAULTS = {
    "undeclared": (
        Undeclared(),
        line_of(Undeclared, "window.queries"),
        ": AttributeError: 'NoneType' object has no attribute 'queries'; a score that reads `window` declares "
        "inputs = ScoreInputs(window=True)",
    ),
    "int64": (Mine(spoilt="int64"), 0, "has dtype torch.int64, expected torch.float32"),
    "None": (Mine(spoilt="None"), 0, "is of type NoneType, expected a torch.Tensor"),
    "numpy": (Mine(spoilt="numpy"), 0, "is of type ndarray, expected a torch.Tensor"),
    "device": (Mine(spoilt="device"), 0, "is on device meta, expected cpu"),
    "shape": (Mine(spoilt="shape"), 0, "has shape ["),
    "in place": (Mine(spoilt="in place"), line_of(add_in_place, "zero_"), ": RuntimeError: Inplace update"),
    "ValueError": (Mine(spoilt="ValueError"), line_of(refuse, "raise"), ": ValueError: a line and another"),
    "weigh": (Weighed(), line_of(Weighed, "[][recent]"), ": IndexError: list index out of range"),
    "hidden states": (
        ReadsHidden(),
        line_of(ReadsHidden, "no_such_name"),
        ": AttributeError: 'Tensor' object has no attribute 'no_such_name'",
    ),
    "repetition": (Repeats(), line_of(gradient, "raise"), ": KeyError: 'pass'"),
}


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize(("score", "line", "says"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_score_fails_alone_and_is_named(
    load: Callable[..., LoadedModel], score: Score, line: int, says: str, batch: int
) -> None:
    model = load(max_batch=batch)
    full, *attn = cells_of(Attention())
    _, *faulty = cells_of(score)
    expected = made(model, [full, *attn])
    result = made(model, [full, *faulty, *attn])
    errors = {row.error for row in result.rows if row.score == "mine"}
    assert len([row for row in result.rows if row.score == "mine"]) == 4 and len(errors) == 1
    (error,) = errors
    named, place, rest = str(error).partition(f"({HERE}, line {line or line_of(Mine, 'class Mine') - 1})")
    assert named == "score mine " and place and says in rest and "\n" not in rest
    assert ("; traceback in errors/" in rest) == bool(line) == bool(result.traces)
    others = [row for row in result.rows if row.score != "mine"]
    assert outcomes(others) == outcomes(expected.rows) and all(row.error is None for row in others)


def test_a_score_that_refuses_what_it_reads_fails_alone_in_its_own_words(load: Callable[..., LoadedModel]) -> None:
    full, *faulty = cells_of(RefusesHidden())
    rows = made(load(), [full, *faulty]).rows
    assert {row.error for row in rows} == {None, "gates of another size"}
    assert {row.policy for row in rows if row.error is None} == {"full"}


@dataclass(frozen=True)
class Lavish(UniformLayers):
    """Its counts are none."""

    def counts(self, rankings: Any, heads: Any, budget: Any) -> Any:
        return rankings.no_such_name


@dataclass(frozen=True)
class Clumsy(Step):
    """It changes nothing that there is."""

    clumsiness: int = 1

    def change(self, before: Any, kept: Any, after: Any, window: Any, variant: Any) -> Any:
        return after.no_such_name


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (replace(SNAPKV, layers=Lavish()), f"allocation uniform ({HERE}, line {line_of(Lavish, 'no_such_name')}): "),
        (replace(SNAPKV, steps=(Clumsy(),)), f"step Clumsy ({HERE}, line {line_of(Clumsy, 'no_such_name')}): "),
    ],
    ids=["allocation", "step"],
)
def test_another_faulty_part_fails_alone_and_is_named(
    load: Callable[..., LoadedModel], policy: Policy, named: str
) -> None:
    model = load()
    full, *attn = cells_of(Attention())
    _, *faulty = cells_of(Attention("faulty"), policy=policy)
    expected = made(model, [full, *attn])
    result = made(model, [full, *faulty, *attn])
    by_score = {row.score: row.error for row in result.rows}
    assert (by_score["faulty"] or "").startswith(f"{named}AttributeError: ")
    assert outcomes([row for row in result.rows if row.score != "faulty"]) == outcomes(expected.rows)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), RuntimeError("CUDA out of memory. Tried")])
def test_memory_that_runs_out_in_a_score_is_no_fault_of_it(
    load: Callable[..., LoadedModel], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Smaller batches are tried, down to each cell alone."""
    monkeypatch.setitem(SPOIL, "raises", partial(stop, error))
    CALLED.clear()
    model = load(max_batch=16)
    result = made(model, cells_of(Mine(spoilt="raises"), Attention()))
    assert {row.error for row in result.rows if row.score == "mine"} == {f"out of memory: {error}"}
    assert len(CALLED) > 2 and model.engine.counters.oom_splits == 1
    assert all(row.error is None for row in result.rows if row.score != "mine")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_what_stops_a_run_passes_through_a_score(
    load: Callable[..., LoadedModel], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setitem(SPOIL, "raises", partial(stop, error))
    with pytest.raises(type(error)):
        made(load(), cells_of(Mine(spoilt="raises")))
