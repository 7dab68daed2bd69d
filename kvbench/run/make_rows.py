"""What was asked of a cell and a sample and what happened, written into a row."""

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
from kvbench.run.plan import Cell
from kvbench.tasks.sample import InvalidSample, Sample


@dataclass(frozen=True)
class Reading:
    """What was read before the cut, and how long that took."""

    prefilled: Prefilled
    seconds: float


@dataclass(frozen=True)
class Cut:
    """What eviction did for a cell, measured right after it; `seconds` are those of scoring and cutting.

    `kept_tokens` is None for a model without a layer that eviction could cut. `layers` are those that it could, with
    the length and the packed mask of each of their stored heads. `seconds` is None where cuts are a part of reading.
    """

    cell: Cell
    kept_tokens: float | None
    layers: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]
    masks: tuple[tuple[bytes, ...], ...]
    cache_bytes: int
    allocated_bytes: int
    seconds: float | None

    def kept_by(self, sample: Sample, num_tokens: int, detail: KeptDetail) -> KeptSets:
        """The kept sets of a row, after `num_tokens` tokens."""
        masks = self.masks if detail == "positions" else None
        return KeptSets(self.cell.id, sample.id, num_tokens, self.layers, self.lengths, masks)


@dataclass(frozen=True)
class Made:
    """The rows of a unit, what its prompts were, and of rows without an error the kept sets that were asked for and the
    curves of texts, and the timings of what was timed.
    """

    rows: list[Row]
    kept: list[KeptSets]
    curves: list[Curve] = field(default_factory=list)
    prompts: list[PromptRecord] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)

    @property
    def beside(self) -> dict[str, list[str]]:
        """Lines about the rows, by the folder they go to."""
        beside = {"kept": self.kept, "curves": self.curves, "prompts": self.prompts, "timings": self.timings}
        return {room: [one.to_json() for one in lines] for room, lines in beside.items()}

    def only(self, wanted: Collection[tuple[str, int]]) -> "Made":
        """What is about these (cell id, sample) pairs."""

        def chosen(some: list[Any]) -> list[Any]:
            return [one for one in some if (one.cell, one.sample) in wanted]

        rows, timings = chosen(self.rows), chosen(self.timings)
        return Made(rows, chosen(self.kept), chosen(self.curves), self.prompts, timings)


@dataclass(frozen=True)
class Answer:
    """What a cell said: the tokens, their text without what ended it, the bytes it decoded in, the seconds it took.

    error: why it could not go on, or None.
    """

    generation: Generation
    text: str
    peak_bytes: int
    seconds: float
    error: str | None = None


@dataclass(frozen=True)
class Scored:
    """What each token of a text cost, in nats, and what that took: `num_tokens` tokens read, bytes, seconds.

    full_bytes: of a cache that holds all that was read. peak_bytes: the most that was held between two tokens.
    """

    nll: Sequence[float]
    num_tokens: int
    local_layers: int
    full_bytes: int
    peak_bytes: int
    seconds: float


def answered(sample: Sample, prompt: Prompt, reading: Reading, cut: Cut, answer: Answer, environment: str) -> Row:
    """The row of an answer."""
    full, ids = reading.prefilled.cache, answer.generation.ids
    return Row(
        **_asked(cut.cell, sample),
        **_read(sample, prompt),
        kept_tokens=cut.kept_tokens,
        kept_fraction=None if cut.kept_tokens is None else cut.kept_tokens / full.num_tokens,
        local_layers=full.local_layers,
        cache_bytes=cut.cache_bytes,
        full_cache_bytes=reading.prefilled.full_bytes,
        allocated_bytes=cut.allocated_bytes,
        peak_bytes=answer.peak_bytes,
        store=cut.cell.store,
        prefill_seconds=reading.seconds,
        evict_seconds=cut.seconds,
        decode_seconds=answer.seconds,
        new_tokens=len(ids),
        prediction=answer.text,
        metric=cut.cell.task.metric,
        value=cut.cell.task.score(answer.text, sample),
        output_sha256=_hash_ids(ids),
        kept_sha256=hashlib.sha256(b"".join(chain(*cut.masks))).hexdigest(),
        top2_margin=answer.generation.top2_margin,
        environment=environment,
    )


def scored(sample: Sample, prompt: Prompt, cut: Cut, text: Scored, environment: str) -> Row:
    """The row of a text whose tokens were scored; what was kept is what was left at its end."""
    return Row(
        **_asked(cut.cell, sample),
        **_read(sample, prompt, text.num_tokens),
        kept_tokens=cut.kept_tokens,
        kept_fraction=None if cut.kept_tokens is None else cut.kept_tokens / text.num_tokens,
        local_layers=text.local_layers,
        cache_bytes=cut.cache_bytes,
        full_cache_bytes=text.full_bytes,
        allocated_bytes=cut.allocated_bytes,
        peak_bytes=text.peak_bytes,
        store="flat",
        decode_seconds=text.seconds,
        new_tokens=len(text.nll),
        metric=cut.cell.task.metric,
        value=math.fsum(text.nll) / len(text.nll),
        kept_sha256=hashlib.sha256(b"".join(chain(*cut.masks))).hexdigest(),
        environment=environment,
    )


def timed(
    sample: Sample, prompt: Prompt, cut: Cut, measured: Mapping[str, Any], ids: Sequence[int], environment: str
) -> Row:
    """The row of a repetition. `measured` has its columns of seconds and bytes, and the tokens `seen` by the cut."""
    columns = dict(measured)
    seen = columns.pop("seen")
    return Row(
        **_asked(cut.cell, sample),
        **_read(sample, prompt),
        **columns,
        kept_tokens=cut.kept_tokens,
        kept_fraction=None if cut.kept_tokens is None else cut.kept_tokens / seen,
        cache_bytes=cut.cache_bytes,
        allocated_bytes=cut.allocated_bytes,
        store=cut.cell.store,
        new_tokens=len(ids),
        metric=cut.cell.task.metric,
        output_sha256=_hash_ids(ids),
        kept_sha256=hashlib.sha256(b"".join(chain(*cut.masks))).hexdigest(),
        environment=environment,
    )


def failed(
    cell: Cell, sample: Sample | InvalidSample, error: str, environment: str, prompt: Prompt | None = None
) -> Row:
    """The row of a sample that a cell could not do."""
    happened = _read(sample, prompt) if prompt is not None and isinstance(sample, Sample) else {}
    return Row(**_asked(cell, sample), **happened, metric=cell.task.metric, error=error, environment=environment)


def _asked(cell: Cell, sample: Sample | InvalidSample) -> dict[str, Any]:
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


def _read(sample: Sample, prompt: Prompt, tokens: int | None = None) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt.tokens if tokens is None else tokens,
        "prompt_sha256": prompt.sha256,
        "context_sha256": hashlib.sha256(sample.context.encode()).hexdigest(),
    }


def _hash_ids(ids: Sequence[int]) -> str:
    return hashlib.sha256(np.array(ids, dtype="<i8").tobytes()).hexdigest()
