"""What the first hour is to reach, beside what it measured."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import ge, le
from typing import Any

Figures = Sequence[Mapping[str, Any]]
AT_LEAST, AT_MOST = ("at least", ge), ("at most", le)


@dataclass(frozen=True)
class Goal:
    """A bound on what a part measures. measured: the worst number among the figures, None where there is none."""

    words: str
    part: str
    side: tuple[str, Callable[[float, float], bool]]
    bound: float
    measured: Callable[[Figures], float | None]

    def line(self, figures: Figures) -> str:
        """A line of the table."""
        number = self.measured([figure for figure in figures if figure.get("part") == self.part])
        side, holds = self.side
        said = "not measured" if number is None else "met" if holds(number, self.bound) else "not met"
        shown = "" if number is None else f"{number:,.4g}" if number < 1000 else f"{number:,.0f}"
        return f"| {self.words} | {self.part} | {side} {self.bound:,g} | {shown} | {said} |"


def table(figures: Iterable[Mapping[str, Any]], device: str) -> str:
    """All goals for a device in Markdown; of a part that ran several times the last figures count."""
    mine = [figure for figure in figures if figure.get("device") == device]
    head = (f"{device}", "", "| what | part | goal | measured | |", "|---|---|---|---|---|")
    return "\n".join([*head, *(goal.line(mine) for goal in GOALS)])


def _step(tokens: int, batch: int) -> Callable[[Figures], float | None]:
    """Times of the roofline that a replayed step takes, with Triton, of the policy that is furthest from it."""

    def measured(figures: Figures) -> float | None:
        chosen = {"tokens": tokens, "batch": batch, "kernels": "triton"}
        found = dict(_named(figures, "policy", "production_times_roofline", chosen))
        return max(found.values(), default=None)

    return measured


def _prefill(tokens: int) -> Callable[[Figures], float | None]:
    """Seconds of a prefill by those of `generate`."""

    def measured(figures: Figures) -> float | None:
        chosen = {"tokens": tokens, "batch": 1, "kernels": "triton", "policy": "full"}
        ours = dict(_named(figures, "policy", "prefill_seconds", chosen))
        theirs = dict(_named(figures, "who", "prefill_seconds", {"tokens": tokens, "who": "generate"}))
        return ours["full"] / theirs["generate"] if ours and theirs else None

    return measured


def _last(name: str, **chosen: Any) -> Callable[[Figures], float | None]:
    """The last figure of a name among those that are chosen."""

    def measured(figures: Figures) -> float | None:
        found = [number for _, number in _named(figures, "part", name, chosen)]
        return found[-1] if found else None

    return measured


def _ratio(tokens: int) -> Callable[[Figures], float | None]:
    """How many times as fast as kvpress 24 cells are, by the wall."""

    def measured(figures: Figures) -> float | None:
        swept = [figure["ratios"].get(str(tokens), {}).get("sweep") for figure in figures if "ratios" in figure]
        return next((each["wall"]["ratio"] for each in reversed(swept) if each), None)

    return measured


def _named(figures: Figures, name: str, value: str, chosen: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a name, by what another one says, among the figures that have what is chosen."""
    for figure in figures:
        if figure.get(value) is not None and all(figure.get(key) == wanted for key, wanted in chosen.items()):
            yield figure[name], figure[value]


SHAPE = "8B shape"
GOALS = (
    *(
        Goal(f"{SHAPE}, {tokens // 1024}K, {batch} decoded together: a step, in times of its roofline", "speed",
             AT_MOST, 1.25, _step(tokens, batch))
        for tokens in (8192, 32768) for batch in (1, 24)
    ),
    *(
        Goal(f"{SHAPE}, {tokens // 1024}K: a prefill, in times of generate's", "speed", AT_MOST, 1.02, _prefill(tokens))
        for tokens in (8192, 32768)
    ),
    Goal(f"{SHAPE}, 8K: evictions of 24 cells and their batch, ms", "speed", AT_MOST, 60,
         _last("evictions_ms", tokens=8192, cells=24)),
    Goal("SmolLM2, 4K: 24 cells, in times of kvpress", "sweep", AT_LEAST, 40, _ratio(4096)),
    Goal(f"{SHAPE}, 8K: 24 cells of 32 tokens, in times of kvpress", "kvpress", AT_LEAST, 60, _ratio(8192)),
    Goal(f"{SHAPE}, 4K: rows an hour of 24 cells of 32 tokens", "sweep8b", AT_LEAST, 60_000,
         _last("rows_per_hour", run="llama3.1-8b_4096")),
)  # fmt: skip
