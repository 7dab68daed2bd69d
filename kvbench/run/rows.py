"""What a prefill job produces: the results of eviction and decoding, and the rows made from them."""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from kvbench.models.engine import Generation, Prefilled
from kvbench.models.prompts.prompt import Prompt
from kvbench.records import Curve, KeptDetail, KeptSets, PromptRecord, Row, Timing
from kvbench.run.plan import Cell, PrefillJob
from kvbench.tasks.task import InvalidSample, Sample


@dataclass(frozen=True)
class TimedPrefill:
    """The prefill of a context, and the seconds it took."""

    prefilled: Prefilled
    seconds: float


@dataclass(frozen=True)
class EvictionResult:
    """What eviction kept for a cell, measured right after it.

    kept_tokens: mean over heads and layers; None for a model without a layer that could be evicted from. layers: the
    layers that could be, with the lengths and packed masks of their cache heads. seconds: of scoring and eviction; None
    if they are a part of the prefill.
    """

    cell: Cell
    kept_tokens: float | None
    layers: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]
    masks: tuple[tuple[bytes, ...], ...]
    cache_bytes: int
    allocated_bytes: int
    seconds: float | None

    def kept_sets(self, sample: Sample, num_tokens: int, detail: KeptDetail) -> KeptSets:
        """The kept sets of a row, for a context of `num_tokens` tokens."""
        masks = self.masks if detail == "positions" else None
        return KeptSets(self.cell.id, sample.id, num_tokens, self.layers, self.lengths, masks)

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of a row that depend on the eviction alone."""
        return {
            "kept_tokens": self.kept_tokens,
            "cache_bytes": self.cache_bytes,
            "allocated_bytes": self.allocated_bytes,
            "store": self.cell.store,
            "metric": self.cell.task.metric,
            "kept_sha256": hashlib.sha256(b"".join(chain(*self.masks))).hexdigest(),
        }


@dataclass(frozen=True)
class Answer:
    """What a cell answered.

    text: without the token that ended it. peak_bytes: of the cache while decoding. seconds: of decoding.
    """

    generation: Generation
    text: str
    peak_bytes: int
    seconds: float


@dataclass(frozen=True)
class ScoredText:
    """The negative log-likelihood of each token of a text, in nats.

    num_tokens: tokens read. full_bytes: of a cache that holds all of them. peak_bytes: the most held between tokens.
    """

    nll: Sequence[float]
    num_tokens: int
    local_layers: int
    full_bytes: int
    peak_bytes: int
    seconds: float


@dataclass
class JobResult:
    """The rows of a prefill job and their sidecar lines: kept sets, curves, prompts and timings."""

    rows: list[Row] = field(default_factory=list)
    kept: list[KeptSets] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    prompts: list[PromptRecord] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)

    @property
    def sidecars(self) -> dict[str, list[str]]:
        """Lines about the rows, by the folder that they go to."""
        lines = {"kept": self.kept, "curves": self.curves, "prompts": self.prompts, "timings": self.timings}
        return {folder: [line.to_json() for line in content] for folder, content in lines.items()}

    def only(self, wanted: Collection[tuple[str, int]]) -> "JobResult":
        """The part about these (cell id, sample) pairs."""

        def chosen(lines: list[Any]) -> list[Any]:
            return [line for line in lines if (line.cell, line.sample) in wanted]

        return JobResult(chosen(self.rows), chosen(self.kept), chosen(self.curves), self.prompts, chosen(self.timings))

    def sort(self, job: PrefillJob) -> None:
        """Sort rows by sample and cell, in the order of the job."""
        keys = ((sample, cell.id) for sample, cells in job.missing.items() for cell in cells)
        order = {key: place for place, key in enumerate(keys)}
        self.rows.sort(key=lambda row: order[row.sample, row.cell])

    def add(self, other: "JobResult") -> None:
        """Add all rows and lines of another result."""
        for name in ("rows", "kept", "curves", "prompts", "timings"):
            getattr(self, name).extend(getattr(other, name))


def answer_row(
    sample: Sample,
    prompt: Prompt,
    prefill: TimedPrefill,
    eviction: EvictionResult,
    answer: Answer,
    environment: str,
) -> Row:
    """The row of an answer."""
    cache, ids, task = prefill.prefilled.cache, answer.generation.ids, eviction.cell.task
    return Row(
        **_cell_columns(eviction.cell, sample),
        **_prompt_columns(sample, prompt),
        **eviction.columns,
        kept_fraction=None if eviction.kept_tokens is None else eviction.kept_tokens / cache.num_tokens,
        local_layers=cache.local_layers,
        full_cache_bytes=prefill.prefilled.full_bytes,
        peak_bytes=answer.peak_bytes,
        prefill_seconds=prefill.seconds,
        evict_seconds=eviction.seconds,
        decode_seconds=answer.seconds,
        new_tokens=len(ids),
        prediction=answer.text,
        value=task.score(answer.text, sample),
        output_sha256=_hash_ids(ids),
        top2_margin=answer.generation.top2_margin,
        environment=environment,
    )


def text_row(sample: Sample, prompt: Prompt, eviction: EvictionResult, text: ScoredText, environment: str) -> Row:
    """The row of a text whose tokens were scored; `eviction` is what was kept at its end."""
    return Row(
        **_cell_columns(eviction.cell, sample),
        **_prompt_columns(sample, prompt) | {"prompt_tokens": text.num_tokens},
        **eviction.columns,
        kept_fraction=None if eviction.kept_tokens is None else eviction.kept_tokens / text.num_tokens,
        local_layers=text.local_layers,
        full_cache_bytes=text.full_bytes,
        peak_bytes=text.peak_bytes,
        decode_seconds=text.seconds,
        new_tokens=len(text.nll),
        value=math.fsum(text.nll) / len(text.nll),
        environment=environment,
    )


def timing_row(
    sample: Sample,
    prompt: Prompt,
    eviction: EvictionResult,
    measured: Mapping[str, Any],
    ids: Sequence[int],
    environment: str,
) -> Row:
    """The row of a repetition. `measured` has its columns of seconds and bytes."""
    return Row(
        **_cell_columns(eviction.cell, sample),
        **_prompt_columns(sample, prompt),
        **eviction.columns,
        **measured,
        new_tokens=len(ids),
        output_sha256=_hash_ids(ids),
        environment=environment,
    )


def error_row(
    cell: Cell, sample: Sample | InvalidSample, error: str, environment: str, prompt: Prompt | None = None
) -> Row:
    """The row of a sample that a cell could not do."""
    prompted = _prompt_columns(sample, prompt) if prompt is not None and isinstance(sample, Sample) else {}
    return Row(**_cell_columns(cell, sample), **prompted, metric=cell.task.metric, error=error, environment=environment)


def _cell_columns(cell: Cell, sample: Sample | InvalidSample) -> dict[str, Any]:
    return {
        "cell": cell.id,
        "sample": sample.id,
        "question_number": sample.question_number,
        "model": cell.model.label,
        "task": cell.task.name,
        "task_version": cell.task.version,
        "context_length": cell.task.context_length,
        "policy": cell.policy_label,
        "score": cell.score_label,
        "budget": str(cell.budget),
        "variant": cell.policy.variant,
        "layout": cell.policy.layout,
        "schedule": str(cell.schedule),
        "seed": cell.seed,
    }


def _prompt_columns(sample: Sample, prompt: Prompt) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt.tokens,
        "prompt_sha256": prompt.sha256,
        "context_sha256": hashlib.sha256(sample.context.encode()).hexdigest(),
    }


def _hash_ids(ids: Sequence[int]) -> str:
    return hashlib.sha256(np.array(ids, dtype="<i8").tobytes()).hexdigest()
