"""Draw docs/images/rooms.svg and write the table of rooms in docs/architecture.md, both from the imports of the code.

    python scripts/draw_rooms.py

Rooms are the packages and modules right under kvbench; a floor is a few of them that belong together. Lines that follow
from others are left out of the picture: what a floor enters, it may reach through another one.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grimp
import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "images" / "rooms.svg"
BEGIN, END = "<!-- rooms -->", "<!-- end of rooms -->"
FLOORS: Mapping[str, tuple[str, ...]] = {
    "command line": ("cli",),
    "papers": ("papers",),
    "conformance": ("conformance",),
    "probes": ("probes",),
    "settings": ("config",),
    "run": ("run",),
    "models": ("models",),
    "eviction": ("eviction",),
    "reports": ("report",),
    "cache": ("cache",),
    "tasks": ("tasks",),
    "records": ("records",),
    "support": ("support",),
}
"""The rooms of every floor. A new room is left out until it has its place here."""
PLACES: Mapping[str, tuple[float, float, int]] = {
    "command line": (0, 5, 0),
    "papers": (0, 5, 1),
    "conformance": (0, 2.4, 2),
    "probes": (2.6, 5, 2),
    "settings": (0, 5, 3),
    "run": (0, 3.4, 4),
    "models": (0, 3.4, 5),
    "eviction": (0, 2.2, 6),
    "reports": (3.6, 5, 5),
    "cache": (0, 1.6, 7),
    "tasks": (1.8, 3.4, 7),
    "records": (3.6, 5, 7),
    "support": (0, 5, 8),
}
"""Where the floors stand in the picture: left, right, and the row from the top."""
Edges = frozenset[tuple[str, str]]


def imports() -> tuple[Edges, frozenset[str]]:
    """Which floor enters which other one, and the rooms that are on none yet."""
    graph = grimp.build_graph("kvbench", cache_dir=None)
    floors = {room: floor for floor, rooms in FLOORS.items() for room in rooms}
    edges, new = set[tuple[str, str]](), set[str]()
    for module in graph.modules - {"kvbench", "kvbench.__main__"}:
        room = module.split(".")[1]
        if room not in floors:
            new.add(room)
            continue
        entered = {one.split(".")[1] for one in graph.find_modules_directly_imported_by(module) - {"kvbench"}}
        edges |= {(floors[room], floors[other]) for other in entered & floors.keys()}
    return frozenset((floor, other) for floor, other in edges if floor != other), frozenset(new)


def reduced(edges: Edges) -> list[tuple[str, str]]:
    """The edges without those that lead where others lead too."""
    beyond = {floor: {b for a, b in edges if a == floor} for floor in FLOORS}

    def reached(floor: str) -> set[str]:
        return {far for near in beyond[floor] for far in (near, *reached(near))}

    return [(a, b) for a, b in sorted(edges) if not any(b in reached(other) for other in beyond[a] - {b})]


def table(edges: Edges) -> Iterator[str]:
    """The floors as lines of Markdown."""
    yield "| floor | rooms | enters |"
    yield "| :-- | :-- | :-- |"
    for floor in PLACES:
        entered = ", ".join(name for name in FLOORS if (floor, name) in edges)
        yield f"| {floor} | {', '.join(f'`{room}`' for room in FLOORS[floor])} | {entered} |"


def written(page: str, edges: Edges) -> str:
    """The page with its table brought up to date."""
    before, _, rest = page.partition(BEGIN)
    lines = "\n".join(table(edges))
    return f"{before}{BEGIN}\n{lines}\n{END}{rest.partition(END)[2]}"


def draw(edges: Edges) -> Figure:
    """Upright and in large letters, so that it can be read on a telephone."""
    last = max(row for *_, row in PLACES.values())
    figure = Figure(figsize=(8.2, 1.28 * (last + 1)))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_xlim(-0.04, 5.04)
    axis.set_ylim(last + 0.98, -0.04)
    axis.axis("off")
    for floor, (left, right, row) in PLACES.items():
        _box(axis, floor, left, right, row)
    lines = reduced(edges)
    for floor, other in lines:
        start, end = _ends(floor, other, lines)
        arrow = FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=13, shrinkA=0, shrinkB=1, color="#0072B2")
        arrow.set(linewidth=1.4, zorder=1)
        axis.add_patch(arrow)
    return figure


GAP, HEIGHT = 0.06, 0.74


def _box(axis: Axes, floor: str, left: float, right: float, row: int) -> None:
    size = (right - left - 2 * GAP, HEIGHT)
    look: dict[str, Any] = {
        "boxstyle": "round,pad=0,rounding_size=0.08",
        "facecolor": "#f4f7fa",
        "edgecolor": "#33475b",
    }
    axis.add_patch(FancyBboxPatch((left + GAP, row), *size, linewidth=1.2, zorder=2, **look))
    rooms = FLOORS[floor]
    said = textwrap.wrap(" ".join(rooms), int(17 * (right - left)) - 3) if len(rooms) > 1 else []
    middle, top = (left + right) / 2, row + HEIGHT / 2 - 0.085 * len(said)
    axis.text(middle, top, floor, ha="center", va="center", fontsize=15, fontweight="bold", zorder=3)
    for number, line in enumerate(said, start=1):
        axis.text(middle, top + 0.175 * number, line, ha="center", va="center", fontsize=12.5, zorder=3)


def _ends(floor: str, other: str, lines: Sequence[tuple[str, str]]) -> tuple[tuple[float, float], tuple[float, float]]:
    """From the lower edge of a box to the upper one of another: straight down where
    they lie over each other, from corner to corner elsewhere.
    """
    (left, right, row), (low, high, below) = PLACES[floor], PLACES[other]
    over = max(left, low), min(right, high)
    if over[1] - over[0] > 0.3:
        middle = sum(over) / 2
        return (middle, row + HEIGHT), (middle, below)
    outwards = 1 if low >= right - 0.3 else -1
    start = right - 0.25 if outwards > 0 else left + 0.25
    end = low + 0.2 if outwards > 0 else high - 0.25
    return (start, row + HEIGHT), (end, below)


def main() -> None:
    """Bring the picture and the page up to date."""
    edges, new = imports()
    if new:
        print(f"on no floor yet, so left out: {', '.join(sorted(new))}; add them to FLOORS")
    with matplotlib.rc_context({"svg.hashsalt": "rooms", "font.family": "DejaVu Sans"}):
        draw(edges).savefig(PICTURE, metadata={"Date": None})
    PAGE.write_text(written(PAGE.read_text("utf-8"), edges), "utf-8")


if __name__ == "__main__":
    main()
