"""One table or figure of a paper as data: which runs it is made of, and how the paper sets its numbers out.

The files are `conf/paper/PAPER/ITEM.yaml`. Knows nothing about how settings are composed or run.
"""

from dataclasses import dataclass, field
from typing import Literal

from kvbench.support.errors import UserError

KEYS = ("model", "task", "context_length", "policy", "score", "budget")
"""What a number of a paper is found by; columns of its CSV file."""
ARMS = ("layout", "evict_after", "heads", "chunk", "prompt", "kind")
"""What a paper's words on protocol tell apart, and a cell of ours says by a setting; kind is that of the task."""
Kind = Literal["table", "text", "probe", "costs", "efficiency"]
Picture = Literal["curves", "perplexity", "needle", "tradeoff", "latency", "wins"]


@dataclass(frozen=True)
class Run:
    """Settings in the grammar of `kvbench run`, lists included; all of their combinations are cells of the item."""

    settings: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """How the paper sets its numbers out. rows, cols: keys of `KEYS` or arms. What is in neither is averaged over.

    average: the name of an average of LongBench, or plain: a last column, the mean of the line; where tasks are no key,
    what every place is the average of. against: full prints
    differences to the full cache (CAOTE's perplexities). x: the key that a figure has on its horizontal axis.
    panels: keys that tell its panels apart; what is left of rows tells its lines apart. y: what a picture of times and
    bytes shows, see `kvbench.report.plots.latency`. wins: pairs of policies; a number is then on how many tasks one of
    a pair has the higher mean.
    """

    rows: tuple[str, ...] = ("policy", "score")
    cols: tuple[str, ...] = ("budget",)
    average: Literal["plain", "official", "lava", "caote"] | None = None
    against: Literal["full"] | None = None
    x: str | None = None
    panels: tuple[str, ...] = ()
    y: str = "both"
    wins: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        known = (*KEYS, *ARMS)
        if unknown := [key for key in (*self.rows, *self.cols, *self.panels) if key not in (*known, "protocol")]:
            raise UserError(f"layout names {', '.join(unknown)}: legal: {', '.join(known)}, protocol")


@dataclass(frozen=True)
class Item:
    """`published`: the table of the paper's CSV file, or several, empty where it prints no number.

    kind: text is rendered as published, probe is measured by `kvbench probe`, costs come from formulas, efficiency from
    runs that measure time. arms: for each arm, what a paper's words must contain for a value of it. sources: where the
    paper or its code says a setting. device: the planned one, see `kvbench.papers.devices`.
    """

    name: str
    title: str
    published: tuple[str, ...] = ()
    kind: Kind = "table"
    runs: tuple[Run, ...] = ()
    layout: Layout = field(default_factory=Layout)
    arms: dict[str, dict[str, str]] = field(default_factory=dict)
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)
    picture: Picture | None = None
    probe: str | None = None
    by: tuple[str, ...] = ()
    device: str = "a100-80gb"
    sources: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.probe is not None) != (self.kind == "probe"):
            raise UserError(f"paper item {self.name}: a probe goes with kind: probe")
        if self.kind in ("table", "probe", "efficiency") and not self.runs:
            raise UserError(f"paper item {self.name}: kind {self.kind} needs runs")
        if unknown := [arm for arm in self.arms if arm not in ARMS]:
            raise UserError(f"paper item {self.name} has arms {', '.join(unknown)}; legal: {', '.join(ARMS)}")

    @property
    def paper(self) -> str:
        """The paper's short name, that of its CSV file."""
        return self.name.partition("/")[0]

    @property
    def has_average(self) -> bool:
        """Whether lines end with an average."""
        return self.layout.average == "plain" or (self.layout.average is not None and "task" in self.keys)

    @property
    def keys(self) -> tuple[str, ...]:
        """What a place in the layout is found by."""
        return (*self.layout.rows, *self.layout.cols)
