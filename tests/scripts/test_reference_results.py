"""The committed rows of the embedded model: all there, the gate fails for what it must, and the pages are true."""

import hashlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread
from matplotlib.text import Text
from PIL import Image

from kvbench.config.overrides import parse
from kvbench.extras.claims.last_change import last_change
from kvbench.records import COLUMNS, Row, read_rows
from kvbench.records.moments import Span, as_metadata
from kvbench.records.parquet_rows import write_parquet
from kvbench.records.rows import rows_of
from kvbench.report.compare.compare import Difference
from kvbench.report.rows import describer, load_table
from kvbench.report.stats.paired_tests import holm
from kvbench.run.plan import plan
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.work.planned import cells_of

pytestmark = pytest.mark.filterwarnings("ignore:.* do not say which code made them")  # made before rows did

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    """The modules of scripts/reference_results."""
    sys.path.insert(0, str(SCRIPTS))
    from reference_results import (  # type: ignore[import-not-found]
        digits,
        forest,
        gate,
        pack,
        pages,
        pictures,
        sweeps,
        unpack,
        workers,
    )

    modules = (digits, forest, gate, pack, pages, pictures, sweeps, unpack, workers)
    yield SimpleNamespace(**{module.__name__.rpartition(".")[2]: module for module in modules})
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def committed(scripts: SimpleNamespace) -> Path:
    """What the gate reads of the committed rows."""
    return scripts.sweeps.REFERENCE / scripts.pack.GATE


OVERWRITTEN = ["snapkv@common", "ada_snapkv@common"]


@pytest.fixture(scope="module")
def few(committed: Path, scripts: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As few policies as can be told to be no worse: those of most rows."""
    rows = load_table(committed)
    rows = rows.filter(pc.is_in(rows["policy"], pa.array([*OVERWRITTEN, "h2o_obcache", "tova_obcache"])))
    return _write(rows, tmp_path_factory.mktemp("few") / "few.parquet", scripts)


def _write(rows: pa.Table, path: Path, scripts: SimpleNamespace) -> Path:
    write_parquet(rows, path, describer(scripts.sweeps.REFERENCE / "main.parquet"))
    return path


def _planted(committed: Path, path: Path, scripts: SimpleNamespace, **columns: object) -> Path:
    """The rows of two policies with columns overwritten, the others as they are."""
    rows = load_table(committed)
    hit = pc.is_in(rows["policy"], pa.array(OVERWRITTEN))
    for name, value in columns.items():
        kind = rows.schema.field(name).type
        rows = rows.set_column(
            rows.schema.get_field_index(name), name, pc.if_else(hit, pa.scalar(value, kind), rows[name])
        )
    return _write(rows, path, scripts)


def test_gate_passes_the_same_rows(scripts: SimpleNamespace, committed: Path, tmp_path: Path) -> None:
    assert scripts.gate.compared(committed, _planted(committed, tmp_path / "same.parquet", scripts)) == 0


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        ({"value": 0.0}, "regression"),
        ({"value": 0.5}, "for the same answer"),
        ({"kept_sha256": "0" * 64}, "not noise"),
        ({"prediction": "another", "top2_margin": 1.0}, "from the same kept pairs"),
    ],
    ids=["worse answers", "other values of the same answers", "other kept sets", "other answers from the same pairs"],
)
def test_gate_fails_what_is_planted(
    scripts: SimpleNamespace,
    few: Path,
    tmp_path: Path,
    planted: dict[str, object],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = scripts.gate.compared(few, _planted(few, tmp_path / "planted.parquet", scripts, **planted))
    assert code == 5 and message in capsys.readouterr().out


def test_gate_fails_one_broken_cell_among_many(
    scripts: SimpleNamespace, committed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other kept sets of one method, with answers as good: too few to show among all, all of that method."""
    rows = load_table(committed)
    hit = pc.and_(pc.equal(rows["score"], "vatp"), pc.equal(rows["policy"], "snapkv@common"))
    changed = pc.if_else(hit, pa.scalar("0" * 64), rows["kept_sha256"])
    rows = rows.set_column(rows.schema.get_field_index("kept_sha256"), "kept_sha256", changed)
    assert scripts.gate.compared(committed, _write(rows, tmp_path / "one.parquet", scripts)) == 5
    assert "of 1 methods more than three quarters" in capsys.readouterr().out


def test_rows_of_the_gate_are_of_all_cells_and_many_prompts(scripts: SimpleNamespace) -> None:
    """They are rows of main, with their kept sets; no policy has two cells on one prompt, none has few prompts."""
    main, gate = (load_table(scripts.sweeps.REFERENCE / name, COLUMNS) for name in ("main.parquet", scripts.pack.GATE))
    chosen = main.filter(pa.array(scripts.pack.rotated(main))).drop_columns(["kept_sha256", "file", "line"])
    assert (
        chosen.to_pylist() == gate.drop_columns(["kept_sha256", "file", "line"]).to_pylist()
        and not gate["kept_sha256"].null_count
    )
    rows = gate.select(["cell", "policy", "prompt_sha256"]).to_pylist()
    assert {row["cell"] for row in rows} == set(main["cell"].to_pylist())
    assert len({row["prompt_sha256"] for row in rows}) == 200
    counts = Counter((row["policy"], row["prompt_sha256"]) for row in rows)
    assert max(counts.values()) == 1 and min(Counter(policy for policy, _ in counts).values()) >= 28


def test_gate_lets_noise_pass(scripts: SimpleNamespace, few: Path, tmp_path: Path) -> None:
    """Another answer where two tokens were nearly as likely."""
    flipped = _planted(few, tmp_path / "noise.parquet", scripts, prediction="another", top2_margin=1e-5)
    assert scripts.gate.compared(few, flipped) == 0


def test_the_book_is_compared_by_its_loss(
    scripts: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hundredth of a nat is noise, three are not; a cell that is gone is told."""
    books = scripts.sweeps.REFERENCE / "books"
    rows = [Row.from_json(line) for line in (books / "rows" / "book.jsonl").open("rb")]
    cells = [row.cell for row in rows]
    assert len(rows) == 6 and scripts.gate.book_compared(books, books, cells) == 0
    for more, left, code in ((0.01, 6, 0), (0.03, 6, 5), (0.0, 5, 5)):
        fresh = tmp_path / f"{more}-{left}"
        (fresh / "rows").mkdir(parents=True)
        changed = [*rows[:-1], replace(rows[-1], value=rows[-1].value + more)]
        (fresh / "rows" / "book.jsonl").write_text("".join(row.to_json() + "\n" for row in changed[:left]))
        assert scripts.gate.book_compared(books, fresh, cells) == code, more
    assert "nats a token before" in (printed := capsys.readouterr().out) and "no loss" in printed


def test_parts_of_one_folder_are_packed_apart(scripts: SimpleNamespace, tmp_path: Path) -> None:
    """Rows of the cells of a part and no others, at most so many samples; what is known of other parts stays."""
    rows = scripts.sweeps.REFERENCE / "books"
    cells = sorted({json.loads(line)["cell"] for line in (rows / "rows" / "book.jsonl").open("rb")})
    scripts.workers.write_parts(tmp_path, {"one": cells[:2]})
    scripts.workers.write_parts(tmp_path, {"two": cells[2:]})
    parts = scripts.workers.read_parts(tmp_path)
    assert parts == {"one": cells[:2], "two": cells[2:]}
    for name, own in parts.items():
        file = tmp_path / f"{name}.parquet"
        assert scripts.pack.pack(rows, file, own, 1) == len(own)
        assert set(pq.read_table(file)["cell"].to_pylist()) == set(own)
    scripts.pack.copy_rows(rows, tmp_path / "copy", parts["two"])
    assert sorted(file.stem for file in (tmp_path / "copy" / "cells").iterdir()) == parts["two"]


def test_environments_of_packed_rows_are_named_and_no_others(scripts: SimpleNamespace) -> None:
    folder = scripts.sweeps.REFERENCE
    tables = [pq.read_table(file, columns=["environment"]) for file in folder.glob("*.parquet")]
    rows = [json.loads(line) for file in folder.glob("*/rows/*.jsonl") for line in file.open("rb")]
    named = {name for table in tables for name in table["environment"].to_pylist()}
    assert set(json.loads((folder / "environments.json").read_text())) == named | {row["environment"] for row in rows}


def test_committed_rows_are_all_there(scripts: SimpleNamespace) -> None:
    """As many cells and samples of them as asked for, no failures, no seconds, nothing of third parties but numbers."""
    for part in scripts.sweeps.row_set("reference").parts.values():
        if part.long or part.book or part.kept != "none":
            continue
        rows = pq.read_table(scripts.sweeps.REFERENCE / f"{part.name}.parquet")
        assert not rows["error"].drop_null() and not rows["evict_seconds"].drop_null(), part.name
        counts = rows.group_by(["task", "cell"]).aggregate([("sample", "count_distinct"), ("sample", "max")])
        assert set(counts["sample_count_distinct"].to_pylist()) == {part.samples}, part.name
        assert set(counts["sample_max"].to_pylist()) == {part.samples - 1}, part.name
        assert set(counts["task"].to_pylist()) == set(part.tasks), part.name


def test_the_committed_rows_tell_policies_and_scores_apart(scripts: SimpleNamespace) -> None:
    """Of each policy four cells or more answer 30 to 90 % of what the full cache answers; OBCache's key score differs
    from attention.
    """
    rows = pq.read_table(scripts.sweeps.REFERENCE / "main.parquet")
    rows = rows.filter(pc.equal(rows["store"], "flat"))
    means = rows.group_by(["task", "policy", "score", "budget"]).aggregate([("value", "mean")]).to_pylist()
    full = {cell["task"]: cell["value_mean"] for cell in means if cell["policy"] == "full"}
    common = ("snapkv@common", "ada_snapkv@common", "lava@common", "cake@common")
    for policy in ("h2o_obcache", "tova_obcache", "streaming_llm", "kvzip", *common):
        shares = [cell["value_mean"] / full[cell["task"]] for cell in means if cell["policy"] == policy]
        assert sum(0.3 <= share <= 0.9 for share in shares) >= 4, policy
    for policy in ("h2o_obcache", "tova_obcache"):
        sides = (f"main policy={policy},score={score}" for score in ("attn", "obcache_key"))
        line = scripts.pages.difference(scripts.pages.Comparison(policy, *sides))
        assert line.low > 0 or line.high < 0, policy


def test_pictures_are_drawn_from_the_committed_rows(scripts: SimpleNamespace, tmp_path: Path) -> None:
    """Of at least 20 samples a mean, and as they would be drawn now; another matplotlib may place a line elsewhere."""
    pictures = scripts.pictures
    pictures.draw_all(tmp_path)
    for name, (kind, rows, settings) in pictures.PICTURES.items():
        by = "policy" if kind == "needle" else "cell"
        counts = Counter(load_table(rows, [by])[by].to_pylist())
        assert min(counts.values()) >= 20, (name, settings)
    for name, (numbers, _) in pictures.PROBED.items():
        table = pq.read_table(numbers, columns=["cell", "sample", "window", "value"])
        table = table.filter(pc.is_valid(table["value"]))
        counts = table.group_by(["cell", "window"]).aggregate([("sample", "count_distinct")])
        assert min(counts["sample_count_distinct"].to_pylist()) >= 20, name
    for name in (*pictures.PICTURES, *pictures.PROBED, *pictures.FORESTS, *pictures.CLAIMED):
        committed, drawn = (imread(folder / name) for folder in (pictures.IMAGES, tmp_path))
        assert committed.shape == drawn.shape, f"docs/images/{name} is stale: make pictures"
        assert abs(committed - drawn).mean() < 0.002, f"docs/images/{name} is stale: make pictures"


def test_a_comparison_has_two_sides_with_names(scripts: SimpleNamespace) -> None:
    """Every label of the pages is read back from its parts; A's name stands left of its line, B's right of it."""
    for page in scripts.pages.PAGES:
        for comparison in scripts.pages.lines_of(page.read_text("utf-8")):
            common, a, b = scripts.forest.sides(comparison.label)
            pair = (f"{a}{between}{b}" for between in (", ", "; "))
            assert a and b and comparison.label in {": ".join(filter(None, (common, text))) for text in pair}
    with pytest.raises(ValueError, match="'H2O' names one side"):
        scripts.forest.sides("H2O")
    colour = scripts.forest.COLOURS["worse"]
    line = scripts.forest.Drawn("heading", "H2O: attn", "caote", 40, -10.0, -20.0, -5.0, colour)
    figure = scripts.forest._forest([line], scripts.forest.OF_PAGES)
    FigureCanvasAgg(figure).draw()
    places = {text.get_text(): text.get_window_extent() for text in figure.findobj(Text) if text.get_text()}
    (axis,) = figure.axes
    zero, panel = axis.transData.transform((0, 0))[0], axis.get_window_extent()
    assert places["H2O: attn"].x1 < panel.x0 and panel.x1 < places["caote  (n=40)"].x0
    assert places["← A better"].x1 < zero < places["B better →"].x0
    shown = next(one for one in axis.lines if one.get_marker() == "o")
    assert shown.get_xdata() == [-10.0] and shown.get_color() == scripts.forest.A_BETTER


def test_the_picture_of_the_page_shows_the_committed_rows(scripts: SimpleNamespace) -> None:
    rows = hashlib.sha256((scripts.sweeps.REFERENCE / "main.parquet").read_bytes()).hexdigest()
    with Image.open(scripts.pictures.IMAGES / "page.png") as image:
        assert image.info.get("rows") == rows, "docs/images/page.png is stale: make pictures, where Chromium is"


def test_a_book_that_is_not_there_is_left_out(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVBENCH_DATA", str(tmp_path))
    known = scripts.sweeps.row_set("reference")
    assert scripts.workers.make_all(known, [known.parts["books"]], tmp_path / "results", None, 1) == 0
    assert "left out" in capsys.readouterr().err and not (tmp_path / "results").exists()


def test_without_its_model_nothing_is_run(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVBENCH_DATA", str(tmp_path))
    assert scripts.gate.gate(scripts.sweeps.row_set("smollm2"), tmp_path / "results", 1) == 0
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and "kvbench data pull smollm2" in captured.err and not captured.out
    assert not (tmp_path / "results").exists()


def test_a_run_goes_on_from_packed_rows(scripts: SimpleNamespace, tmp_path: Path) -> None:
    """Unpacked rows count as made, and packed again they are the same file; rows of a folder are not doubled."""
    rows = load_table(scripts.sweeps.REFERENCE / "main.parquet")
    few = rows.filter(pc.and_(pc.less(rows["sample"], 3), pc.equal(rows["policy"], "snapkv@common")))
    main = scripts.sweeps.row_set("reference").parts["main"]
    packed = SimpleNamespace(name="few", parts={"main": main}, folder=tmp_path / "packed")
    packed.folder.mkdir()
    moment = datetime(2026, 11, 29, 3, 31, tzinfo=UTC)
    spans = {cell: Span(moment, moment + timedelta(hours=1)) for cell in few["cell"].unique().to_pylist()[1:]}
    file = packed.folder / "main.parquet"
    write_parquet(few, file, describer(scripts.sweeps.REFERENCE / "main.parquet"), as_metadata(spans))
    named = set(few["environment"].to_pylist())
    environments = json.loads((scripts.sweeps.REFERENCE / "environments.json").read_text())
    (packed.folder / "environments.json").write_text(json.dumps({name: environments[name] for name in named}))
    run = tmp_path / "run"
    scripts.unpack.unpack_all(packed, run)
    made = {(row.cell, row.sample) for row in read_rows(run)}
    assert made == set(zip(few["cell"].to_pylist(), few["sample"].to_pylist(), strict=True))
    assert {path.stem for path in (run / "environments").iterdir()} == named
    again = tmp_path / "again.parquet"
    scripts.pack.pack(run, again, scripts.workers.read_parts(run)["main"], 100)
    again, before = (pq.read_table(path).drop_columns(["kept_sha256"]) for path in (again, file))  # hashes of few stay
    assert again.equals(before) and again.schema.metadata[b"kvbench.made"] == before.schema.metadata[b"kvbench.made"]
    with pytest.raises(UserError, match="has rows of part main already"):
        scripts.unpack.unpack_all(packed, run)


def test_a_part_that_is_run_alone_keeps_the_cells_of_its_file(scripts: SimpleNamespace, tmp_path: Path) -> None:
    main = scripts.sweeps.row_set("reference").parts["main"]
    one = replace(main, sweeps=("policy=full",), file="both")
    other = replace(one, name="other", sweeps=("policy=snapkv budget=0.5",))
    known = SimpleNamespace(
        name="few", pulled=None, parts={"main": one, "other": other, "third": replace(main, name="third")}
    )
    scripts.workers.write_parts(tmp_path, {"main": ["unpacked, of both"], "third": ["unpacked"]})
    assert scripts.workers.make_all(known, [one], tmp_path, None, 0) == 0
    parts = scripts.workers.read_parts(tmp_path)
    assert parts["main"] and parts["other"] and not set(parts["main"]) & set(parts["other"])
    assert parts["third"] == ["unpacked"] and "unpacked, of both" not in parts["main"]


def test_a_run_that_has_no_time_left_says_that_it_goes_on(
    scripts: SimpleNamespace, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    part = replace(scripts.sweeps.row_set("reference").parts["main"], sweeps=("policy=full",), tasks={"ruler/vt": ""})
    known = SimpleNamespace(name="few", pulled=None, parts={"main": part})
    assert scripts.workers.make_all(known, [part], tmp_path, 2, 1, seconds=0) == 75
    assert "stopped by --seconds after a complete prompt; the same command goes on" in capfd.readouterr().err
    assert not (tmp_path / "rows").exists()


def test_every_task_gets_its_first_prompts_before_any_gets_many(scripts: SimpleNamespace) -> None:
    words = ("policy=full", "task=ruler/vt,ruler/fwe", "task.context_length=512,1024")
    cells = cells_of(parse([*words, "task.samples=4"]), set())[1]
    cells = [*cells[:3], replace(cells[3], task=replace(cells[3].task, samples=2))]
    planned = plan(cells, {(cells[0].id, 0)})
    rounds = scripts.workers.in_rounds(planned)
    assert rounds.rows_to_do == planned.rows_to_do == 13
    order = [(group.cells[0].id, *job.missing) for group in rounds.groups for job in group.jobs]
    names = [cell.id for cell in cells]
    assert [(names.index(cell), *samples) for cell, *samples in order] == [
        (1, 0), (2, 0), (3, 0), (0, 1), (1, 1), (2, 1), (3, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 2), (2, 3)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "page",
    [
        "docs/reference/claims.md",
        "docs/reference/sensitivity.md",
        "kvbench/extras/readers/readers.md",
        "docs/findings.md",
        "docs/reference/smollm2-claims.md",
        "docs/reference/confirm.md",
        "results/smollm2/README.md",
    ],
)
def test_pages_say_what_the_rows_say(scripts: SimpleNamespace, page: str) -> None:
    file = SCRIPTS.parent / page
    text = file.read_text("utf-8")
    assert file in scripts.pages.PAGES
    assert scripts.pages.lines_of(text) or any(
        part.search(text) for part in (scripts.pages.CARD, scripts.pages.DIGITS, scripts.pages.CLAIMS)
    ), f"{page} shows no rows"
    made = scripts.pages.rewritten(text)
    if last_change(scripts.sweeps.RESULTS / "confirm" / "claims.yaml") is None:  # a copy without the history
        made, text = (re.sub(r"(?m)^\*Claims: .*", "", each) for each in (made, text))
    assert made == text, f"{page} is stale: python scripts/reference.py pages"


def test_rows_of_a_language_model_are_a_part_of_their_sweeps(scripts: SimpleNamespace) -> None:
    """Of its cells alone, no more prompts than asked for; no failures, no seconds."""
    known = scripts.sweeps.row_set("smollm2")
    packed = [part for part in known.parts.values() if (known.folder / f"{part.file}.parquet").is_file()]
    files = grouped(packed, lambda part: part.file)
    assert {"main", "settings", "context", "card"} <= set(files)
    for name, parts in files.items():
        rows = pq.read_table(known.folder / f"{name}.parquet")
        assert set(rows["model"].to_pylist()) == {"smollm2"}, name
        assert not rows["error"].drop_null() and not rows["evict_seconds"].drop_null(), name
        assert max(rows["sample"].to_pylist()) < max(part.samples for part in parts), name


def test_digits_of_a_number_are_counted_up_to_the_first_wrong_one(scripts: SimpleNamespace) -> None:
    """Against what the full cache answers; prompts that it does not answer do not count."""
    answers = {"1234567.": 7, " 1234.": 4, "the number is 12": 2, "7654321": 0, "none": 0, "1239567": 3}
    line = load_table(scripts.sweeps.REFERENCE / "main.parquet").slice(0, 1)
    (row,) = rows_of(line)
    full = [replace(row, sample=sample, value=1.0, prediction="1234567") for sample in range(len(answers))]
    numbers = scripts.digits.right_numbers([*full, replace(row, sample=9, value=0.0, prediction="1")])
    assert len(numbers) == 6
    cut = [replace(row, sample=sample, prediction=text) for sample, text in enumerate(answers)]
    assert [scripts.digits.digits_right(row, "1234567") for row in cut] == list(answers.values())
    beside = replace(row, sample=9, prediction="1")
    assert scripts.digits.digits_line("cut", [*cut, beside], numbers) == "| cut | 6 | 2.7 | 2 | 2 | 1 | 1 |\n"
    with pytest.raises(ValueError, match="7 rows of 6 prompts"):
        scripts.digits.digits_line("twice", [*cut, cut[0]], numbers)


@pytest.mark.parametrize(
    ("change", "margin", "p", "p_equal", "line"),
    [
        (0.95, 0.01, 0.04, 1.0, "60.00 | 57.00 | -5.0 % [-5.9, -4.0] | 0.040 | 1.000 | better"),
        (1.05, 0.01, 0.04, 1.0, "60.00 | 63.00 | +5.0 % [+4.0, +6.1] | 0.040 | 1.000 | worse"),
        (1.005, 0.01, 1.0, 0.01, "60.00 | 60.30 | +0.5 % [-0.5, +1.5] | 1.000 | 0.010 | equivalent (within 2 %)"),
        (1.005, 0.01, 1.0, 0.06, "60.00 | 60.30 | +0.5 % [-0.5, +1.5] | 1.000 | 0.060 | inconclusive"),
    ],
)
def test_perplexities_are_compared_in_percent_and_lower_is_better(
    scripts: SimpleNamespace, change: float, margin: float, p: float, p_equal: float, line: str
) -> None:
    """`margin`: half of the interval of the mean difference, in nats; it decides nothing."""
    changed, before = math.log(change), math.log(60)
    numbers = {"mean_a": before, "mean_b": before + changed, "low": changed - margin, "high": changed + margin}
    difference = Difference(key={}, metric="nll", rate=False, n=20, clusters=20, difference=changed, **numbers)
    judged = scripts.pages.Judged(difference, p, p_equal)
    assert scripts.pages._line(scripts.pages.Comparison("books", "", ""), judged) == f"| books | 20 | {line} |\n"


def test_equalities_are_corrected_as_differences_are(scripts: SimpleNamespace) -> None:
    """Over all lines that are judged together."""
    comparison = scripts.pages.Comparison
    full = [comparison(f"full, {store}", "main policy=full,store=flat", f"main policy=full*,store={store}")
            for store in ("int8", "int2", "kivi2")]  # fmt: skip
    alone = [scripts.pages.judged([each])[0] for each in full]
    together = scripts.pages.judged(full)
    assert [each.verdict for each in together] == ["equivalent (within 5 points)", "worse", "worse"]
    for name in ("p", "p_equivalent"):
        p = [getattr(each, name) for each in alone]
        assert [getattr(each, name) for each in together] == pytest.approx(holm(p)), name
    assert alone[0].p_equivalent < 1e-6 and alone[1].p_equivalent > 0.99


def test_lines_of_smollm2_are_of_one_budget_a_side(scripts: SimpleNamespace) -> None:
    """A mean over budgets would hide effects of opposite sign."""
    for line in scripts.pages.lines_of(
        (SCRIPTS.parent / "docs" / "reference" / "smollm2-claims.md").read_text("utf-8")
    ):
        for side in (line.a, line.b):
            assert len({row.budget for row in scripts.pages._side(side).rows}) == 1, side
