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

from kvbench.records import Curve, KeptSets, read_rows
from kvbench.report.colours import COLOURS, looks
from kvbench.report.plots import kept_sets, perplexity, tradeoff
from kvbench.report.plots.canvas import styled
from kvbench.report.plots.curves import _spread
from kvbench.report.plots.plot import Request, figure, plot
from kvbench.report.selection import NothingSelected
from kvbench.support.errors import UserError
from kvbench.support.named import named

ROOT = Path(__file__).resolve().parents[2]
HEADS = (2, 2, 1)


def no_warning(text: str) -> None:
    raise AssertionError(f"nothing to warn about: {text}")


def drawn(draw, folder: Path, where: dict[str, list[str]] | None = None, warn=no_warning, **settings: str) -> Figure:
    with styled():
        return draw(Request(folder, where or {}, settings, warn))


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
                lengths = tuple(tuple(int(mask.sum()) for mask in layer) for layer in masks)
                packed = tuple(tuple(np.packbits(mask).tobytes() for mask in layer) for layer in masks)
                file.write(KeptSets(cell, sample, seen, (0, 1, 2), lengths, packed).to_json() + "\n")
    return small


def test_a_tradeoff_over_bytes_read_counts_what_a_reader_reads_to_choose(cell, results) -> None:
    rows = results(
        cell([1.0, 1.0], "full", read_bytes=4096),
        cell([1.0, 0.0], "snapkv", read_bytes=1024),
        cell([1.0, 0.0], "snapkv reader=quest", read_bytes=512, index_bytes=128),
    )
    (axis,) = drawn(tradeoff.draw, rows, x="read").axes
    assert {x for line in axis.lines[1:] for x in line.get_xdata()} == {1024, 640}


def test_bands_are_the_intervals_and_are_spoken_of_where_they_are(small: Path) -> None:
    figure, without = drawn(tradeoff.draw, small), drawn(tradeoff.draw, small, intervals="no")
    band = figure.axes[0].collections[0]
    heights = sorted({round(float(y)) for _, y in band.get_paths()[0].vertices})
    assert heights[0] == 0 and 28 in heights and "95 % intervals" in texts(figure)
    assert len(without.axes[0].collections) == 0 and "interval" not in texts(without)


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


@pytest.mark.parametrize(("policies", "scores"), [(9, 4), pytest.param(14, 1, marks=pytest.mark.slow), (1, 30)])
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
    names = [f"{long}_{i}" for i in range(3)]
    folder = results(*(cell([1.0, 0.0], "snapkv", score=name, kept_fraction=0.1, task=long) for name in names))
    plot(kind, folder, tmp_path / "a.png")
    picture = matplotlib.image.imread(tmp_path / "a.png")[..., :3]
    edges = [picture[0], picture[-1], picture[:, 0], picture[:, -1]]
    assert all((edge == 1).all() for edge in edges)


def curve(folder: Path, cell: str, sample: int, sums: Sequence[float], counts: Sequence[int]) -> None:
    (folder / "curves").mkdir(exist_ok=True)
    with (folder / "curves" / "a.jsonl").open("a") as file:
        file.write(Curve(cell, sample, "nll", (0, 1, 2, 4, 8), tuple(sums), tuple(counts)).to_json() + "\n")


def test_perplexities_are_over_all_tokens_and_their_ratio_is_paired_by_text(cell, results) -> None:
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
    (line,) = (line for line in axis.lines if line.get_label() == "h2o")
    assert list(line.get_ydata()) == pytest.approx(np.exp([6.0, 5.5, 13 / 4, 11 / 4]))
    assert list(line.get_xdata()) == pytest.approx([1, 2, np.sqrt(8), np.sqrt(32)])
    assert axis.get_ylim()[1] < np.exp(6.5) * 2 and axis.get_ylim()[0] > 1
    with pytest.raises(ValueError, match="y=ratio needs the full cache"):
        drawn(perplexity.draw, folder, {"policy": ["h2o"]}, y="ratio")


def test_curves_over_other_tokens_are_not_compared(cell, results) -> None:
    """Of texts that only one side has, nothing is said."""
    rows = cell([3.0, 3.0], "h2o", metric="nll", task="pg19", cell="ab", budget="512")
    folder = results([*rows, *cell([3.0, 3.0], "full", metric="nll", task="pg19", cell="cd", score=None, budget="1.0")])
    curve(folder, "ab", 0, [3.0] * 4, [1] * 4)
    curve(folder, "ab", 1, [6.0] * 4, [2] * 4)
    with pytest.raises(NothingSelected, match="no selected cell has a curve"):
        drawn(perplexity.draw, folder, {"policy": ["full"]}, [].append)
    curve(folder, "cd", 1, [6.0, 6.0, 3.0, 9.0], [2, 2, 1, 3])
    with pytest.raises(UserError, match="cell ab and the full cache read different tokens of sample 1"):
        drawn(perplexity.draw, folder, None, [].append, y="ratio")


def test_kept_sets_that_cannot_be_drawn_are_named(beside: Path) -> None:
    with pytest.raises(NothingSelected, match="none of 1 selected cells has a kept set"):
        drawn(kept_sets.draw_kept, beside, {"policy": ["snapkv"], "score": ["obcache_joint"], "sample": ["5"]})
    file = beside / "kept" / "a.jsonl"
    counts = [replace(KeptSets.from_json(line), masks=None) for line in file.read_text().splitlines()]
    file.write_text("".join(line.to_json() + "\n" for line in counts))
    with pytest.raises(NothingSelected, match="kept sets hold counts only, no positions"):
        drawn(kept_sets.draw_kept, beside)
    wider = [replace(line, lengths=((7,) * (1 + line.sample),) * len(HEADS)) for line in counts]
    file.write_text("".join(line.to_json() + "\n" for line in wider))
    with pytest.raises(UserError, match="has kept sets of different numbers of heads"):
        drawn(kept_sets.draw_split, beside)


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


@pytest.mark.parametrize(
    ("kind", "out", "settings", "message"),
    [
        ("pie", "a.png", {}, "unknown plot 'pie'; did you mean split? allowed: bars"),
        ("bars", "a.jpg", {}, "a plot goes to a file: name it with --out FILE.pdf|.png|.svg, not 'a.jpg'"),
        ("bars", None, {}, "a plot goes to a file"),
        ("tradeoff", "a.png", {"x": "tokens"}, "x=tokens: allowed for tradeoff: x=fraction|pairs|bytes"),
        ("bars", "a.png", {"x": "bytes"}, "rows have no column 'x'"),
        ("bars", "nowhere/a.png", {}, "cannot write 'nowhere/a.png'"),
        ("tradeoff", "a.png", {"x": "read"}, "no selected row says x=read"),
        ("needle", "a.png", {}, "none of 6 cells has a task.depth"),
        ("kept", "a.png", {}, "has no kept/*.jsonl; record them with `kvbench run"),
        ("split", "a.png", {}, "has no kept/*.jsonl; record them with `kvbench run"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    small: Path, kind: str, out: str | None, settings: dict[str, str], message: str
) -> None:
    with pytest.raises((ValueError, NothingSelected, FileNotFoundError)) as error:
        plot(kind, small, out, settings, no_warning)
    assert message in str(error.value)


def test_failures_alone_and_too_many_bars_are_not_drawn(cell, results, tmp_path: Path) -> None:
    failed = {"policy": "h2o"}
    folder = results(cell(["x", "x"], "h2o"), *(cell([1.0], score=f"score_{i}") for i in range(41)))
    with pytest.raises(NothingSelected, match="no row of 1 cells has a value; 2 failed"):
        plot("tradeoff", folder, tmp_path / "out.png", failed, no_warning)
    with pytest.raises(UserError, match="41 bars are too many for one panel \\(40\\); select fewer: policy="):
        plot("bars", folder, tmp_path / "out.png", {"policy": "snapkv"})


@pytest.mark.parametrize("kind", ["tradeoff", "bars"])
def test_a_plot_says_that_its_selection_leaves_out_the_full_cache(small: Path, kind: str) -> None:
    words = "without the full cache, whose rows have budget=1.0"
    for budget, is_said in (("0.1", True), ("0.1,1.0", False)):
        heading = " ".join(text.get_text() for text in figure(kind, small, {"budget": budget}, lambda text: None).texts)
        assert (words in heading.replace("\n", " ")) == is_said
