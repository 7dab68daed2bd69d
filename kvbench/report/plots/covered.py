"""Curves that cover each other: along the line their colours take turns, and their markers nest.

Everything stays at the value that it shows: a reader can measure a figure with a ruler.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

Path = np.ndarray
"""[points, 2]: x, which never falls, and y of a curve, in typographic points."""
Piece = tuple[int, tuple[float, float], tuple[float, float]]
"""The number of a curve, and the two ends of a part of it."""
CLOSE = 1.0
"""Typographic points; what is nearer cannot be told apart."""
TURN = 4.0
"""Typographic points of a line between two changes of colour."""
RING, RINGS = 3.0, 11.0
"""How much wider a marker is than the one that it surrounds, and the largest than the smallest, at most."""


def show_covered(axis: Axes, lines: Sequence[Line2D], dots: float) -> bool:
    """Draw over the ``lines`` of a panel what shows that some cover each other; its limits must be final.

    Returns whether points lie on each other, so that there are rings.

    ``dots``: pixels of a typographic point.
    """
    paths = [line.get_transform().transform(line.get_xydata()) / dots for line in lines]
    paths = [path[np.isfinite(path).all(axis=1)] for path in paths]
    if not paths:
        return False
    pieces, ranks, before = pieces_in_turn(paths), ranks_at_points(paths), ranks_at_points(paths[::-1])[::-1]
    has_rings = any(map(np.any, ranks))
    if not pieces and not has_rings:
        return False
    to_data = axis.transData.inverted()
    step = min(RING, RINGS / max(1, max(map(np.max, ranks))))
    for k, (line, path, rank, lower) in enumerate(zip(lines, paths, ranks, before, strict=True)):
        parts = [to_data.transform(np.array(ends) * dots) for i, *ends in pieces if i == k]
        above, width = line.get_zorder() + 0.1, line.get_linewidth()
        pieces_of_line = LineCollection(parts, colors=[line.get_color()], linewidths=width, zorder=above)
        axis.add_collection(pieces_of_line, autolim=False)
        places, face = to_data.transform(path * dots), line.get_markerfacecolor()
        edge = "white" if face == line.get_color() else line.get_color()
        own, alone = line.get_markeredgecolor(), rank + lower == 0
        marker: Any = line.get_marker()
        shapes = (
            ("o", rank > 0, edge, step / 6),
            (marker, (rank == 0) & ~alone, edge, step / 6),
            (marker, alone, own, line.get_markeredgewidth()),
        )
        for shape, chosen, colour, thick in shapes if marker != "None" else ():
            sizes = (line.get_markersize() + step * rank[chosen]) ** 2
            style: dict[str, Any] = {"facecolors": face, "edgecolors": colour, "linewidths": thick, "clip_on": False}
            x, y = places[chosen].T
            drawn = axis.scatter(x, y, sizes, marker=shape, zorder=above + 0.1, **style)
            drawn.set_in_layout(False)
    return has_rings


def pieces_in_turn(paths: Sequence[Path]) -> list[Piece]:
    """Of curves that cover each other, the pieces that are seen: one curve after the other, ``TURN`` long each."""
    corners = np.unique(np.concatenate([path[:, 0] for path in paths]))
    steps = np.arange(np.floor(corners[0] / TURN), np.ceil(corners[-1] / TURN) + 1) * TURN
    borders = np.unique(np.concatenate([corners, steps.clip(corners[0], corners[-1])]))
    pieces: list[Piece] = []
    for start, stop in pairwise(borders):
        ends = {
            i: np.interp([start, stop], *path.T)
            for i, path in enumerate(paths)
            if path[0, 0] <= start and stop <= path[-1, 0]
        }
        for group in _groups(list(ends.values())):
            if len(group) > 1:
                i = list(ends)[group[int((start + stop) / 2 // TURN) % len(group)]]
                low, high = ends[i].tolist()
                pieces.append((i, (float(start), low), (float(stop), high)))
    return pieces


def ranks_at_points(paths: Sequence[Path]) -> list[np.ndarray]:
    """By curve and point: how many later curves have a point at the same place."""
    ranks = [np.zeros(len(path), int) for path in paths]
    for i, path in enumerate(paths):
        for other in paths[i + 1 :]:
            ranks[i] += (np.linalg.norm(path[:, None] - other[None], axis=2) < CLOSE).any(axis=1)
    return ranks


def _groups(places: Sequence[np.ndarray]) -> list[list[int]]:
    """Return the numbers of ``places`` that are ``CLOSE`` to the first of their group in all coordinates."""
    groups: list[list[int]] = []
    for i, place in enumerate(places):
        group = next((group for group in groups if np.abs(place - places[group[0]]).max() < CLOSE), None)
        groups.append([i]) if group is None else group.append(i)
    return groups
