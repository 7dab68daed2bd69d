"""What a cell answers, while it does and when it has ended."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Generation:
    """What one cell answered.

    ids: the tokens, the stop token included. top2_margin: the smallest gap between the two best logits. seconds: each
    step's time shared by the cells still open in it. broken: logits that were no numbers ended the answer.
    """

    ids: tuple[int, ...]
    top2_margin: float
    seconds: float
    broken: bool


@dataclass
class Answering:
    """An answer while it grows."""

    ids: list[int] = field(default_factory=list)
    margin: float = math.inf
    seconds: float = 0.0
    running: bool = True
    broken: bool = False

    def add(self, token: int, gap: float, seconds: float, stop: Collection[int]) -> None:
        self.seconds += seconds
        if not math.isfinite(gap):
            self.running, self.broken = False, True
            return
        self.ids.append(token)
        self.margin = min(self.margin, gap)
        self.running = token not in stop

    def finished(self) -> Generation:
        return Generation(tuple(self.ids), self.margin, self.seconds, self.broken)
