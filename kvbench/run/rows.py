"""Products of a prefill job: the results of eviction and decoding, and the rows made from them."""

import hashlib
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvbench.models.loading.spec import quantization
from kvbench.models.prompts.prompt import Prompt
from kvbench.records.folder import failure_path
from kvbench.records.row import CUT, WHOLE, Row
from kvbench.records.sidecars import Curve, KeptDetail, KeptSets, PromptRecord, Timing
from kvbench.run.cell import Cell
from kvbench.run.plan import PrefillJob
from kvbench.support.errors import Fault
from kvbench.tasks.task import Ending, Final, InvalidSample, Sample

if TYPE_CHECKING:
    from kvbench.models.engine import Prefilled


@dataclass(frozen=True)
class PrefillFacts:
    """Facts about a prefill for its rows, without its cache: the tokens read, and columns."""

    num_tokens: int
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class TimedPrefill:
    """The prefill of a context, and its seconds. chunk: tokens of a pass, `all` for a single pass; None: as usual."""

    prefilled: "Prefilled"
    seconds: float
    chunk: int | str | None = None

    @property
    def facts(self) -> PrefillFacts:
        """Facts about it for the rows of its prompts."""
        cache, held = self.prefilled.cache, self.prefilled.full_bytes
        return PrefillFacts(
            cache.num_tokens, cache.exempt | {"full_cache_bytes": held, "prefill_seconds": self.seconds}
        )


@dataclass(frozen=True)
class EvictionResult:
    """Kept set of a cell, measured right after its eviction.

    kept_tokens: KV pairs kept, the mean over cache heads and layers; None without a layer that could be evicted from.
    layers: the numbers of the layers that could be. lengths: [layers][cache heads] KV pairs kept. masks: [layers][cache
    heads] which tokens are kept, one bit each (`numpy.packbits`). seconds: of scoring and eviction; None if they are a
    part of the prefill.
    """

    cell: Cell
    kept_tokens: float | None
    layers: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]
    masks: tuple[tuple[bytes, ...], ...]
    cache_bytes: int
    allocated_bytes: int
    seconds: float | None


class RowError(NamedTuple):
    """Why there is no answer: the `error` of rows, and the traceback that it names unless the message was written for
    the user.
    """

    error: str
    trace: str | None = None

    @classmethod
    def of(cls, error: Exception) -> "RowError":
        """Return the failure that an exception of a cell is."""
        is_written = isinstance(error, ValueError) and not (isinstance(error, Fault) and error.__cause__)
        return cls(str(error)) if is_written else cls.traced(error)

    @classmethod
    def traced(cls, error: Exception) -> "RowError":
        """Return the failure with the traceback of an exception."""
        trace = "".join(traceback.format_exception(error))
        kind = "" if isinstance(error, Fault) else f"{type(error).__name__}: "
        return cls(f"{kind}{error}; traceback in {failure_path(trace)}", trace)


@dataclass
class JobResult:
    """Collects the rows of a prefill job and their sidecar lines: kept sets, curves, prompts and timings.

    environment: the id that rows name. chunk: see `TimedPrefill`. token_texts: the texts of a prompt's tokens, by the
    prompt's hash, if positions are recorded. stepped: how a GPU launched the steps of cells, by cell. traces: the
    tracebacks that rows name.
    """

    job: PrefillJob
    environment: str
    detail: KeptDetail = "none"
    rows: list[Row] = field(default_factory=list)
    kept: list[KeptSets] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    prompts: list[PromptRecord] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    chunk: int | str | None = None
    token_texts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stepped: dict[str, str] = field(default_factory=dict)
    traces: set[str] = field(default_factory=set)

    @property
    def sidecars(self) -> dict[str, list[str]]:
        """Lines about the rows, by the folder that they go to."""
        lines = {"kept": self.kept, "curves": self.curves, "prompts": self.prompts, "timings": self.timings}
        return {folder: [line.to_json() for line in content] for folder, content in lines.items()}

    def part(self) -> "JobResult":
        """Return an empty result of the same job."""
        return JobResult(self.job, self.environment, self.detail)

    def record(
        self, sample: Sample, prompt: Prompt, eviction: EvictionResult, num_tokens: int, **measured: Any
    ) -> None:
        """Add the row of a sample and its kept sets; the arguments are as of `measured_row`."""
        self.rows.append(measured_row(sample, prompt, eviction, num_tokens, self.environment, **measured))
        self.keep(sample, eviction, num_tokens)

    def keep(self, sample: Sample, eviction: EvictionResult, num_tokens: int) -> None:
        """Add the kept sets of a row, for a context of `num_tokens` tokens, if they are recorded."""
        if self.detail != "none":
            masks = eviction.masks if self.detail == "positions" else None
            sets = KeptSets(eviction.cell.id, sample.id, num_tokens, eviction.layers, eviction.lengths, masks)
            self.kept.append(sets)

    def fail(
        self,
        sample: Sample | InvalidSample,
        error: str | RowError,
        cells: Iterable[Cell] | None = None,
        prompt: Prompt | None = None,
    ) -> None:
        """Add a row with an error for each of the cells, by default all, that lack the sample."""
        if isinstance(error, RowError):
            error, trace = error
            self.traces |= {trace} if trace else set()
        missing = self.job.missing.get(sample.id, ())
        if cells is not None:
            failed = {cell.id for cell in cells}
            missing = tuple(cell for cell in missing if cell.id in failed)
        self.rows += [unmeasured_row(cell, sample, prompt, self.environment, error=error) for cell in missing]

    def only(self, keys: Collection[tuple[str, int]]) -> "JobResult":
        """Return the part about these (cell id, sample) pairs."""
        lists = {name: getattr(self, name) for name in ("rows", "kept", "curves", "timings")}
        chosen = {name: [line for line in lines if (line.cell, line.sample) in keys] for name, lines in lists.items()}
        return replace(self, **chosen)

    def sort(self) -> None:
        """Sort rows by sample and cell, in the order of the job."""
        self.rows.sort(key=lambda row: self.job.places[row.cell, row.sample])

    def add(self, other: "JobResult") -> None:
        """Add all rows and lines of another result."""
        for name in ("rows", "kept", "curves", "prompts", "timings"):
            getattr(self, name).extend(getattr(other, name))
        self.chunk = other.chunk or self.chunk
        self.stepped |= other.stepped
        self.traces |= other.traces


def measured_row(
    sample: Sample, prompt: Prompt, eviction: EvictionResult, num_tokens: int, environment: str, **measured: Any
) -> Row:
    """Return the row of a sample that a cell has read.

    num_tokens: read before the eviction. measured: the columns of the answer, of the scored text, or of the repetition.
    """
    cell, kept_tokens = eviction.cell, eviction.kept_tokens
    return Row(
        **_cell_columns(cell, sample),
        **_prompt_columns(sample, prompt) | measured,
        kept_tokens=kept_tokens,
        kept_fraction=None if kept_tokens is None else kept_tokens / num_tokens,
        cache_bytes=eviction.cache_bytes,
        allocated_bytes=eviction.allocated_bytes,
        store=cell.held.store,
        kept_sha256=hashlib.sha256(b"".join(chain(*eviction.masks))).hexdigest(),
        environment=environment,
        code=cell.code.id,
    )


def answer_columns(ended: Ending | None, final: Final) -> dict[str, Any]:
    """Return the columns on why an answer ended, and on its reasoning."""
    reasoning = CUT if final.text is None else WHOLE if final.tokens else None
    return {"ended": ended, "reasoning": reasoning, "reasoning_tokens": final.tokens}


def with_second_answer(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """`answer_columns` of two requests: the second one's answer is scored, and both may reason."""
    counts = [part["reasoning_tokens"] for part in (first, second) if part["reasoning_tokens"] is not None]
    return {
        "ended": second["ended"],
        "reasoning": second["reasoning"] or first["reasoning"],
        "reasoning_tokens": sum(counts) if counts else None,
    }


def with_second_request(answer: Mapping[str, Any], second: Row) -> dict[str, Any]:
    """Return the columns of an answer in two requests: all that the second one took is a part of decoding."""
    tokens = (answer["new_tokens"], second.new_tokens or 0)
    seconds = (second.prefill_seconds, second.evict_seconds, second.decode_seconds)
    return {
        "peak_bytes": max(answer["peak_bytes"], second.peak_bytes or 0),
        "decode_evictions": answer["decode_evictions"] + (second.decode_evictions or 0),
        "read_bytes": _mean_read((answer["read_bytes"], second.read_bytes), tokens),
        "index_bytes": _mean_read((answer["index_bytes"], second.index_bytes), tokens),
        "decode_seconds": answer["decode_seconds"] + sum(part or 0.0 for part in seconds),
        "new_tokens": sum(tokens),
        **with_second_answer(
            answer, {name: getattr(second, name) for name in ("ended", "reasoning", "reasoning_tokens")}
        ),
        "prediction": f"{answer['prediction']}\n\n{second.prediction}",
        "value": second.value,
        "output_sha256": hashlib.sha256(f"{answer['output_sha256']}{second.output_sha256}".encode()).hexdigest(),
        "top2_margin": min(answer["top2_margin"], second.top2_margin or 0.0),
    }


def _mean_read(means: Sequence[int | None], tokens: Sequence[int]) -> int | None:
    """Return the mean over the tokens after the first of several answers; None if none of them has such tokens."""
    weighed = [(mean, number - 1) for mean, number in zip(means, tokens, strict=True) if mean is not None]
    return round(sum(mean * later for mean, later in weighed) / sum(later for _, later in weighed)) if weighed else None


def unmeasured_row(
    cell: Cell, sample: Sample | InvalidSample, prompt: Prompt | None, environment: str, **columns: Any
) -> Row:
    """Return the row of a sample without a cache that could be measured: of an error, or of an answer from elsewhere.

    columns: `error`, or the columns of the answer or of the scored text.
    """
    prompted = _prompt_columns(sample, prompt) if prompt is not None and isinstance(sample, Sample) else {}
    columns = _cell_columns(cell, sample) | prompted | columns
    return Row(**columns, environment=environment, code=cell.code.id)


def _cell_columns(cell: Cell, sample: Sample | InvalidSample) -> dict[str, Any]:
    return {
        "cell": cell.id,
        "sample": sample.id,
        "question_number": sample.question_number,
        "model": cell.model.label,
        "weights": quantization(cell.model) if cell.model.runs_here else None,
        "task": cell.task.name,
        "task_version": cell.task.version,
        "context_length": cell.task.context_length,
        **cell.method.columns,
        "schedule": str(cell.schedule),
        "seed": cell.seed,
        "metric": cell.task.metric,
        "unit": cell.task.unit,
        "better": cell.task.better,
    }


def _prompt_columns(sample: Sample, prompt: Prompt) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt.tokens,
        "prompt_sha256": prompt.sha256,
        "border_tokens": prompt.border_tokens,
        "context_sha256": sample.context_sha256,
    }


def hash_ids(ids: Sequence[int]) -> str:
    """SHA-256 of token ids: the row's `output_sha256`."""
    return hashlib.sha256(np.array(ids, dtype="<i8").tobytes()).hexdigest()
