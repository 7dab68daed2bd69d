"""Sidecar files of the rows files: `kept/`, `curves/`, `prompts/`, `timings/`, each with the name of its rows file.

One JSON object per line, which ends with its checksum as a row does. `Recorder` writes a line before the row that it
belongs to.

kept      {"cell": "0f", "sample": 3, "seen": 385, "layers": [0, 1], "lengths": [[39, 39], [39, 39]], "kept": [["/w=="], ..]}
curves    {"cell": "0f", "sample": 3, "metric": "nll", "edges": [0, 1, 2, 4], "sums": [7.1, 6.0, 9.9], "counts": [1, 1, 2]}
prompts   {"prompt_sha256": "9f..", "tail": "..the last characters of the prompt", "references": ["right answers"], "tokens": null}
timings   {"cell": "0f", "sample": 3, "quantities": {"prefill_seconds": 1.25, "held_bytes": 1048576}, "steps": [0.011]}
"""  # noqa: E501

import hashlib
import json
import math
import os
import warnings
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import ClassVar, Literal, Self, TypeVar

from kvbench.records.folder import ResultsFolder
from kvbench.records.lines import Warn, crc32_of, listed, of_json, read_lines
from kvbench.records.row import LARGEST_NUMBER, has_checksum, with_checksum
from kvbench.support.errors import UserError

KeptDetail = Literal["none", "lengths", "positions"]
"""What the setting `results.kept` records of the KV pairs that a cell kept."""

PROMPT_TAIL = 600
"""Characters of a prompt that are recorded, its last ones."""
REFERENCES = 8
REFERENCE_LENGTH = 400
"""Right answers that are recorded, and characters of each."""

QUANTITIES: Mapping[str, str] = {
    "prefill_seconds": "prefill of all prompts of the batch, one after the other",
    "score_seconds": "scoring, ranking and extra passes of a score, all sequences; missing if prefill includes it",
    "cut_seconds": "allocation, selection and compaction, all sequences; missing if prefill includes it",
    "first_token_seconds": "from the start of prefill to the first token of the last sequence, eviction included",
    "layout_seconds": "copying the caches into the decode batch",
    "decode_seconds": "all new tokens but the first, of all sequences together",
    "production_seconds": "a step as in production, median; missing for methods without a captured graph",
    "full_bytes": "keys and values of the full caches of the batch",
    "held_bytes": "keys and values that the batch keeps after eviction",
    "decode_bytes": "caches and room for new tokens during decoding",
    "prefill_peak_bytes": "peak memory allocated on the device until the last eviction, weights included",
    "decode_peak_bytes": "peak memory allocated on the device after that, weights included",
    "weight_bytes": "the model's parameters",
    "joules": "energy of the device from the start of prefill to the last token, if the device reports it",
    "prefill_flops": "least operations of the prefill",
    "prefill_moved_bytes": "least bytes moved by the prefill",
    "score_moved_bytes": "bytes moved by reading keys and values once and copying those that are kept",
    "step_flops": "least operations of a decode step, mean over steps",
    "step_moved_bytes": "least bytes moved by a decode step, mean over steps: weights and caches read once",
    "device_copy_bytes_per_second": "bytes read and written per second when a large array is copied",
    "device_flops_per_second": "operations per second of a large matrix product in the model's precision",
    "load": "processes that waited for a processor, mean over the last minute",
}
"""What is measured or computed for a row of a task that measures time, by name."""


class Sidecar:
    """A dataclass that is one line of a sidecar file. `folder`: of these files. `kind`: what a line is, in messages."""

    folder: ClassVar[str]
    kind: ClassVar[str]

    def to_json(self) -> str:
        """Return one line without its newline, ASCII only."""
        return with_checksum(json.dumps(asdict(self), allow_nan=False))  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """Parse a line. Raises ValueError for a line that holds something else."""
        return of_json(cls, line)


@dataclass(frozen=True)
class KeptSets(Sidecar):
    """The KV pairs that the cell of a row kept of `num_tokens` tokens.

    layers: the layers that eviction could evict from. lengths: pairs kept per layer and cache head. masks: per layer
    and cache head, `numpy.packbits` of the mask of kept positions; None if only lengths were recorded.
    """

    folder: ClassVar[str] = "kept"
    kind: ClassVar[str] = "a line of kept sets"

    cell: str
    sample: int
    num_tokens: int
    layers: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]
    masks: tuple[tuple[bytes, ...], ...] | None = field(repr=False)

    def positions(self, layer: int, head: int) -> list[int]:
        """Positions that a cache head of a layer kept, in order. Raises ValueError if they were not recorded."""
        if self.masks is None:
            raise UserError(f"no positions of cell {self.cell} were recorded: run with results.kept=positions")
        if layer not in self.layers:
            raise UserError(f"layer {layer} of cell {self.cell} was not evicted from; layers: {list(self.layers)}")
        packed = self.masks[self.layers.index(layer)][head]
        return [position for position in range(self.num_tokens) if packed[position // 8] >> (7 - position % 8) & 1]

    @property
    def sha256(self) -> str | None:
        """The row's `kept_sha256`: of all masks, head after head and layer after layer."""
        if self.masks is None:
            return None
        return hashlib.sha256(b"".join(mask for heads in self.masks for mask in heads)).hexdigest()

    def to_json(self) -> str:
        """Return one line without its newline. Masks are in base64."""
        masks = self.masks
        kept = None if masks is None else [[b64encode(mask).decode() for mask in heads] for heads in masks]
        line = {"cell": self.cell, "sample": self.sample, "seen": self.num_tokens, "layers": self.layers}
        return with_checksum(json.dumps({**line, "lengths": self.lengths, "kept": kept}))

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """Parse a line. Raises ValueError for a line that holds something else."""
        data, masks = of_json(_KeptLine, line), None
        size = (data.seen + 7) // 8
        if data.kept is not None:
            masks = tuple(tuple(b64decode(mask, validate=True) for mask in heads) for heads in data.kept)
            counts = tuple(tuple(int.from_bytes(mask).bit_count() for mask in heads) for heads in masks)
            if counts != data.lengths or any(len(mask) != size for heads in masks for mask in heads):
                raise UserError(f"its masks do not have {data.seen} tokens, or not as many pairs as its lengths")
        if len(data.lengths) != len(data.layers) or not data.layers or not all(data.lengths):
            raise UserError(f"{len(data.lengths)} lists of lengths, or empty ones, for {len(data.layers)} layers")
        return cls(data.cell, data.sample, data.seen, data.layers, data.lengths, masks)


@dataclass(frozen=True)
class _KeptLine:
    cell: str
    sample: int
    seen: int
    layers: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]
    kept: tuple[tuple[str, ...], ...] | None


@dataclass(frozen=True)
class Curve(Sidecar):
    """A metric by position for one row: sums and counts over tokens in ``edges[i] <= position < edges[i + 1]``."""

    folder: ClassVar[str] = "curves"
    kind: ClassVar[str] = "a curve"

    cell: str
    sample: int
    metric: str
    edges: tuple[int, ...]
    sums: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        edges, sums, counts = len(self.edges), len(self.sums), len(self.counts)
        if not edges - 1 == sums == counts or list(self.edges) != sorted(set(self.edges)):
            raise UserError(f"{sums} sums and {counts} counts do not fit {edges} rising bin edges")
        if not all(abs(each) <= LARGEST_NUMBER for each in self.sums):
            raise UserError(f"its sums are not finite numbers up to {LARGEST_NUMBER:g}")

    @classmethod
    def over(cls, cell: str, sample: int, metric: str, values: Sequence[float], length: int) -> "Curve":
        """Return values of the tokens at positions 0, 1, 2, ..., with edges at 0 and every power of two up to
        `length`.
        """
        edges = (0, *(2**power for power in range((max(length, len(values)) - 1).bit_length() + 1)))
        ranges = [values[low:high] for low, high in pairwise(edges)]
        return cls(cell, sample, metric, edges, tuple(map(math.fsum, ranges)), tuple(map(len, ranges)))


@dataclass(frozen=True)
class PromptRecord(Sidecar):
    """The end of a prompt, which rows name by its hash, and its right answers, for readers of reports.

    tokens: the texts of the tokens read before the eviction, if the positions of kept sets were recorded.
    """

    folder: ClassVar[str] = "prompts"
    kind: ClassVar[str] = "a line about a prompt"

    prompt_sha256: str
    tail: str
    references: tuple[str, ...]
    tokens: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls, prompt_sha256: str, prompt: str, references: tuple[str, ...], tokens: tuple[str, ...] | None = None
    ) -> "PromptRecord":
        """Return the record of a prompt: its end and some of its right answers, shortened."""
        short = tuple(text[:REFERENCE_LENGTH] for text in references[:REFERENCES])
        return cls(prompt_sha256, prompt[-PROMPT_TAIL:], short, tokens)


@dataclass(frozen=True)
class Timing(Sidecar):
    """The measurements of a row of a task that measures time.

    quantities: by the names of ``QUANTITIES``; a missing one is absent. steps: seconds of each decode step.
    Raises ValueError for an unknown name and a number that is not finite. Reading a line ignores unknown names.
    """

    folder: ClassVar[str] = "timings"
    kind: ClassVar[str] = "a timing"

    cell: str
    sample: int
    quantities: Mapping[str, float]
    steps: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, value in self.quantities.items():
            if name not in QUANTITIES:
                raise UserError(f"there is no quantity {name!r}; allowed: {', '.join(QUANTITIES)}")
            if not abs(value) <= LARGEST_NUMBER:
                raise UserError(f"{name} is {value!r}; it must be a finite number up to {LARGEST_NUMBER:g}")
        if not all(abs(step) <= LARGEST_NUMBER for step in self.steps):
            raise UserError("steps are finite numbers of seconds")

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """Parse a line. Raises ValueError for a line that holds something else."""
        data = json.loads(line)
        if isinstance(data, dict) and isinstance(data.get("quantities"), dict):
            data["quantities"] = {name: value for name, value in data["quantities"].items() if name in QUANTITIES}
        return of_json(cls, json.dumps(data))


S = TypeVar("S", bound=Sidecar)


def read_sidecar(folder: str | os.PathLike[str], kind: type[S], warn: Warn = warnings.warn) -> Iterator[S]:
    """Return the lines of every file of a sidecar folder, files by time. Faults: `read_lines`.

    A line without its checksum is a fault. Files that are not as their writers ended them go to ``warn``.
    """
    return (line for _, line in named_lines(folder, kind, warn))


def named_lines(folder: str | os.PathLike[str], kind: type[S], warn: Warn) -> Iterator[tuple[str, S]]:
    """Yield the lines of `read_sidecar`, each with the name of its file, which a rows file has too."""
    results = ResultsFolder(folder)

    def parse(line: bytes) -> S:
        item = kind.from_json(line)
        if not has_checksum(line):
            raise UserError("its bytes do not match its checksum")
        return item

    for name in (path.stem for path in listed(results.path / "finished", ".json")):
        file = results.path / kind.folder / f"{name}.jsonl"
        try:
            finished = results.read_finished(name)
            crc32 = finished.sidecars.get(kind.folder) if finished else None
            if crc32 is not None and crc32 != crc32_of(file):
                warn(f"{file}: its lines are not those that its writer ended it with")
        except (UserError, FileNotFoundError) as error:
            warn(str(error))
    for file in listed(results.path / kind.folder, ".jsonl"):
        yield from ((file.stem, line) for line in read_lines(file, parse, kind.kind, warn))
