"""Two printed means over the same prompts, and between which bounds their differences of a prompt can lie.

A paired test needs D, the mean square of the differences of a prompt, which papers do not print. Of scores in 0..1 with
means p and q and d = q - p, `d^2 <= D <= min(p + q, 2 - p - q)`; of answers that are right or wrong, D >= |d|. Between
the bounds D depends on the correlation rho of both scores: `D = f (v + w - 2 rho sqrt(v w)) + d^2`, v = p (1 - p),
w = q (1 - q), f the variance of such scores over the variance of right and wrong answers with one mean. The levels:

any     D = min(p + q, 2 - p - q): it holds whatever the answers were
rho0    rho = 0, f = 1: it holds unless two methods disagree more often than chance
mid     rho = 0.8 for two scores under one policy, 0.5 for two policies; as in rows of kvbench
best    D = |d| for right and wrong answers: all prompts that changed changed the same way (|d| / m for scores of m
        equal parts); graded scores have no such bound, so rho = 0.99

The constants come from rows of kvbench: rho of 413 pairs of scores has median 0.82, of policies 0.6 to 0.7; f from 30
prompts with F1, 20 with ROUGE and 9 with code.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

Level = Literal["any", "rho0", "mid", "best"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From what always holds to what is most favourable."""
OF_SCORES = 0.8
OF_POLICIES = 0.5
"""The correlation at mid, of two scores under one policy and of two policies."""
HIGHEST = 0.99
"""The correlation at best, of graded scores."""
FACTORS = {"f1": 0.33, "rouge": 0.04, "code": 0.15, "graded": 1.0}
"""The variance of graded scores over p (1 - p)."""
_SLACK = 1e-9


@dataclass(frozen=True)
class Pair:
    """Printed means a and b in 0..1 over the same n prompts.

    half: half a unit of the last printed digit. parts: equal parts of a prompt's score, 1 if it is right or wrong, None
    if it can be of any size. factor: f above. rho: the correlation at mid. texts: distinct texts behind the n prompts;
    prompts about one text count once. tasks: the means are averages over so many tasks of n prompts each. prompts:
    names what was read; pairs with the same name share it. spread: standard deviations of the scores of a
    prompt, of a and of b; needed where scores are not bounded. bounded: whether scores lie in 0..1.
    """

    a: float
    b: float
    n: int
    half: float = 0.0
    parts: int | None = 1
    factor: float = 1.0
    rho: float = OF_SCORES
    texts: int | None = None
    tasks: int = 1
    prompts: str = ""
    spread: tuple[float, float] | None = None
    bounded: bool = True

    def __post_init__(self) -> None:
        assert self.n > 0 and self.tasks > 0 and (self.parts is None or self.parts > 0)
        assert not self.bounded or (0.0 <= self.a <= 1.0 and 0.0 <= self.b <= 1.0)

    @property
    def difference(self) -> float:
        """b - a, without the rounding error of decimals."""
        return round(self.b - self.a, 12)

    @property
    def units(self) -> int:
        """Independent prompts of a task: its distinct texts."""
        return min(self.n, self.texts or self.n)

    @property
    def is_right_or_wrong(self) -> bool:
        """Whether both means count single prompts, each right or wrong and each with a text of its own."""
        return self.parts == 1 and self.tasks == 1 and self.units == self.n and self.spread is None

    @property
    def judged(self) -> bool:
        """Whether anything bounds D."""
        return (self.bounded or self.spread is not None) and not self.lacks_rows

    @property
    def lacks_rows(self) -> bool:
        """Whether no answers to n prompts have one of the means: rows are missing, and the pairing is unknown."""
        if self.parts is None or self.tasks > 1 or not self.bounded:
            return False
        return not all(counts(mean, self.n * self.parts, self.half) for mean in (self.a, self.b))

    @cached_property
    def right(self) -> tuple[int, int] | None:
        """The prompts answered right by a and b, if the means tell them; else None, and tests are normal."""
        if not self.is_right_or_wrong:
            return None
        a, b = (counts(mean, self.n, self.half) for mean in (self.a, self.b))
        return (a[0], b[0]) if len(a) == len(b) == 1 else None

    def mean_square(self, level: Level) -> float:
        """D at a level."""
        a, b = (count / self.n for count in self.right) if self.right is not None else (self.a, self.b)
        square = (b - a) ** 2
        if self.spread is not None:
            rho = {"any": -1.0, "rho0": 0.0, "mid": self.rho, "best": HIGHEST}[level]
            of_a, of_b = self.spread
            return max(of_a**2 + of_b**2 - 2 * rho * of_a * of_b, 0.0) + square
        most = min(a + b, 2 - a - b)
        parts = None if self.parts is None else self.parts * self.n / self.units  # of the score of a text
        least = square if parts is None else max(square, abs(b - a) / parts)
        if level == "any":
            return most
        if level == "best" and self.parts is not None:
            return least
        factor, rho = {"rho0": (1.0, 0.0), "mid": (self.factor, self.rho), "best": (self.factor, HIGHEST)}[level]
        v, w = a * (1 - a), b * (1 - b)
        return min(max(factor * (v + w - 2 * rho * math.sqrt(v * w)) + square, least), most)

    def discordant(self, level: Level) -> int:
        """Prompts that one side alone answers right, at a level; a whole number that the net change allows.

        Only where `right` is known.
        """
        assert self.right is not None
        a, b = self.right
        net, most = abs(b - a), min(a + b, 2 * self.n - a - b)
        return min(net + 2 * round((self.n * self.mean_square(level) - net) / 2), most)

    @property
    def net(self) -> int:
        """Prompts won by b less those won by a. Only where `right` is known."""
        assert self.right is not None
        return self.right[1] - self.right[0]


def counts(mean: float, answers: int, half: float) -> list[int]:
    """Return the whole numbers k of which k / answers is printed as this mean: those within half a unit of it."""
    low, high = (mean - half) * answers - _SLACK * answers, (mean + half) * answers + _SLACK * answers
    return list(range(max(0, math.ceil(low)), min(answers, math.floor(high)) + 1))


def possible_sizes(means: Sequence[float], half: float, most: int = 500) -> list[int]:
    """Return the numbers of prompts up to `most` of which every mean is k / n: what the digits say of an unknown n."""
    return [n for n in range(1, most + 1) if all(counts(mean, n, half) for mean in means)]
