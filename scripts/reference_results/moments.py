"""When the rows of a run were made, also the rows that were packed before and unpacked into its folder."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from kvbench.records.moments import Span, from_texts, spans_of, texts_of
from kvbench.support.grouped import grouped

FILE = "unpacked.json"
"""In the folder of a run: by rows file and cell, the first and the last moment that a packed file names."""


def keep_moments(results: Path, rows_file: Path, spans: Mapping[str, Span]) -> None:
    """Keep when the rows that were unpacked into a file were made."""
    kept = _kept(results) | {rows_file.stem: spans}
    texts = {stem: texts_of(of_file) for stem, of_file in kept.items()}
    (results / FILE).write_text(json.dumps(texts, indent=1, sort_keys=True) + "\n", "utf-8")


def moments_of(results: Path, rows: pa.Table) -> dict[str, Span]:
    """When the rows of each cell of a run were made; without cells of which a row has no moment."""
    kept = _kept(results)
    stems = [Path(file).stem for file in rows["file"].to_pylist()]
    made = spans_of(results, rows.filter(pa.array(np.array([stem not in kept for stem in stems], bool))))
    found: dict[str, Span] = {}
    pairs = sorted({*zip(rows["cell"].to_pylist(), stems, strict=True)})
    for cell, files in grouped(pairs, lambda pair: pair[0]).items():
        spans = [kept[stem].get(cell) if stem in kept else made.get(cell) for _, stem in files]
        if (span := Span.over(spans)) is not None:
            found[cell] = span
    return found


def _kept(results: Path) -> dict[str, Mapping[str, Span]]:
    file = results / FILE
    texts = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return {stem: from_texts(of_file) for stem, of_file in texts.items()}
