import base64
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, TextArea

from kvbench.records import ResultsFolder, read_rows
from kvbench.records.row import with_checksum
from kvbench.report.colours import COLOURS, looks
from kvbench.report.plots import bars, kept_sets, needle, perplexity, tradeoff
from kvbench.report.plots.canvas import styled
from kvbench.report.plots.curves import _spread
from kvbench.report.plots.plot import Request, plot
from kvbench.report.selection import NothingSelected
from kvbench.support.errors import UserError
from kvbench.support.named import named
from tests.cells import name_of

ROOT = Path(__file__).resolve().parents[2]
HEADS = (2, 2, 1)


def drawn(draw, folder: Path, where: dict[str, list[str]] | None = None, **settings: str) -> Figure:
    with styled():
        return draw(Request(folder, where or {}, settings, no_warning))


def no_warning(text: str) -> None:
    raise AssertionError(f"nothing to warn about: {text}")


def texts(figure: Figure) -> str:
    return " | ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text())


@pytest.fixture
def beside(small: Path) -> Path:
    """Kept sets beside the small rows, for every cell but the full cache."""
    (small / "kept").mkdir()
    cells = {row.cell: row for row in read_rows(small)}
    draw = np.random.default_rng(5)
    with (small / "kept" / "a.jsonl").open("w") as file:
        for cell in [name for name, row in cells.items() if row.policy != "full"]:
            for sample, seen in enumerate((37, 53)):
                masks = [[draw.random(seen) < 0.3 for _ in range(heads)] for heads in HEADS]
                lengths = [[int(mask.sum()) for mask in layer] for layer in masks]
                packed = [[base64.b64encode(np.packbits(mask)).decode() for mask in layer] for layer in masks]
                line = {
                    "cell": cell,
                    "sample": sample,
                    "seen": seen,
                    "layers": [0, 1, 2],
                    "lengths": lengths,
                    "kept": packed,
                }
                file.write(with_checksum(json.dumps(line)) + "\n")
    return small


def test_a_tradeoff_stands_where_it_was_measured(small: Path) -> None:
    (axis,) = (axis for axis in drawn(tradeoff.draw, small).axes if axis.get_visible())
    lines = {tuple(line.get_xdata()): tuple(line.get_ydata()) for line in axis.lines}
    assert lines[10.0, 20.0] in ((0.0, 10.0), (50.0, 100.0)) and len(axis.lines) == 4
    assert axis.get_ylabel() == "string_match_all (%)"
    (axis,) = drawn(tradeoff.draw, small, x="bytes").axes
    assert {x for line in axis.lines[1:] for x in line.get_xdata()} == {int(512 * 1024 * s) for s in (0.1, 0.2)}


def test_a_tradeoff_over_bytes_read_counts_what_a_reader_reads_to_choose(cell, results) -> None:
    rows = results(
        cell([1.0, 1.0], "full", read_bytes=4096),
        cell([1.0, 0.0], "snapkv", read_bytes=1024),
        cell([1.0, 0.0], "snapkv reader=quest", read_bytes=512, index_bytes=128),
    )
    (axis,) = drawn(tradeoff.draw, rows, x="read").axes
    assert {x for line in axis.lines[1:] for x in line.get_xdata()} == {1024, 640}


def test_rows_that_do_not_say_what_was_read_are_not_drawn_over_it(small: Path) -> None:
    with pytest.raises(NothingSelected, match="no selected row says x=read"):
        drawn(tradeoff.draw, small, x="read")


def test_a_line_of_turns_is_the_mean_of_each_question(cell, results) -> None:
    """Two contexts of three questions; the full cache is a line too."""
    rows = [
        replace(row, question_number=row.sample % 3 + 1, context_sha256=f"{row.sample // 3:064}")
        for policy, values in (("full", [1.0] * 6), ("snapkv", [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]))
        for row in cell(values, policy)
    ]
    (axis,) = drawn(tradeoff.draw, results(rows), x="question").axes
    lines = {tuple(line.get_ydata()) for line in axis.lines}
    assert {(100.0, 100.0, 100.0), (100.0, 50.0, 0.0)} <= lines and axis.get_xlabel() == "question"


def test_bands_are_the_intervals(small: Path) -> None:
    band = drawn(tradeoff.draw, small).axes[0].collections[0]
    heights = sorted({round(float(y)) for _, y in band.get_paths()[0].vertices})
    assert (
        heights[0] == 0 and 28 in heights and len(drawn(tradeoff.draw, small, intervals="no").axes[0].collections) == 0
    )


def test_more_lines_than_anybody_can_follow_become_panels(cell, results) -> None:
    scores = [f"score_{i}" for i in range(6)]
    folder = results(
        *(
            cell([1.0, 0.0], policy, score=score, budget=budget, kept_fraction=float(budget))
            for policy in ("h2o", "tova")
            for score in scores
            for budget in ("0.1", "0.2")
        )
    )
    figure = drawn(tradeoff.draw, folder)
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["h2o", "tova"]
    assert all(len(axis.lines) == 12 for axis in figure.axes)


@pytest.mark.parametrize(
    ("policies", "scores"), [(9, 4), pytest.param(14, 1, marks=pytest.mark.slow), (1, 9), (3, 3), (1, 30)]
)
def test_no_two_lines_of_a_panel_look_alike(cell, results, policies: int, scores: int) -> None:
    rows = [(f"policy_{i}", f"score_{j}") for i in range(policies) for j in range(scores)]
    folder = results(*(cell([1.0, 0.0], policy, score=score, kept_fraction=0.1) for policy, score in rows))
    counts = []
    for axis in drawn(tradeoff.draw, folder).axes:
        lines = [line for line in axis.lines if line.get_color() != "#cccccc"]
        looks = {(line.get_color(), line.get_marker(), str(line._unscaled_dash_pattern)) for line in lines}
        assert len(looks) == len(lines)
        counts.append(len(lines))
    assert sum(counts) == policies * scores


def test_a_method_has_one_colour_in_all_figures(small: Path) -> None:
    def colour(figure: Figure, label: str) -> set[str]:
        return {line.get_color() for axis in figure.axes for line in axis.lines if line.get_label() == label}

    together = drawn(tradeoff.draw, small)
    alone = drawn(tradeoff.draw, small, {"policy": ["full", "streaming_llm"]})
    assert (
        colour(together, "streaming_llm")
        == colour(alone, "streaming_llm")
        == {looks(["streaming_llm"])["streaming_llm"].colour}
    )
    scores = drawn(tradeoff.draw, small, {"policy": ["snapkv"]})
    assert colour(scores, "attn") != colour(scores, "obcache_joint")
    assert colour(together, "snapkv attn") == colour(together, "snapkv obcache_joint") == {COLOURS[0]}


def test_labels_of_equal_lines_do_not_meet(cell, results) -> None:
    cells = [cell([0.0] * 4, policy, kept_fraction=0.1) for policy in ("h2o", "tova", "cake", "lava")]
    (axis,) = drawn(tradeoff.draw, results(*cells)).axes
    FigureCanvasAgg(axis.figure).draw()
    labels = [box.offsetbox.get_window_extent() for box in axis.findobj(AnnotationBbox)]
    assert len(labels) == 5 and not any(a.overlaps(b) for a, b in combinations(labels, 2))


def test_labels_keep_apart_and_in_order() -> None:
    assert _spread([0.5, 0.5, 0.9], 0.1) == pytest.approx([0.45, 0.55, 0.9])
    assert _spread([1.0, 1.0, 0.0], 0.1) == pytest.approx([0.9, 1.0, 0.0])
    heights = _spread([0.0] * 30, 0.05)
    assert np.allclose(np.diff(heights), 0.05) and np.mean(heights) == pytest.approx(0.5)  # more than fit


def test_a_panel_of_the_full_cache_alone_has_its_level(cell, results) -> None:
    """Two full caches of one height have one label, and what coincides nowhere is not explained."""
    full = {"policy": "full", "score": None, "budget": "1.0", "kept_fraction": 1.0}
    cells = [cell([1.0, 0.0], **full, schedule=schedule, task="ruler/a") for schedule in ("prompt", "context")]
    cells += [cell([1.0, 1.0], **full, task="ruler/b"), cell([1.0, 0.0], kept_fraction=0.1, task="ruler/b")]
    figure = drawn(tradeoff.draw, results(*cells))
    shown = [
        [box.offsetbox.findobj(TextArea)[0].get_text() for box in axis.findobj(AnnotationBbox)] for axis in figure.axes
    ]
    assert [sorted(labels) for labels in shown] == [["full cache"], ["full cache", "snapkv"]]


@pytest.mark.parametrize("kind", ["tradeoff", "bars"])
def test_nothing_is_cut_off(cell, results, tmp_path: Path, kind: str) -> None:
    """The outermost pixels of the picture are white, however long the names are."""
    long = "a_score_with_a_name_longer_than_anybody_would_give_to_it_in_earnest"
    names = [f"{long}_{i}" for i in range(9)]
    folder = results(*(cell([1.0, 0.0], "snapkv", score=name, kept_fraction=0.1, task=long) for name in names))
    plot(kind, folder, tmp_path / "a.png")
    picture = matplotlib.image.imread(tmp_path / "a.png")[..., :3]
    edges = [picture[0], picture[-1], picture[:, 0], picture[:, -1]]
    assert all((edge == 1).all() for edge in edges)


def test_too_many_bars_are_refused(cell, results, tmp_path: Path) -> None:
    folder = results(*(cell([1.0], "snapkv", score=f"score_{i}") for i in range(41)))
    with pytest.raises(UserError, match="41 bars are too many for one panel \\(40\\); select fewer: policy="):
        plot("bars", folder, tmp_path / "a.png")


def test_bars_say_their_means(small: Path) -> None:
    figure = drawn(bars.draw, small)
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["budget 0.1", "budget 0.2"]
    lengths = [[round(bar.get_width()) for bar in axis.patches] for axis in figure.axes]
    assert lengths == [[0, 50, 70], [10, 100]]
    assert "dashed: the full cache" in texts(figure) and "2 failed rows" in texts(figure)


def test_a_heat_map_has_a_square_a_depth_and_length(cell, results) -> None:
    cells = [
        (share, {"task": {"context_length": length, "depth": depth}})
        for share, length, depth in ((0.25, 512, 0), (0.5, 512, 50), (1.0, 1024, 50))
    ]
    rows = (
        cell([share] * 2, cell=name_of(settings), task="needle", context_length=settings["task"]["context_length"])
        for share, settings in cells
    )
    folder = results(*rows)
    for _, description in cells:
        ResultsFolder(folder).write_cell(name_of(description), description)
    figure = drawn(needle.draw, folder)
    (image,) = figure.axes[0].images
    assert np.array_equal(image.get_array().filled(-1), [[25.0, -1.0], [50.0, 100.0]])
    assert "mean of 3 squares 58.3" in texts(figure)


def test_without_depths_there_is_no_heat_map(small: Path) -> None:
    with pytest.raises(NothingSelected, match=r"none of 6 cells has a task\.depth"):
        drawn(needle.draw, small)


def test_kept_positions_are_shares_over_samples(beside: Path) -> None:
    figure = drawn(kept_sets.draw_kept, beside, {"budget": ["0.1"], "policy": ["streaming_llm"]})
    shares = figure.axes[0].images[0].get_array()
    assert shares.shape == (sum(HEADS), 37)
    lines = [json.loads(line) for line in (beside / "kept" / "a.jsonl").read_text().splitlines()]
    first = np.unpackbits(np.frombuffer(base64.b64decode(lines[0]["kept"][1][0]), np.uint8), count=37)
    alone = drawn(kept_sets.draw_kept, beside, {"budget": ["0.1"], "policy": ["streaming_llm"], "sample": ["0"]})
    assert "sample 0" in texts(alone)
    cells = {row.cell: row for row in read_rows(beside)}
    assert cells[lines[0]["cell"]].policy == "streaming_llm"
    if cells[lines[0]["cell"]].budget == "0.1":
        assert np.array_equal(alone.axes[0].images[0].get_array()[2], first)


def test_the_split_is_in_percent_of_what_was_read(beside: Path) -> None:
    figure = drawn(kept_sets.draw_split, beside, {"policy": ["snapkv"], "budget": ["0.2"]})
    cell = next(row.cell for row in read_rows(beside) if (row.policy, row.budget) == ("snapkv", "0.2"))
    lines = [json.loads(line) for line in (beside / "kept" / "a.jsonl").read_text().splitlines()]
    mine = [np.array(line["lengths"][0]) / line["seen"] * 100 for line in lines if line["cell"] == cell]
    grid = figure.axes[0].images[0].get_array().filled(np.nan)
    assert np.allclose(grid[0], np.mean(mine, axis=0)) and np.isnan(grid[2, 1])


def curve(folder: Path, cell: str, sample: int, sums: Sequence[float], counts: Sequence[int]) -> None:
    (folder / "curves").mkdir(exist_ok=True)
    with (folder / "curves" / "a.jsonl").open("a") as file:
        line = {
            "cell": cell,
            "sample": sample,
            "metric": "nll",
            "edges": [0, 1, 2, 4, 8],
            "sums": sums,
            "counts": counts,
        }
        file.write(with_checksum(json.dumps(line)) + "\n")


def test_perplexity_by_position_is_over_all_tokens(cell, results) -> None:
    rows = cell([11 / 5, 16 / 7], "h2o", metric="nll", task="pg19", cell="ab", budget="512")
    folder = results(rows)
    curve(folder, "ab", 0, [3.0, 2.0, 4.0, 2.0], [1, 1, 2, 1])
    curve(folder, "ab", 1, [1.0, 2.0, 4.0, 9.0], [1, 1, 2, 3])
    (axis,) = drawn(perplexity.draw, folder).axes
    (line,) = axis.lines
    assert list(line.get_ydata()) == pytest.approx(np.exp([2.0, 2.0, 2.0, 11 / 4]))
    assert list(line.get_xdata()) == pytest.approx([1, 2, np.sqrt(8), np.sqrt(32)])


def test_a_ratio_of_perplexities_is_paired_by_text(cell, results) -> None:
    """Texts differ by far more than caches do: the band is that of the differences, and no band stretches the axis."""
    rows = cell([11 / 5, 36 / 7], "h2o", metric="nll", task="pg19", cell="ab", budget="512")
    folder = results([*rows, *cell([2.1, 5.0], "full", metric="nll", task="pg19", cell="cd", score=None, budget="1.0")])
    for name, less in (("ab", 0.0), ("cd", 0.5)):
        curve(folder, name, 0, [3.0 - less, 2.0, 4.0, 2.0], [1, 1, 2, 1])
        curve(folder, name, 1, [9.0 - less, 9.0, 9.0, 9.0 - less], [1, 1, 2, 3])
    (axis,) = drawn(perplexity.draw, folder, y="ratio").axes
    ratio = max(axis.lines, key=lambda line: max(line.get_ydata()))
    assert list(ratio.get_ydata()) == pytest.approx(np.exp([0.5, 0.0, 0.0, 0.5 / 4]))
    (axis,) = drawn(perplexity.draw, folder).axes
    assert axis.get_ylim()[1] < np.exp(6.5) * 2 and axis.get_ylim()[0] > 1
    with pytest.raises(ValueError, match="y=ratio needs the full cache"):
        drawn(perplexity.draw, folder, {"policy": ["h2o"]}, y="ratio")


DRAW = """
import sys
from kvbench.report.plots.plot import plot
for out in sys.argv[2:]:
    plot("tradeoff", sys.argv[1], out)
"""


def test_the_same_rows_give_the_same_bytes(small: Path, tmp_path: Path) -> None:
    """In a process of its own and in this one: nothing may hang on hashes, dates or what was drawn before."""
    suffixes = ("png", "pdf", "svg")
    command = [sys.executable, "-c", DRAW, str(small), *(str(tmp_path / f"a.{suffix}") for suffix in suffixes)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)})
    for suffix in reversed(suffixes):
        plot("tradeoff", small, tmp_path / f"b.{suffix}", {}, no_warning)
    for suffix in suffixes:
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes(), suffix


@pytest.mark.parametrize("kind", named("plot"))
def test_nothing_selected_draws_nothing(small: Path, tmp_path: Path, kind: str) -> None:
    with pytest.raises(NothingSelected):
        plot(kind, small, tmp_path / "out.png", {"policy": "tova"}, no_warning)
    assert not (tmp_path / "out.png").exists()


def test_only_failures_draw_nothing(cell, results, tmp_path: Path) -> None:
    with pytest.raises(NothingSelected, match="no row of 1 cells has a value; 2 failed"):
        plot("tradeoff", results(cell(["x", "x"])), tmp_path / "out.png", {}, no_warning)


@pytest.mark.parametrize("kind", ["kept", "split"])
def test_missing_kept_sets_are_missing_data(small: Path, tmp_path: Path, kind: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no kept/\*\.jsonl; record them with `kvbench run"):
        plot(kind, small, tmp_path / "out.png", {}, no_warning)


@pytest.mark.parametrize(
    ("kind", "out", "settings", "message"),
    [
        ("pie", "a.png", {}, "unknown plot 'pie'; did you mean split? allowed: bars"),
        ("bars", "a.jpg", {}, "a plot goes to a file: name it with --out FILE.pdf|.png|.svg, not 'a.jpg'"),
        ("bars", None, {}, "a plot goes to a file"),
        ("tradeoff", "a.png", {"x": "tokens"}, "x=tokens: allowed for tradeoff: x=fraction|pairs|bytes"),
        ("bars", "a.png", {"x": "bytes"}, "rows have no column 'x'"),
        ("bars", "nowhere/a.png", {}, "cannot write 'nowhere/a.png'"),
    ],
)
def test_wrong_words_are_said(small: Path, kind: str, out: str | None, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError) as error:
        plot(kind, small, out, settings, no_warning)
    assert message in str(error.value)
