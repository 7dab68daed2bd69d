"""Boards: equal bytes by mixing cells, who is ranked, what is refused, and the page."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.cli.main import main
from kvbench.extras.board.board import Board, board, write_board
from kvbench.extras.board.ranking import Place
from kvbench.records import Recorder, ResultsFolder, Row
from kvbench.records.manifest import write_manifest
from kvbench.support.errors import NothingSelected, UserError
from tests.repository import ROOT

Cells = Callable[..., list[Row]]
Methods = list[list[Row]]
FULL = 1000
N = 20


def held(share: float) -> dict[str, object]:
    return {"cache_bytes": int(FULL * share), "full_cache_bytes": FULL}


def submission(path: Path, *cells: Sequence[Row]) -> str:
    with Recorder(path) as recorder:
        for rows in cells:
            recorder.append([row for row in rows])
    write_manifest(ResultsFolder(path), None)
    return str(path)


def silent(text: str) -> None:
    pass


@pytest.fixture
def methods(cell: Cells) -> Methods:
    """The full cache always right; good: from 50 to 100 %; bad: always wrong; large: measured above the sizes only."""
    right, wrong = [1.0] * N, [0.0] * N
    return [
        cell(right, "full", **held(1.0)),
        cell([1.0, 0.0] * (N // 2), "good", budget="0.1", **held(0.1)),
        cell(right, "good", budget="0.3", **held(0.3)),
        cell(wrong, "bad", budget="0.1", **held(0.1)),
        cell(wrong, "bad", budget="0.3", **held(0.3)),
        cell(right, "large", budget="0.5", **held(0.5)),
    ]


def places(made: Board, size: float) -> dict[str, Place]:
    (ranking,) = (ranking for ranking in made.rankings if ranking.size == size)
    return {place.policy: place for place in ranking.places}


def test_a_mix_of_two_cells_holds_the_bytes_and_the_mean_of_both(tmp_path: Path, methods: Methods) -> None:
    made = board([submission(tmp_path / "a", *methods)], silent, sizes=(0.1, 0.15, 0.3, 0.4))
    assert places(made, 0.1)["good"].budgets == ("0.1",)
    mixed = places(made, 0.15)["good"]
    assert (mixed.budgets, mixed.bytes) == (("0.1", "0.3"), 150.0)
    assert mixed.mean == pytest.approx(0.75 * 0.5 + 0.25 * 1.0)
    assert mixed.difference == pytest.approx(mixed.mean - 1.0)
    assert [ranking.size for ranking in made.rankings] == [0.1, 0.15, 0.3]  # nobody but "large" is beyond 0.3
    at = places(made, 0.3)
    assert "large" not in at
    assert (at["full"].group, at["good"].group, at["bad"].group) == ("a", "a", "b")
    assert [(at[name].first, at[name].last) for name in ("full", "good", "bad")] == [(1, 2), (1, 2), (3, 3)]


def test_one_pair_of_16_and_of_32_is_a_size_of_every_board(tmp_path: Path, cell: Cells) -> None:
    sizes, right = (1 / 32, 1 / 16), [1.0] * N
    two = [cell(right, name, budget=f"{size}", **held(size)) for size in sizes for name in ("one", "two")]
    made = board([submission(tmp_path / "a", cell(right, "full", **held(1.0)), *two)], silent)
    assert {*sizes} <= {ranking.size for ranking in made.rankings}


def test_eviction_before_the_question_is_a_table_of_its_own(tmp_path: Path, cell: Cells) -> None:
    names = ("one", "two")
    cells = [cell([1.0] * N, "full", **held(1.0))]
    cells += [cell([1.0] * N, name, schedule="prompt decode_every=1", **held(0.1)) for name in names]
    cells += [cell([0.0] * N, name, schedule="context", **held(0.1)) for name in names]
    made = board([submission(tmp_path / "a", *cells)], silent, sizes=(0.1,))
    assert [(ranking.moment, len(ranking.places)) for ranking in made.rankings] == [("after", 3), ("before", 3)]


def test_a_method_with_other_tasks_is_named_and_not_ranked(tmp_path: Path, methods: Methods, cell: Cells) -> None:
    other = cell([1.0] * N, "full", task="ruler/vt", **held(1.0)), cell([1.0] * N, "odd", task="ruler/vt", **held(0.1))
    few = cell([1.0] * 3, "few", **held(0.1))
    made = board([submission(tmp_path / "a", *methods, *other, few)], silent, sizes=(0.1,))
    (ranking,) = made.rankings
    assert {place.policy for place in ranking.places} == {"full", "good", "bad"}
    assert ranking.tasks == {"ruler/niah_single_1 512": N}
    assert [name.split()[0] for name in ranking.unranked] == ["few", "odd"]


def test_rows_without_bytes_and_without_a_full_cache_are_not_ranked(
    tmp_path: Path, methods: Methods, cell: Cells
) -> None:
    warned: list[str] = []
    board([submission(tmp_path / "a", *methods, cell([1.0] * N, "served"))], warned.append, sizes=(0.1,))
    assert any(f"{N} of " in text and "no measured bytes" in text for text in warned)
    with pytest.raises(NothingSelected, match="full cache on its prompts"):
        board([submission(tmp_path / "b", *methods[1:])], silent)


def test_a_page_names_its_files_and_a_test_model(
    tmp_path: Path, methods: Methods, capsys: pytest.CaptureFixture[str]
) -> None:
    embedded = submission(tmp_path / "a", *methods)
    assert main(["board", embedded, "--out", str(tmp_path / "site")]) == 0
    page = tmp_path / "site" / "index.html"
    assert f"wrote {page}" in capsys.readouterr().out.replace("\n", "").replace("  ", " ")
    assert "Model reference is the embedded test model: its ranks say that the code works" in page.read_text()
    other = submission(tmp_path / "b", *([replace(row, model="large") for row in rows] for rows in methods))
    assert "test model" not in " ".join(board([other], silent, sizes=(0.1,)).how)


def test_a_folder_needs_a_true_manifest(tmp_path: Path, methods: Methods) -> None:
    name = submission(tmp_path / "a", *methods)
    (tmp_path / "a" / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"has no manifest.json: kvbench pack --results"):
        board([name], silent)
    write_manifest(ResultsFolder(name), None)
    with Recorder(name) as recorder:
        recorder.append(methods[0])
    with pytest.raises(UserError, match=r"2 files not listed: .*kvbench pack --results"):
        board([name], silent)


def test_two_submissions_share_prompts_and_common_cells_are_gated(
    tmp_path: Path, methods: Methods, cell: Cells, capsys: pytest.CaptureFixture[str]
) -> None:
    first = submission(tmp_path / "a", *methods)
    mine = cell([1.0] * N, "good", budget="0.1", cell="mine", **held(0.1))
    second = submission(tmp_path / "b", methods[0], mine)
    made = board([first, second], silent, sizes=(0.1,))
    gated = [(6 * N, 0, ""), (N, 1, "inconclusive")]
    assert [(each.rows, each.gated, each.verdict) for each in made.submissions] == gated
    both = [(place.submission, place.mean) for place in made.rankings[0].places if place.policy == "good"]
    assert both == [(second, 1.0), (first, 0.5)]
    worse = submission(tmp_path / "c", cell([0.0] * N, "full", **held(1.0)))
    assert main(["board", first, worse, "--out", str(tmp_path / "site")]) == 5
    assert f"{worse} against {first}" in capsys.readouterr().err and not (tmp_path / "site").exists()


def test_the_page_has_no_script_and_shows_names_as_text(tmp_path: Path, methods: Methods, cell: Cells) -> None:
    hostile = cell([1.0] * N, "<script>alert(1)</script>", **held(0.1))
    write_board(board([submission(tmp_path / "a", *methods, hostile)], silent), tmp_path / "site")
    page = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert "<script" not in page and "&lt;script&gt;alert" in page and "http" not in page.replace("http-equiv", "")
    with (tmp_path / "site" / "board.csv").open(encoding="utf-8", newline="") as file:
        lines = [*csv.DictReader(file)]
    best = next(line for line in lines if line["policy"] == "good" and line["size"] == "0.2")
    assert (float(best["mean"]), best["budgets"], best["n"]) == (pytest.approx(0.75), "0.1 0.3", str(N))


def test_the_committed_rows_of_smollm2_have_a_board(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["board", str(ROOT / "results/smollm2/context.parquet"), "at=0.6", "--partial"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    ranks = {line[0]: line[-1] for line in lines if len(line) > 5}
    assert {"full", "kvzip", "lava@common"} <= {*ranks}
