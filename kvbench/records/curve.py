"""A metric over positions, beside the rows of a perplexity task: `curves/<name of the rows file>`, a line a row.

{"cell": "0f", "sample": 3, "metric": "nll", "edges": [0, 1, 2, 4], "sums": [7.1, 6.0, 9.9], "counts": [1, 1, 2]}
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from kvbench.support.errors import UserError

ROOM = "curves"


@dataclass(frozen=True)
class Curve:
    """A metric over positions of one row: sums and counts over tokens in ``edges[i] <= position < edges[i + 1]``."""

    cell: str
    sample: int
    metric: str
    edges: tuple[int, ...]
    sums: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def over(cls, cell: str, sample: int, metric: str, values: Sequence[float], length: int) -> "Curve":
        """Values of the tokens at positions 0, 1, 2, ..., with edges at 0 and every power of two up to `length`.

        Edges depend on `length` alone, so that shorter texts lie on the same ones; a range without tokens counts 0.
        """
        edges = (0, *(2**power for power in range((max(length, len(values)) - 1).bit_length() + 1)))
        parts = [values[low:high] for low, high in pairwise(edges)]
        return cls(cell, sample, metric, edges, tuple(map(math.fsum, parts)), tuple(map(len, parts)))

    def to_json(self) -> str:
        """One line without its newline."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> "Curve":
        """What a line says. Raises ValueError for one that says something else."""
        try:
            data: dict[str, Any] = json.loads(line)
            edges, sums, counts = (tuple(data[name]) for name in ("edges", "sums", "counts"))
            made = cls(data["cell"], data["sample"], data["metric"], edges, sums, counts)
        except (KeyError, TypeError) as error:
            raise UserError(f"not a curve: {type(error).__name__}: {error}") from error
        if not len(edges) - 1 == len(sums) == len(counts) or list(edges) != sorted(set(edges)):
            raise UserError(f"{len(sums)} sums and {len(counts)} counts do not lie between {len(edges)} rising edges")
        return made
