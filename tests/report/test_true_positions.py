"""A figure never moves data: every artist of every kind of plot is read back and stands where its row says.

What is expected is computed here from the rows, and a pixel is one of the picture as it is saved.
"""

import base64
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as compute
import pyarrow.parquet as parquet
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, TextArea

from kvbench.extras.derived.wins import WinsItem, draw_wins
from kvbench.extras.efficiency import latency
from kvbench.extras.efficiency.tests.test_efficiency import timed as timed  # a fixture
from kvbench.extras.probes import plot as probe
from kvbench.papers.figures import draw_curves
from kvbench.papers.item import item_of
from kvbench.papers.page import page
from kvbench.papers.published import published
from kvbench.records import ResultsFolder, read_rows
from kvbench.report.plots import bars, canvas, kept_sets, needle, perplexity, tradeoff
from kvbench.report.plots.covered import CLOSE, pieces_in_turn, ranks_at_points
from kvbench.report.plots.plot import Request
from kvbench.support import paths
from kvbench.support.grouped import grouped
from kvbench.support.named import named
from tests.cells import name_of
from tests.report.test_plot import HEADS, ROOT, curve, drawn, texts
from tests.report.test_plot import beside as beside  # a fixture

Points = Sequence[tuple[float, float]]
REFERENCE = ROOT / "results" / "reference"
HALF = 0.5
SNAPKV = {"policy": ["snapkv"], "score": ["attn"], "budget": ["0.1"]}


def test_every_kind_is_read_back_here() -> None:
    """A new kind of plot needs a test below."""
    assert {*named("plot")} == {"tradeoff", "bars", "perplexity", "needle", "kept", "split", "latency"}


def painted(figure: Figure) -> np.ndarray:
    """The pixels [height, width, RGBA] of a figure after it was laid out, as `save` does."""
    agg = FigureCanvasAgg(figure)
    with canvas.styled():
        agg.draw()
    return np.asarray(agg.buffer_rgba())


def in_data(line: Line2D, axis: Axes) -> bool:
    """Whether a line shows data, and is no level across the panel."""
    return line.get_transform().contains_branch(axis.transData) and len(line.get_xydata()) > 0


def near(places: np.ndarray, expected: np.ndarray) -> bool:
    """Whether each place is within half a pixel of an expected one."""
    distances = np.linalg.norm(places[:, None] - expected[None], axis=2)
    return bool((distances.min(axis=1) < HALF).all())


def assert_stands(axis: Axes, expected: Mapping[str, Points]) -> None:
    """Each labelled curve is painted at its points, within half a pixel, and so is all that is painted over it."""
    wanted = {label: axis.transData.transform(sorted(points)) for label, points in expected.items()}
    everything = np.concatenate([*wanted.values()])
    labelled = {line.get_label(): line for line in axis.lines if not str(line.get_label()).startswith("_")}
    shown = {label: line for label, line in labelled.items() if in_data(line, axis)}
    assert {*shown} == {*wanted}
    for label, line in shown.items():
        places = line.get_transform().transform(line.get_xydata())
        assert places.shape == wanted[label].shape and np.abs(places - wanted[label]).max() < HALF, label
    for artist in axis.get_children():
        if isinstance(artist, Line2D) and in_data(artist, axis) and artist.get_marker() not in ("|", "_"):
            assert near(artist.get_transform().transform(artist.get_xydata()), everything)
        if isinstance(artist, PathCollection) and len(artist.get_offsets()):
            assert near(artist.get_offset_transform().transform(artist.get_offsets()), everything)
        if isinstance(artist, LineCollection):
            for ends in map(artist.get_transform().transform, artist.get_segments()):
                if ends[0, 0] == ends[1, 0]:  # an interval
                    assert np.abs(everything[:, 0] - ends[0, 0]).min() < HALF
                else:  # a piece of a curve
                    errors = [np.abs(np.interp(ends[:, 0], *places.T) - ends[:, 1]).max() for places in wanted.values()]
                    assert min(errors) < HALF


def assert_led(figure: Figure) -> None:
    """Every line has a label outside the axes that looks like it, led to its end by a thin grey line below all data."""
    painted(figure)
    inside = [axis.get_window_extent() for axis in figure.axes if axis.get_visible()]
    for axis in figure.axes:
        named = [line for line in axis.lines if not str(line.get_label()).startswith("_")]
        labels = [box for box in axis.findobj(AnnotationBbox) if box.arrow_patch is not None]
        assert {text_of(box) for box in labels} == {line.get_label() for line in named}
        for box in labels:
            assert not any(box.offsetbox.get_window_extent().overlaps(panel) for panel in inside)
            place = axis.transAxes.transform(box.xy)
            (line,) = {
                str(line.get_color()): line
                for line in named
                if line.get_label() == text_of(box) and near(place[None], end_of(line)[None])
            }.values()
            (sample,) = box.offsetbox.findobj(Line2D)
            assert (sample.get_color(), sample.get_marker()) == (line.get_color(), line.get_marker())
            points = len(line.get_xydata())
            assert sample.get_linestyle() == ("None" if points == 1 else line.get_linestyle())
            red, green, blue, _ = box.arrow_patch.get_edgecolor()
            assert red == green == blue and box.arrow_patch.get_linewidth() < 0.5 and box.zorder < 2
            path = box.arrow_patch.get_path().vertices
            assert near(place[None], box.arrow_patch.get_transform().transform(path))


def text_of(box: AnnotationBbox) -> str:
    """What a label says."""
    (text,) = box.offsetbox.findobj(TextArea)
    return text.get_text()


def end_of(line: Line2D) -> np.ndarray:
    """The pixel at which a line ends."""
    return line.get_transform().transform(line.get_xydata())[-1]


def level(axis: Axes) -> float:
    """The pixel of the full cache's level across a panel."""
    (line,) = (line for line in axis.lines if line.get_label() == "full cache")
    return line.get_transform().transform(line.get_xydata())[0, 1]


def in_panels(figure: Figure) -> dict[str, Axes]:
    return {axis.get_title(loc="left"): axis for axis in figure.axes if axis.get_visible()}


def label_of(policy: str, score: str | None) -> str:
    return " ".join(dict.fromkeys(filter(None, (policy, score))))


def test_the_committed_rows_stand_where_they_were_measured() -> None:
    """Two panels of the figure of the README."""
    common = (f"{name}@common" for name in ("snapkv", "ada_snapkv", "pyramidkv", "cake", "lava"))
    policies = ["full", "streaming_llm", "h2o_obcache", "tova_obcache", *common, "kvzip"]
    budgets, scores = ["0.05", "0.1", "0.4", "1.0"], [None, "attn", "lava", "cake", "kvzip"]
    where = {"policy": policies, "budget": budgets, "score": [score or "null" for score in scores]}
    where["task"] = ["ruler/fwe", "ruler/vt"]
    with canvas.styled():
        figure = tradeoff.draw(Request(REFERENCE / "main.parquet", where, {}, lambda warning: None))
    names = ("task", "policy", "score", "budget")
    table = parquet.read_table(REFERENCE / "main.parquet", columns=[*names, "kept_fraction", "value"])
    means = table.group_by(names).aggregate([("kept_fraction", "mean"), ("value", "mean")]).to_pylist()
    asked = {"policy": policies, "budget": budgets, "score": scores, "task": where["task"]}
    shown = [row for row in means if all(row[name] in values for name, values in asked.items())]
    tasks = grouped(shown, lambda row: row["task"])
    assert {*in_panels(figure)} == {*tasks}
    assert_led(figure)
    for task, axis in in_panels(figure).items():
        expected: dict[str, list[tuple[float, float]]] = {}
        for row in tasks[task]:
            point = 100 * row["kept_fraction_mean"], 100 * row["value_mean"]
            expected.setdefault(label_of(row["policy"], row["score"]), []).append(point)
        ((_, full),) = expected.pop("full")
        assert abs(level(axis) - axis.transData.transform((1, full))[1]) < HALF
        assert_stands(axis, expected)


@pytest.mark.parametrize("x", ["pairs", "bytes"])
def test_other_costs_stand_where_they_were_measured(cell, results, x: str) -> None:
    costs = {"0.1": (50.0, 52224), "0.2": (100.0, 104858), "0.4": (200.0, 209715)}
    cells = [
        cell([1.0, 0.0, 0.0, 0.0], policy, budget=budget, kept_tokens=pairs, cache_bytes=size)
        for policy in ("snapkv", "tova")
        for budget, (pairs, size) in costs.items()
    ]
    figure = drawn(tradeoff.draw, results(*cells), x=x)
    painted(figure)
    points = [(cost[x == "bytes"], 25.0) for cost in costs.values()]
    assert_stands(figure.axes[0], {"snapkv": points, "tova": points})
    assert figure.axes[0].get_ylabel() == "string_match_all (%)"


def test_equal_curves_are_visibly_several_and_none_moves(cell, results) -> None:
    """Of four equal curves each is seen between two budgets, and each has a ring of its own at every point."""
    policies = ("h2o", "tova", "cake", "lava")
    cells = [
        cell([0.0, 1.0], policy, budget=budget, kept_fraction=float(budget))
        for policy in policies
        for budget in ("0.1", "0.2", "0.4")
    ]
    figure = drawn(tradeoff.draw, results(*cells))
    pixels = painted(figure)
    (axis,) = figure.axes
    points = [(10.0, 50.0), (20.0, 50.0), (40.0, 50.0)]
    assert_stands(axis, {policy: points for policy in policies})
    assert canvas.COINCIDING in {text_of(box) for box in axis.findobj(AnnotationBbox)}
    colours = {line.get_label(): line.get_color() for line in axis.lines if line.get_label() in policies}
    (left, height), (right, _) = axis.transData.transform(points[:2]).astype(int)
    row = pixels[len(pixels) - 1 - height, :, :3].astype(int)
    for name, colour in colours.items():
        rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert (np.abs(row[left + 20 : right - 20] - rgb).max(axis=1) < 30).any(), f"{name} is not seen along the line"
        assert (np.abs(row[left : left + 20] - rgb).max(axis=1) < 60).any(), f"{name} has no ring"


def test_pieces_stay_on_their_curves_and_take_turns() -> None:
    flat, bent = np.array([[0.0, 5.0], [40.0, 5.0]]), np.array([[0.0, 5.0], [20.0, 5.0], [40.0, 30.0]])
    pieces = pieces_in_turn([flat, bent])
    assert {i for i, *_ in pieces} == {0, 1} and {y for _, *ends in pieces for _, y in ends} == {5.0}
    assert max(x for *_, (x, _) in pieces) == 20
    assert [rank.tolist() for rank in ranks_at_points([flat, bent])] == [[1, 0], [0, 0, 0]]
    assert not pieces_in_turn([flat, flat + np.array([0, 1.5 * CLOSE])])
    assert not pieces_in_turn([flat[:1], flat[:1]])  # points alone


def test_turns_of_a_conversation(cell, results) -> None:
    rows = [
        replace(row, question_number=row.sample % 2 + 1, context_sha256=f"{row.sample // 2:064}")
        for policy in ("full", "snapkv", "tova")
        for row in cell([1.0, 0.0, 0.0, 1.0], policy)
    ]
    figure = drawn(tradeoff.draw, results(rows), x="question")
    painted(figure)
    points = [(1, 50), (2, 50)]
    assert_stands(figure.axes[0], {"snapkv": points, "tova": points, "full cache": points})


def test_bars_end_at_their_means(small: Path) -> None:
    figure = drawn(bars.draw, small)
    painted(figure)
    for axis, means in zip(figure.axes, ((0, 50, 70), (10, 100)), strict=True):
        boxes = [bar.get_window_extent() for bar in axis.patches]
        ends = axis.transData.transform([(mean, 0) for mean in means])[:, 0]
        assert np.abs(np.array([box.x1 for box in boxes]) - ends).max() < HALF
        assert np.abs(np.array([box.x0 for box in boxes]) - axis.transData.transform((0, 0))[0]).max() < HALF
        (full,) = (line for line in axis.lines if line.get_label() == "full cache")
        place = full.get_transform().transform(full.get_xydata())[0, 0]
        assert place == pytest.approx(axis.transData.transform((90, 0))[0])
    assert "dashed: the full cache" in texts(figure) and "2 failed rows" in texts(figure)


def test_bars_of_nothing_have_a_scale(cell, results) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (axis,) = filter(Axes.get_visible, drawn(bars.draw, results(cell([0.0]))).axes)
    assert axis.get_xlim() == (0, 1)


def test_each_bar_stands_beside_its_own_label(cell, results) -> None:
    """Two tasks with other methods and budgets, in one row of panels: names and means are read from the pixels."""
    means = {
        ("ruler/a", "0.1"): {"h2o": 25.0, "kvzip": 75.0, "tova": 100.0},
        ("ruler/a", "0.2"): {"tova": 50.0},
        ("ruler/b", "64"): {"kvzip": 50.0},
    }
    cells = [
        cell([1.0] * int(mean / 25) + [0.0] * int(4 - mean / 25), policy, score=None, task=task, budget=budget)
        for (task, budget), bars_of_panel in means.items()
        for policy, mean in bars_of_panel.items()
    ]
    figure = drawn(bars.draw, results(*cells))
    painted(figure)
    read = {}
    for axis in filter(Axes.get_visible, figure.axes):
        labels = [label for label in axis.get_yticklabels() if label.get_text() and label.get_visible()]
        heights = [label.get_window_extent().get_points()[:, 1].mean() for label in labels]
        boxes = [bar.get_window_extent() for bar in axis.patches]
        assert len(boxes) == len(labels) and len({round(box.height, 3) for box in boxes}) == 1
        named = {
            label.get_text(): box
            for label, y in zip(labels, heights, strict=True)
            for box in boxes
            if box.y0 < y < box.y1
        }
        ends = {name: axis.transData.inverted().transform((box.x1, 0))[0] for name, box in named.items()}
        task, budget = axis.get_title(loc="left").split("\n")
        read[task, budget.removeprefix("budget ")] = {name: round(end, 1) for name, end in ends.items()}
    assert read == means


@pytest.mark.parametrize("y", ["perplexity", "ratio"])
def test_perplexities_stand_at_the_middle_of_their_positions(cell, results, y: str) -> None:
    """72.1 and 71.9 are one line of the picture: neither may be drawn at 82."""
    perplexities = {"full": [3, 2, 2, 4], "h2o": [72.1, 70, 60, 50], "tova": [71.9, 70, 60, 50]}
    sums = {policy: np.log(numbers) for policy, numbers in perplexities.items()}
    budgets = {"full": "1.0", "h2o": "512", "tova": "512"}
    cells = [
        cell([float(nats.mean())], policy, metric="nll", task="pg19", cell=f"{policy:_<4}", budget=budgets[policy])
        for policy, nats in sums.items()
    ]
    folder = results(*cells)
    for policy, values in sums.items():
        curve(folder, f"{policy:_<4}", 0, values.tolist(), [1, 1, 1, 1])
    figure = drawn(perplexity.draw, folder, y=y)
    painted(figure)
    xs, less = (1, 2, 8**0.5, 32**0.5), sums["full"] * (y == "ratio")
    expected = {policy: [*zip(xs, np.exp(values - less), strict=True)] for policy, values in sums.items()}
    expected["full cache"] = expected.pop("full")
    assert_stands(figure.axes[0], expected)


def test_times_and_bytes_are_medians(timed: Path) -> None:
    """A step takes the same with both methods, so that their curves are equal."""
    figure = drawn(latency.draw, timed)
    painted(figure)
    step, held = figure.axes
    assert_stands(step, {"full cache": [(100, 0.2)], "snapkv attn 0.1": [(100, 0.2), (200, 0.2)]})
    assert_stands(held, {"full cache": [(100, 102400.0)], "snapkv attn 0.1": [(100, 10240.0), (200, 20480.0)]})


def test_one_length_of_context_keeps_its_place(timed: Path) -> None:
    """Two methods hold the same: what shows that one covers the other does not stretch the axis of a single length."""
    figure = drawn(latency.draw, timed, {"context_length": ["100"]})
    assert_led(figure)
    assert not any(axis.get_autoscale_on() for axis in figure.axes)  # nor does what covers it in a later panel
    coloured = [line for axis in figure.axes for line in axis.lines if line.get_marker() not in ("|", "_")]
    assert all(len(line.get_xydata()) == 1 and line.get_marker() != "None" for line in coloured)  # points, no lines
    assert_stands(figure.axes[0], {"full cache": [(100, 0.2)], "snapkv attn 0.1": [(100, 0.2)]})


def assert_squares(figure: Figure, axis: Axes, grid: np.ndarray) -> None:
    """Each square of a heat map is painted in the colour of its number, at its place."""
    pixels = painted(figure)
    (image,) = axis.images
    left, right, bottom, top = image.get_extent()
    rows, columns = grid.shape
    for (row, column), number in np.ndenumerate(grid):
        if np.isnan(number):
            continue
        # beside the number that a square may show
        place = left + (column + 0.5) * (right - left) / columns, top + (row + 0.12) * (bottom - top) / rows
        x, y = axis.transData.transform(place).astype(int)
        colour = pixels[len(pixels) - 1 - y, x, :3]
        assert np.abs(colour - 255 * np.array(image.to_rgba(number)[:3])).max() < 3, (row, column, number)


def test_squares_have_the_colours_of_their_numbers(cell, results) -> None:
    shares = {(512, 0): 0.25, (512, 50): 0.5, (1024, 50): 1.0}
    tasks = [({"context_length": length, "depth": depth}, share) for (length, depth), share in shares.items()]
    cells = [
        cell([share, share], cell=name_of({"task": task}), task="needle", context_length=task["context_length"])
        for task, share in tasks
    ]
    folder = results(*cells)
    for task, _ in tasks:
        ResultsFolder(folder).write_cell(name_of({"task": task}), {"task": task})
    figure = drawn(needle.draw, folder)
    axis = figure.axes[0]
    assert_squares(figure, axis, np.array([[25, np.nan], [50, 100]]))
    assert "mean of 3 squares 58.3" in texts(figure)
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["512", "1024"] and list(axis.get_xticks()) == [0, 1]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["0", "50"] and list(axis.get_yticks()) == [0, 1]


def test_a_heat_map_in_shares_leaves_out_what_has_no_depth(cell, results) -> None:
    tasks = [{"context_length": 512, "depth": depth} for depth in (0, 50)]
    cells = [cell([0.5, 1.0], cell=name_of({"task": task}), task="needle") for task in tasks]
    folder = results(*cells, cell([1.0], "h2o", task="needle"))
    for task in tasks:
        ResultsFolder(folder).write_cell(name_of({"task": task}), {"task": task})
    warnings = list[str]()
    figure = drawn(needle.draw, folder, None, warnings.append, unit="rate")
    assert warnings == ["1 of 3 cells have no task.depth and are left out"]
    assert_squares(figure, figure.axes[0], np.array([[0.75], [0.75]]))


def lines_of_one_cell(folder: Path) -> list[dict[str, Any]]:
    """The kept sets of SnapKV with attention and a budget of 0.1, by sample."""
    cells = {row.cell for row in read_rows(folder) if (row.policy, row.score, row.budget) == ("snapkv", "attn", "0.1")}
    lines = map(json.loads, (folder / "kept" / "a.jsonl").read_text().splitlines())
    return [line for line in lines if line["cell"] in cells]


def test_kept_pairs_are_painted_at_their_positions(beside: Path) -> None:
    figure = drawn(kept_sets.draw_kept, beside, SNAPKV | {"sample": ["0"]})
    first, _ = lines_of_one_cell(beside)
    masks = [np.frombuffer(base64.b64decode(mask), np.uint8) for layer in first["kept"] for mask in layer]
    assert_squares(figure, figure.axes[0], np.stack([np.unpackbits(mask, count=first["seen"]) for mask in masks]))
    assert figure.axes[0].images[0].get_extent()[:2] == [0, 100] and "sample 0" in texts(figure)
    both = drawn(kept_sets.draw_kept, beside, SNAPKV).axes[0].images[0].get_array()
    assert both.shape == (sum(HEADS), 37)
    assert [*np.unique(both)] == [0, 0.25, 0.5, 0.75, 1], "means of one position and of one or two of the longer sample"


def test_shares_of_heads_are_painted_in_their_squares(beside: Path) -> None:
    figure = drawn(kept_sets.draw_split, beside, SNAPKV)
    shares = np.full((2, len(HEADS), max(HEADS)), np.nan)
    for i, line in enumerate(lines_of_one_cell(beside)):
        for layer, lengths in enumerate(line["lengths"]):
            shares[i, layer, : len(lengths)] = np.array(lengths) / line["seen"] * 100
    assert_squares(figure, figure.axes[0], shares.mean(axis=0))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that `kvbench.extras.probes.plot` would save."""
    figures: list[Figure] = []
    monkeypatch.setattr(canvas, "save", lambda figure, out: figures.append(figure))
    return figures


def test_means_of_a_probe(figures: list[Figure]) -> None:
    """Two windows of the committed numbers; scores lie within a pixel of each other."""
    table = parquet.read_table(REFERENCE / "probes" / "oracle_recall.parquet")
    table = table.filter((compute.field("recent") == 0) & compute.field("window").isin([1, 16]))
    probe.draw_probed(table, ("window",), Path("unused.png"))
    (figure,) = figures
    painted(figure)
    expected: dict[str, list[tuple[float, float]]] = {}
    rows = [row for row in table.to_pylist() if row["value"] is not None]
    for (score, window), members in grouped(rows, lambda row: (row["score"], row["window"])).items():
        samples = grouped(members, lambda row: row["sample"]).values()
        mean = np.mean([np.mean([row["value"] for row in sample]) for sample in samples])
        expected.setdefault(score, []).append((window, float(mean)))
    assert len(expected) > 5
    assert_stands(figure.axes[0], expected)


def test_heat_maps_of_a_probe(figures: list[Figure]) -> None:
    table = parquet.read_table(REFERENCE / "probes" / "head_scores.parquet")
    probe.draw_probed(table, ("layer", "head"), Path("unused.png"))
    axis = figures[0].axes[0]
    rows = [row for row in table.to_pylist() if row["value"] is not None]
    grid = axis.images[0].get_array().filled(np.nan)
    squares = grouped(rows, lambda row: (row["layer"], row["head"]))
    means = {place: np.mean([row["value"] for row in members]) for place, members in squares.items()}
    assert grid == pytest.approx(np.array([means[place] for place in sorted(means)]).reshape(grid.shape))
    assert_squares(figures[0], axis, grid)


def read(axis: Axes) -> list[float]:
    """What a reader measures: y of the points of all curves and levels of a panel, from pixels back to data."""
    heights: list[float] = []
    for line in axis.lines:
        if not str(line.get_label()).startswith("_"):
            places = axis.transData.inverted().transform(line.get_transform().transform(line.get_xydata()))
            heights += places[:, 1].tolist() if in_data(line, axis) else [places[0][1]]
    return heights


def test_published_curves_of_papers() -> None:
    item = item_of("lava/figure2")
    numbers = published(item, paths.papers())
    with canvas.styled():
        figure = draw_curves(page(item, numbers))
    painted(figure)
    measured = [y for axis in in_panels(figure).values() for y in read(axis)]
    printed = [float(number.value) for number in numbers if not item.is_average(number.at)]
    assert sorted(measured) == pytest.approx(sorted(printed), abs=0.01)


def test_won_tasks_of_a_paper() -> None:
    item = item_of("lava/figure5")
    assert isinstance(item, WinsItem)
    numbers = published(item, paths.papers())
    with canvas.styled():
        figure = draw_wins(item, page(item, numbers))
    painted(figure)
    tops: list[float] = []
    for axis in figure.axes:
        ends = [(0, bar.get_window_extent().y1) for bar in axis.patches]
        tops += axis.transData.inverted().transform(ends)[:, 1].tolist()
    assert sorted(tops) == pytest.approx(sorted(float(number.value) for number in numbers), abs=0.05)
