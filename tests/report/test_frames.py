"""A frame of rows gives the tables, plots and pages of the folder that its rows are from."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kvbench.extras.view.page import write_page
from kvbench.records import read_rows
from kvbench.report.compare.compare import compare, report_of
from kvbench.report.compare.paired_rows import side
from kvbench.report.formats.emit import emitted
from kvbench.report.frames import RESULTS, Source, frame_of
from kvbench.report.plots.plot import figure
from kvbench.report.rows import load
from kvbench.report.selection import NothingSelected
from kvbench.report.tables import cost, footprint, table
from kvbench.support.errors import MissingFile, UserError


def no_warning(text: object) -> None:
    raise AssertionError(f"nothing to warn about: {text}")


def pixels(drawn: Figure) -> np.ndarray:
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


@pytest.fixture
def frame(small: Path) -> pandas.DataFrame:
    return frame_of(read_rows(small), small)


def reports_of(source: Source) -> Iterator[str]:
    """Tables, numbers for programs, costs and a comparison."""
    for against in (None, "policy=snapkv,score=attn"):
        yield emitted(table.report_of(source, table.View(against=against), no_warning), "markdown")
    for form in ("csv", "json"):
        table.print_table(source, form, text := io.StringIO(), warn=no_warning)
        yield text.getvalue()
    yield emitted(cost.report_of(source, no_warning), "text")
    names = ("policy=snapkv,score=attn,budget=0.1", "policy=snapkv,score=obcache_joint")
    yield emitted(report_of(compare(*(side(name, source, name, no_warning) for name in names))), "json")


def test_rows_reports_and_pages_are_those_of_the_folder(small: Path, frame: pandas.DataFrame, tmp_path: Path) -> None:
    assert load(frame, no_warning) == load(small, no_warning)
    for of_folder, of_frame in zip(reports_of(small), reports_of(frame), strict=True):
        assert of_folder == of_frame
    for source, name in ((small, "folder.html"), (frame, "frame.html")):
        write_page(source, tmp_path / name, no_warning)
    assert (tmp_path / "folder.html").read_text() == (tmp_path / "frame.html").read_text()


def test_footprints_are_those_of_the_folder(cell, results) -> None:
    sizes = {"prompt_tokens": 500, "new_tokens": 10, "full_cache_bytes": 1000, "peak_bytes": 1000}
    folder = results(
        cell([1.0] * 4, "full", kept_fraction=1.0, kept_tokens=500, **sizes),
        cell([1.0] * 3 + [0.0], "snapkv", kept_fraction=0.1, kept_tokens=50, **sizes),
    )
    reports = [footprint.report_of(source, no_warning) for source in (folder, frame_of(read_rows(folder), folder))]
    assert emitted(reports[0], "text") == emitted(reports[1], "text") and "snapkv" in emitted(reports[1], "text")


def test_a_plot_is_that_of_the_folder(small: Path, frame: pandas.DataFrame) -> None:
    drawn = [pixels(figure("bars", source, {"policy": "full,snapkv"}, no_warning)) for source in (small, frame)]
    assert np.array_equal(*drawn)


def test_what_was_filtered_is_not_reported(frame: pandas.DataFrame) -> None:
    few = frame[(frame.policy == "snapkv") & (frame.budget == "0.1") & (frame.score == "attn")]
    text = emitted(table.report_of(few, warn=no_warning), "text")
    assert "snapkv" in text and "streaming_llm" not in text and few.attrs == frame.attrs


def test_a_frame_without_its_folder_lacks_only_what_is_no_row(frame: pandas.DataFrame) -> None:
    frame.attrs.clear()
    assert "snapkv" in emitted(table.report_of(frame, warn=no_warning), "text")
    with pytest.raises(MissingFile, match=rf'^\'the frame\' has no kept/.*attrs\["{RESULTS}"\]: set it$'):
        figure("kept", frame, warn=no_warning)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop(columns="policy"), "the frame has no column 'policy'"),
        (lambda frame: frame.assign(value="high"), "the frame's column 'value' holds other values than rows"),
        (lambda frame: pandas.concat([frame, frame[:1]]), "the frame has two rows of cell .*, sample 0: drop one"),
    ],
)
def test_what_is_no_frame_of_rows_is_refused_in_a_line(frame: pandas.DataFrame, change, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        load(change(frame), no_warning)
    with pytest.raises(NothingSelected, match="the frame has no rows"):
        load(frame[:0], no_warning)
