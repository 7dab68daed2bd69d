"""How long parts of a run take on one machine: what a plan's estimate is made of (`kvbench plan --measure`).

Files are `rates/<hash>.json` in a results folder, one a measurement. Of a curve that was measured twice the newer one
counts.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvbench.records.folder import ResultsFolder
from kvbench.support.errors import UserError

ROOM = "rates"
STEEPEST = 2.0
"""No part grows faster than with the square of the tokens."""

Curve = Mapping[int, float]
"""Seconds by a number of tokens."""


@dataclass(frozen=True)
class Rates:
    """Curves by name, of one model on one machine."""

    curves: Mapping[str, Curve] = field(default_factory=dict)

    def seconds(self, name: str, tokens: float) -> float | None:
        """Of a part at a number of tokens; None where it was never measured.

        Between two measured numbers, and beyond them, seconds are a power of the tokens.
        """
        curve = self.curves.get(name)
        if not curve:
            return None
        points = sorted((float(at), took) for at, took in curve.items())
        if len(points) == 1 or tokens <= 0:
            return points[0][1]
        above = next((place for place, (at, _) in enumerate(points) if at >= tokens), len(points) - 1)
        (low, first), (high, second) = points[max(0, above - 1)], points[max(1, above)]
        if first <= 0 or second <= 0:
            return max(0.0, first + (second - first) * (tokens - low) / (high - low))
        power = min(max(math.log(second / first) / math.log(high / low), 0.0), STEEPEST)
        return first * (tokens / low) ** power


def write_rates(results: ResultsFolder, machine: Mapping[str, Any], weights: str, curves: Mapping[str, Curve]) -> Path:
    """Keep a measurement of a model, known by the hash of its weights."""
    whole = {name: {str(at): took for at, took in curve.items()} for name, curve in curves.items()}
    return results.write_rates({"machine": dict(machine), "weights": weights, "curves": whole})


def read_rates(results: ResultsFolder, machine: Mapping[str, Any], weights: str) -> Rates:
    """All curves of a model that were measured on this machine. Raises ValueError for a file that is not whole."""
    curves: dict[str, Curve] = {}
    for path in sorted((results.path / ROOM).glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
        try:
            told = json.loads(path.read_text("utf-8"))
            if told["machine"] == dict(machine) and told["weights"] == weights:
                curves |= {
                    name: {int(at): float(took) for at, took in curve.items()} for name, curve in told["curves"].items()
                }
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UserError(f"{path} is not a measurement of rates ({error}): remove it and measure again") from error
    return Rates(curves)
