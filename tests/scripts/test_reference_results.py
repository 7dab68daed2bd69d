"""The committed rows of the embedded model: all there, the gate fails for what it must, and the pages are true."""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from matplotlib.image import imread
from PIL import Image

from kvbench.records import Row
from kvbench.report.rows import describer, load_table, write_parquet

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    """The modules of scripts/reference_results."""
    sys.path.insert(0, str(SCRIPTS))
    from reference_results import gate, pack, pages, pictures, sweeps, workers  # type: ignore[import-not-found]

    yield SimpleNamespace(gate=gate, workers=workers, pack=pack, pages=pages, pictures=pictures, sweeps=sweeps)
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def committed(scripts: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the gate reads of two policies of the committed rows."""
    rows = load_table(scripts.sweeps.REFERENCE / "main.parquet")
    policies = pc.is_in(rows["policy"], pa.array(["full", "snapkv"]))
    few = rows.filter(pc.and_(pc.less(rows["sample"], scripts.pack.GATED), policies))
    return _write(few, tmp_path_factory.mktemp("committed") / "main.parquet", scripts)


def _write(rows: pa.Table, path: Path, scripts: SimpleNamespace) -> Path:
    write_parquet(rows, path, describer(scripts.sweeps.REFERENCE / "main.parquet"))
    return path


def _planted(committed: Path, path: Path, scripts: SimpleNamespace, **columns: object) -> Path:
    """The rows of snapkv with columns overwritten, the others as they are."""
    rows = load_table(committed)
    hit = pc.equal(rows["policy"], "snapkv")
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
        ({"prompt_sha256": "0" * 64}, "prompts"),
        ({"cache_bytes": 10**9}, "bytes"),
    ],
    ids=[
        "worse answers",
        "other values of the same answers",
        "other kept sets",
        "other answers from the same pairs",
        "other prompts",
        "more bytes",
    ],
)
def test_gate_fails_what_is_planted(
    scripts: SimpleNamespace,
    committed: Path,
    tmp_path: Path,
    planted: dict[str, object],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = scripts.gate.compared(committed, _planted(committed, tmp_path / "planted.parquet", scripts, **planted))
    assert code == 5 and message in capsys.readouterr().out


def test_gate_fails_one_broken_cell_among_many(
    scripts: SimpleNamespace, committed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other kept sets of one cell, with answers as good: too few to show among all, all of that cell."""
    rows = load_table(committed)
    hit = pc.and_(pc.equal(rows["score"], "vatp"), pc.equal(rows["budget"], "0.4"))
    changed = pc.if_else(hit, pa.scalar("0" * 64), rows["kept_sha256"])
    rows = rows.set_column(rows.schema.get_field_index("kept_sha256"), "kept_sha256", changed)
    assert scripts.gate.compared(committed, _write(rows, tmp_path / "one.parquet", scripts)) == 5
    assert "of 1 cells more than three quarters" in capsys.readouterr().out


def test_gate_lets_noise_pass(scripts: SimpleNamespace, committed: Path, tmp_path: Path) -> None:
    """Another answer where two tokens were nearly as likely."""
    flipped = _planted(committed, tmp_path / "noise.parquet", scripts, prediction="another", top2_margin=1e-5)
    assert scripts.gate.compared(committed, flipped) == 0


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
    for part in scripts.sweeps.parts().values():
        if part.long or part.book or part.kept != "none":
            continue
        rows = pq.read_table(scripts.sweeps.REFERENCE / f"{part.name}.parquet")
        assert not rows["error"].drop_null() and not rows["evict_seconds"].drop_null(), part.name
        counts = rows.group_by(["task", "cell"]).aggregate([("sample", "count_distinct"), ("sample", "max")])
        assert set(counts["sample_count_distinct"].to_pylist()) == {part.samples}, part.name
        assert set(counts["sample_max"].to_pylist()) == {part.samples - 1}, part.name
        assert set(counts["task"].to_pylist()) == set(part.tasks), part.name


SHOWN = ("h2o", "tova", "streaming_llm", "snapkv", "ada_snapkv", "lava", "cake", "kvzip")
HOSTS = ("h2o", "tova")


@pytest.fixture(scope="module")
def means(scripts: SimpleNamespace) -> dict[tuple[str, str, str | None, str], float]:
    """The mean of every cell that is stored as it was computed, by task, policy, score and budget."""
    rows = pq.read_table(scripts.sweeps.REFERENCE / "main.parquet")
    rows = rows.filter(pc.equal(rows["store"], "flat"))
    cells = rows.group_by(["task", "policy", "score", "budget"]).aggregate([("value", "mean")]).to_pylist()
    return {(row["task"], row["policy"], row["score"], row["budget"]): row["value_mean"] for row in cells}


@pytest.mark.parametrize("policy", SHOWN)
def test_a_policy_is_seen_between_floor_and_ceiling(
    means: dict[tuple[str, str, str | None, str], float], policy: str
) -> None:
    """At least four cells answer 30 to 90 % of what the full cache answers."""
    full = {task: mean for (task, name, _, _), mean in means.items() if name == "full"}
    shares = [mean / full[task] for (task, name, _, _), mean in means.items() if name == policy]
    assert sum(0.3 <= share <= 0.9 for share in shares) >= 4


@pytest.mark.parametrize("policy", HOSTS)
def test_two_scores_of_a_host_differ(scripts: SimpleNamespace, policy: str) -> None:
    """The paired difference of OBCache's key score from attention has an interval without 0."""
    sides = (f"main policy={policy},score={score}" for score in ("attn", "obcache_key"))
    line = scripts.pages.difference(scripts.pages.Comparison(policy, *sides))
    assert line.low > 0 or line.high < 0


def test_pictures_are_drawn_from_the_committed_rows(scripts: SimpleNamespace, tmp_path: Path) -> None:
    """Of at least 20 samples a mean, and as they would be drawn now; another matplotlib may place a line elsewhere."""
    pictures = scripts.pictures
    pictures.draw_all(tmp_path)
    for name, (_, rows, settings) in pictures.PICTURES.items():
        counts = Counter(load_table(rows, ["cell"])["cell"].to_pylist())
        assert min(counts.values()) >= 20, (name, settings)
    for name, (numbers, _) in pictures.PROBED.items():
        table = pq.read_table(numbers, columns=["cell", "sample", "window", "value"])
        table = table.filter(pc.is_valid(table["value"]))
        counts = table.group_by(["cell", "window"]).aggregate([("sample", "count_distinct")])
        assert min(counts["sample_count_distinct"].to_pylist()) >= 20, name
    for name in (*pictures.PICTURES, *pictures.PROBED):
        committed, drawn = (imread(folder / name) for folder in (pictures.IMAGES, tmp_path))
        assert committed.shape == drawn.shape, f"docs/images/{name} is stale: make pictures"
        assert abs(committed - drawn).mean() < 0.002, f"docs/images/{name} is stale: make pictures"


def test_the_picture_of_the_page_shows_the_committed_rows(scripts: SimpleNamespace) -> None:
    rows = hashlib.sha256((scripts.sweeps.REFERENCE / "main.parquet").read_bytes()).hexdigest()
    with Image.open(scripts.pictures.IMAGES / "page.png") as image:
        assert image.info.get("rows") == rows, "docs/images/page.png is stale: make pictures, where Chromium is"


def test_a_book_that_is_not_there_is_left_out(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVBENCH_DATA", str(tmp_path))
    assert scripts.workers.make_all([scripts.sweeps.parts()["books"]], tmp_path / "results", None, 1) == 0
    assert "left out" in capsys.readouterr().err and not (tmp_path / "results").exists()


@pytest.mark.parametrize("page", ["claims.md", "sensitivity.md"])
def test_pages_say_what_the_rows_say(scripts: SimpleNamespace, page: str) -> None:
    text = (SCRIPTS.parent / "docs" / page).read_text("utf-8")
    assert scripts.pages.lines_of(text), f"docs/{page} compares nothing"
    assert scripts.pages.rewritten(text) == text, f"docs/{page} is stale: python scripts/reference.py pages"
