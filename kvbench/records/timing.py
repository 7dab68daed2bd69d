"""What the clock said, beside the rows of an efficiency task: `timings/<name of the rows file>`, a line a row.

{"cell": "0f", "sample": 3, "quantities": {"prefill_seconds": 1.25, "held_bytes": 1048576}, "steps": [0.011, 0.012]}
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvbench.support.errors import UserError

ROOM = "timings"

QUANTITIES: Mapping[str, str] = {
    "prefill_seconds": "reading the prompts of the batch, one after the other",
    "score_seconds": "scoring, ranking and extra passes of a score, all sequences; missing where reading includes it",
    "cut_seconds": "allocating, selecting and compacting, all sequences; missing where reading includes it",
    "first_token_seconds": "from the start of reading to the first token of the last sequence, the cut included",
    "layout_seconds": "copying the caches into the batch that decodes",
    "decode_seconds": "all new tokens but the first, of all sequences together",
    "full_bytes": "keys and values of whole caches of the batch",
    "held_bytes": "keys and values that the batch keeps after the cut",
    "decode_bytes": "caches and room for new tokens while the batch decodes",
    "prefill_peak_bytes": "most memory allocated on the device until the last cut, weights included",
    "decode_peak_bytes": "most memory allocated on the device from then on, weights included",
    "weight_bytes": "the model's parameters",
    "joules": "energy of the device from the start of reading to the last token, where the device tells it",
    "prefill_flops": "what reading takes at least",
    "prefill_moved_bytes": "what reading moves at least",
    "score_moved_bytes": "what reading keys and values once and copying those kept moves",
    "step_flops": "what a step takes at least, mean over steps",
    "step_moved_bytes": "what a step moves at least, mean over steps: weights and caches read once",
    "device_copy_bytes_per_second": "bytes read and written in a second when a large array is copied",
    "device_flops_per_second": "of a large matrix product in the model's precision",
    "load": "processes that wanted a processor, mean of the minute before",
}
"""What is measured or reckoned, by name."""


@dataclass(frozen=True)
class Timing:
    """The numbers of a row, by the names of ``QUANTITIES``, and the seconds of every step; a missing one is absent.

    Raises ValueError for a name that is none and a number that is not finite.
    """

    cell: str
    sample: int
    quantities: Mapping[str, float]
    steps: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, value in self.quantities.items():
            if name not in QUANTITIES:
                raise UserError(f"there is no quantity {name!r}; legal: {', '.join(QUANTITIES)}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise UserError(f"{name} is {value!r}; it must be a finite number")
        if any(not isinstance(step, (int, float)) or not math.isfinite(step) for step in self.steps):
            raise UserError("steps are finite numbers of seconds")

    def to_json(self) -> str:
        """One line without its newline."""
        return json.dumps({**asdict(self), "quantities": dict(self.quantities)}, allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> "Timing":
        """What a line says. Raises ValueError for one that says something else; unknown quantities are ignored."""
        try:
            data: dict[str, Any] = json.loads(line)
            known = {name: value for name, value in data["quantities"].items() if name in QUANTITIES}
            return cls(data["cell"], data["sample"], known, tuple(data["steps"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"not a timing: {type(error).__name__}: {error}") from error
