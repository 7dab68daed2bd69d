"""What a run may leave beside its rows: kept sets (`kept/*.jsonl`) and curves (`curves/*.jsonl`), a line a row."""

import base64
import json
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kvbench.report.reading import Warn


@dataclass(frozen=True)
class KeptSet:
    """What stayed of one row's cache: pairs of every stored head of every layer, and where they stood.

    ``layers``: the model's numbers of the layers that eviction could cut. ``lengths[layer][head]`` in pairs.
    ``kept[layer][head]``: a mask over the ``seen`` positions, or None where a run recorded counts only.
    """

    cell: str
    sample: int
    seen: int
    layers: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]
    kept: tuple[tuple[np.ndarray, ...], ...] | None


@dataclass(frozen=True)
class Curve:
    """A metric over positions of one row: sums and counts over tokens in ``edges[i] <= position < edges[i + 1]``."""

    cell: str
    sample: int
    metric: str
    edges: tuple[int, ...]
    sums: tuple[float, ...]
    counts: tuple[int, ...]


def kept_sets(results: Path, cells: Set[str], warn: Warn) -> list[KeptSet]:
    """The kept sets of these cells, each sample once, the later where there are two.

    Raises FileNotFoundError where the folder has none at all, ValueError naming file and line for a broken one.
    """
    fix = "record them with `kvbench run ... results.kept=lengths|positions`"
    return _read(results, "kept", cells, warn, _kept_set, fix)


def curves(results: Path, cells: Set[str], warn: Warn) -> list[Curve]:
    """The curves of these cells. Raises as `kept_sets` does."""
    return _read(results, "curves", cells, warn, _curve, "a perplexity task leaves them: see `kvbench list tasks`")


Made = TypeVar("Made", KeptSet, Curve)


def _read(results: Path, room: str, cells: Set[str], warn: Warn, make: Callable[[Any], Made], fix: str) -> list[Made]:
    files = sorted((results / room).glob("*.jsonl")) if results.is_dir() else []
    if not files:
        raise FileNotFoundError(f"{str(results)!r} has no {room}/*.jsonl; {fix}")
    found: dict[tuple[str, int], Made] = {}
    for file in files:
        for line in _lines(file, warn):
            number, text = line
            try:
                made = make(json.loads(text))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                said = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
                raise ValueError(f"{file}:{number}: not a line of {room}/: {said}; mend or remove the line") from error
            if made.cell in cells:
                found[made.cell, made.sample] = made
    return list(found.values())


def _lines(file: Path, warn: Warn) -> Iterator[tuple[int, bytes]]:
    *lines, rest = file.read_bytes().split(b"\n")
    yield from enumerate(lines, start=1)
    if rest:
        warn(f"{file}:{len(lines) + 1}: torn last line dropped (no newline); the run that wrote it was cut off")


def _kept_set(data: Any) -> KeptSet:
    seen, lengths = data["seen"], tuple(tuple(map(int, layer)) for layer in data["lengths"])
    kept = data["kept"]
    masks = None if kept is None else tuple(tuple(_mask(head, seen) for head in layer) for layer in kept)
    if masks is not None:
        counts = tuple(tuple(int(mask.sum()) for mask in layer) for layer in masks)
        if counts != lengths:
            raise ValueError(f"masks keep {counts} pairs, lengths are {lengths}")
    layers = tuple(data.get("layers", range(len(lengths))))
    return KeptSet(data["cell"], data["sample"], seen, layers, lengths, masks)


def _mask(text: str, seen: int) -> np.ndarray:
    bits = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    if len(bits) != (seen + 7) // 8:
        raise ValueError(f"a mask of {len(bits)} bytes is not over {seen} positions")
    return np.unpackbits(bits, count=seen).astype(bool)


def _curve(data: Any) -> Curve:
    edges, sums, counts = (tuple(data[name]) for name in ("edges", "sums", "counts"))
    if not len(edges) - 1 == len(sums) == len(counts) or list(edges) != sorted(set(edges)):
        raise ValueError(f"{len(sums)} sums and {len(counts)} counts do not lie between {len(edges)} rising edges")
    return Curve(data["cell"], data["sample"], data["metric"], edges, sums, counts)
