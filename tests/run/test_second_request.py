"""A protocol of two requests: the second is a prompt of its own, with the first answer, for the same cell."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import pytest

from kvbench.eviction.budget import parse_budget
from kvbench.eviction.policy import Policy
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.attn import Attention
from kvbench.models.loading.load import LoadedModel
from kvbench.models.loading.spec import ModelSpec
from kvbench.records import Row
from kvbench.run.cell import Cell
from kvbench.run.eviction_method import EvictionMethod
from kvbench.run.plan import PrefillJob
from kvbench.run.prefill_job import run_prefill_job
from kvbench.tasks.task import Sample, TokenCounter
from tests.questions import Questions, answered


@dataclass(frozen=True)
class Twice(Questions):
    """The second prompt repeats the first answer, and asks on."""

    second_words: int = 4

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample]:  # type: ignore[override]
        for sample in super().generate(count_tokens, indices):
            second = replace(sample, context="", question="So?" * self.second_words, max_new_tokens=4, drawn=5)
            yield replace(sample, second=second)

    def follow_up(self, sample: Sample, answer: str) -> Sample | None:
        context = f"blue sky {answer} again magic number hidden text " * 3
        return sample.second and replace(sample.second, context=context)


@pytest.fixture(scope="module")
def model(load: Callable[..., LoadedModel]) -> LoadedModel:
    return load()


def cells(task: Questions, evict_after: str = "context") -> tuple[Cell, ...]:
    schedule = Schedule(evict_after)  # type: ignore[arg-type]
    model = ModelSpec("reference")
    method = EvictionMethod(Policy("full", accepts=()), Attention(), parse_budget("1.0"), "full", None)
    full = Cell(model, task, method, schedule, 1)
    snapkv = Policy("snapkv", window=8, recent=8)
    return full, full.with_method(policy=snapkv, budget=parse_budget("0.4"), policy_label="snapkv")


def evicting(task: Questions, evict_after: str) -> tuple[Cell, ...]:
    """The same cells, and the last one evicting from its answers too."""
    *others, last = cells(task, evict_after)
    return *others, last, replace(last, schedule=Schedule(evict_after, decode_every=2))  # type: ignore[arg-type]


def rows_of(model: LoadedModel, samples: list[Sample], *used: Cell) -> list[Row]:
    return run_prefill_job(model, PrefillJob({sample.id: used for sample in samples}), samples, "here").rows


@pytest.mark.parametrize("evict_after", ["context", "prompt"])
def test_a_second_request_is_read_and_evicted_from_as_a_prompt_of_its_own(model: LoadedModel, evict_after: str) -> None:
    """Row by row what two runs say, the second with the first answer in its prompt; the cells differ in both."""
    (sample,) = answered(Twice(), [0])
    assert sample.second is not None
    both = rows_of(model, [sample], *evicting(Twice(), evict_after))
    firsts = rows_of(model, answered(Questions(), [0]), *evicting(Questions(), evict_after))
    for row, first, cell in zip(both, firsts, evicting(Questions(), evict_after), strict=True):
        assert first.prediction is not None and row.error is None
        follow_up = Twice().follow_up(sample, first.prediction)
        assert follow_up is not None
        (second,) = rows_of(model, [follow_up], cell)
        assert row.prediction == f"{first.prediction}\n\n{second.prediction}" and row.value == second.value
        assert (first.new_tokens, second.new_tokens, row.new_tokens) == (5, 4, 9)
        assert row.top2_margin == min(first.top2_margin or 0.0, second.top2_margin or 0.0)
        assert None not in (first.decode_evictions, second.decode_evictions)
        assert row.decode_evictions == first.decode_evictions + second.decode_evictions  # type: ignore[operator]
        same = ("prompt_sha256", "prompt_tokens", "kept_tokens", "kept_sha256", "cache_bytes")
        assert all(getattr(row, name) == getattr(first, name) for name in same)
    assert both[0].output_sha256 != both[1].output_sha256
    assert [bool(row.decode_evictions) for row in both] == [False, False, True]


def test_drawn_tokens_of_the_second_answer_have_numbers_of_their_own(model: LoadedModel) -> None:
    task = Twice(temperature=5.0, samples_per_prompt=2)
    many = rows_of(model, answered(task, [0, 1]), *cells(task))
    (alone,) = rows_of(model, answered(task, [1]), cells(task)[0])
    assert len({row.prediction for row in many}) == 4
    assert alone.outcome() in [row.outcome() for row in many]
    (sample,) = answered(task, [0])
    assert sample.second is not None
    drawn = [
        rows_of(model, [replace(sample.second, context="blue sky", drawn=before)], cells(task)[0])[0].prediction
        for before in (0, 5)
    ]
    assert drawn[0] != drawn[1]


def test_a_second_prompt_that_cannot_be_read_is_a_row_with_the_reason(model: LoadedModel) -> None:
    task = Twice(second_words=600)
    for row in rows_of(model, answered(task, [0]), *cells(task)):
        assert row.value is None and row.error is not None
        assert (
            "the model reads at most 508" in row.error
            and "(in the second request, after the first answer)" in row.error
        )
