"""What each row's cell kept, written beside the rows when `results.kept` asks for it: kept/<name of the rows file>.

    {"cell": "0f", "sample": 3, "seen": 385, "layers": [0, 1], "lengths": [[39, 39], [39, 39]], "kept": [["/w=="], ..]}

`seen` tokens were read; `layers` are those that eviction could cut, with one length a stored head each. `kept` is null
unless positions were asked for: per layer and head the base64 of `numpy.packbits` over the mask of kept positions.
`row.kept_sha256` is the SHA-256 over those bytes, head after head and layer after layer.
"""

import hashlib
import json
import os
import warnings
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from kvbench.records.folder import ResultsFolder
from kvbench.records.lines import read_lines
from kvbench.support.errors import UserError

KeptDetail = Literal["none", "lengths", "positions"]
ROOM = "kept"


@dataclass(frozen=True)
class KeptSets:
    """Lengths by layer and stored head, and the packed masks over `num_tokens` positions, or None."""

    cell: str
    sample: int
    num_tokens: int
    layers: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]
    masks: tuple[tuple[bytes, ...], ...] | None

    def positions(self, layer: int, head: int) -> list[int]:
        """Positions that a stored head of a layer kept, in order; `layer` is the model's number for it.

        Raises ValueError where none were recorded.
        """
        if self.masks is None:
            raise UserError(f"no positions of cell {self.cell} were recorded: run with results.kept=positions")
        if layer not in self.layers:
            raise UserError(f"eviction cut no layer {layer} of cell {self.cell}: it cut {list(self.layers)}")
        packed = self.masks[self.layers.index(layer)][head]
        return [place for place in range(self.num_tokens) if packed[place // 8] >> (7 - place % 8) & 1]

    @property
    def sha256(self) -> str | None:
        """What stands in the row as `kept_sha256`, from the masks."""
        if self.masks is None:
            return None
        return hashlib.sha256(b"".join(mask for heads in self.masks for mask in heads)).hexdigest()

    def to_json(self) -> str:
        """One line without its newline."""
        masks = self.masks
        kept = None if masks is None else [[b64encode(mask).decode() for mask in heads] for heads in masks]
        line = {"cell": self.cell, "sample": self.sample, "seen": self.num_tokens, "layers": self.layers}
        return json.dumps({**line, "lengths": self.lengths, "kept": kept})

    @classmethod
    def from_json(cls, line: str | bytes) -> "KeptSets":
        """What a line says. Raises ValueError for one that says something else."""
        try:
            data: dict[str, Any] = json.loads(line)
            masks = data["kept"]
            if masks is not None:
                masks = tuple(tuple(b64decode(mask, validate=True) for mask in heads) for heads in masks)
            lengths = tuple(map(tuple, data["lengths"]))
            return cls(data["cell"], data["sample"], data["seen"], tuple(data["layers"]), lengths, masks)
        except (KeyError, TypeError) as error:
            raise UserError(f"not a line of kept sets: {type(error).__name__}: {error}") from error


def read_kept(
    folder: str | os.PathLike[str], warn: Callable[[str], None] = warnings.warn
) -> dict[tuple[str, int], KeptSets]:
    """The kept sets of a results folder by cell and sample; of several the one written last.

    A torn last line is dropped and told to `warn`. Raises ValueError naming file and line for a broken one elsewhere.
    """
    found = {}
    for path in sorted((ResultsFolder(folder).path / ROOM).glob("*.jsonl")):
        for kept in read_lines(path, KeptSets.from_json, "a line of kept sets", warn):
            found[kept.cell, kept.sample] = kept
    return found
