"""kvbench run: rows, sharing, resuming, failing samples."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.records import COLUMNS
from kvbench.run import local, prefill_job
from kvbench.tasks.ruler.niah import Niah
from kvbench.work.planned import plan_sweep, with_reference
from tests.cli.conftest import Command, outcomes, rows_of

LISTS = ("policy=full,h2o_obcache,tova_obcache,snapkv", "score=attn,obcache_joint", "budget=0.1,0.3")
CELLS = 1 + 3 * 2 * 2


BLANK = {"error", "reasoning", "reasoning_tokens", "question_number", "border_tokens", "recurrent_layers"}
BLANK |= {"recurrent_bytes", "weights", "first_token_seconds", "production_seconds", "replaces"}
"""Columns that a usual row lacks."""


def test_one_cell_leaves_a_full_row_a_sample(kvbench: Command, tiny: tuple[str, ...]) -> None:
    finished = kvbench("run", *tiny, "policy=snapkv", "score=obcache_joint", "budget=0.2")
    assert finished.code == 0, finished.err
    rows = rows_of(Path("out"))
    assert [row.sample for row in rows] == [0, 1, 2]
    for row in rows:
        assert {name for name in COLUMNS if getattr(row, name) is None} <= BLANK
        assert row.policy == "snapkv" and row.score == "obcache_joint" and row.budget == "0.2"
        assert row.prompt_tokens is not None and row.kept_tokens == int(row.prompt_tokens * 0.2 + 0.5)
        assert row.cache_bytes == row.kept_tokens * 2 * 2 * 8 * 2 * 4  # layers, KV heads, head size, K and V, float32
        assert row.full_cache_bytes == row.prompt_tokens * 2 * 2 * 8 * 2 * 4
        assert row.allocated_bytes == row.cache_bytes + row.kept_tokens * 2 * 2 * 4  # a position a pair
        assert row.peak_bytes is not None and row.peak_bytes > row.cache_bytes  # and room for the answer
        assert row.new_tokens == 4
        assert row.kept_fraction is not None and abs(row.kept_fraction - 0.2) < 0.01
        assert row.prefill_seconds and row.evict_seconds and row.decode_seconds
    assert len({row.kept_sha256 for row in rows}) == len({row.output_sha256 for row in rows}) == 3
    assert "snapkv" in finished.out and "obcache_joint" in finished.out
    described = json.loads(next(Path("out/cells").iterdir()).read_text())
    assert described["policy"]["window"] == 32 and described["task"]["version"].startswith("ruler-")
    assert Path("out/environments", f"{rows[0].environment}.json").is_file()


def test_the_same_command_resumes_and_a_finished_one_loads_nothing(
    kvbench: Command, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells of a prompt share its prefill; of several numbers of samples the largest counts."""
    assert kvbench("run", *tiny, *LISTS, "task.samples=1").code == 0
    more = kvbench("run", *tiny, *LISTS, "task.samples=1,3,2")
    rows = rows_of(Path("out"))
    tokens = {row.sample: row.prompt_tokens or 0 for row in rows}
    assert len(rows) == CELLS * 3 and sorted(tokens) == [0, 1, 2]
    assert f"{CELLS * 2} rows to run from 2 prompts ({CELLS} rows are there already)" in more.err
    assert f"{CELLS * 2} rows from 2 prefills of {tokens[1] + tokens[2]} tokens" in more.err
    before = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    monkeypatch.setattr(local, "model_info", lambda spec: pytest.fail("a model was opened"))
    finished = kvbench("run", *tiny, *LISTS)
    assert finished.code == 0 and f"all {CELLS * 3} rows are in out" in finished.err
    assert finished.out == more.out
    assert before == {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}


def test_a_budget_one_sample_cannot_hold_is_an_error_row(kvbench: Command, tiny: tuple[str, ...]) -> None:
    """Other cells go on, the row says why, the command exits 4 and the table counts it."""
    finished = kvbench("run", *tiny, "policy=h2o_obcache", "budget=0.01,0.2")
    assert finished.code == 4
    failed = [row for row in rows_of(Path("out")) if row.budget == "0.01"]
    assert len(failed) == 3
    assert all(
        row.value is None and row.error and "cannot hold the 16 protected tokens of h2o_obcache" in row.error
        for row in failed
    )
    assert all(row.error is None for row in rows_of(Path("out")) if row.budget == "0.2")
    assert kvbench("run", *tiny, "policy=h2o_obcache", "budget=0.2").code == 0


def test_what_the_second_model_or_task_cannot_do_stops_before_the_first_row(
    kvbench: Command, tiny: tuple[str, ...], tiny_model: Path
) -> None:
    for changes, message in (
        (["task=ruler/niah_single_1,ruler/niah_multikey_3", "task.context_length=256"], "smallest context_length"),
        (["task.stop=[No such text]"], "task.stop='No such text' is not one token"),
        (["model.max_length=100"], "is more than"),
        (["model.chat=auto,required"], "model.chat=required"),
    ):
        finished = kvbench("run", *tiny, *changes)
        assert finished.code == 2 and message in finished.err
        assert not Path("out").exists()


def test_an_unforeseen_error_exits_one_with_a_traceback_file(
    kvbench: Command, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "load", lambda *_: 1 / 0)
    finished = kvbench("run", *tiny)
    assert finished.code == 1 and finished.err.count("ZeroDivisionError") == 1
    (file,) = Path("out/errors").iterdir()
    assert str(file) in finished.err and "Traceback" in file.read_text()


@pytest.mark.parametrize("tile", [1, 16])
def test_a_sample_that_fails_as_nobody_foresaw_is_an_error_row(
    kvbench: Command, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tile: int
) -> None:
    """The others go on, decoded with it or not; what fails alike shares a traceback file, which the row names."""
    prompt_of = prefill_job.prompt_of
    monkeypatch.setattr(
        prefill_job, "prompt_of", lambda *given: prompt_of(*given) if given[1].id == 1 else [][given[1].id * 0]
    )
    finished = kvbench("run", *tiny, "policy=full,h2o_obcache", f"model.max_batch={tile}")
    assert finished.code == 4
    failed = [row for row in rows_of(Path("out")) if row.error]
    assert sorted((row.policy, row.sample) for row in failed) == [
        ("full", 0),
        ("full", 2),
        ("h2o_obcache", 0),
        ("h2o_obcache", 2),
    ]
    (file,) = Path("out/errors").iterdir()
    assert {row.error for row in failed} == {f"IndexError: list index out of range; traceback in errors/{file.name}"}
    assert "Traceback" in file.read_text()


def test_a_faulty_score_fails_its_own_rows_and_leaves_a_traceback(kvbench: Command, tiny: tuple[str, ...]) -> None:
    Path("scores").mkdir()
    lines = [
        "from dataclasses import dataclass",
        "from kvbench.eviction.scores.score import Score",
        "@dataclass(frozen=True)",
        "class Mine(Score):",
        "    name: str = 'mine'",
        "    def __call__(self, layer, window, reduce):",
        "        return window.queries",
    ]
    Path("scores/mine.py").write_text("\n".join(lines))
    finished = kvbench("run", *tiny, "policy=full,h2o_obcache", "score=attn,scores/mine.py", "budget=0.3")
    assert finished.code == 4, finished.err
    rows = rows_of(Path("out"))
    assert {row.score for row in rows if row.error} == {"mine"} == {row.score for row in rows} - {"attn", None}
    (file,) = Path("out/errors").iterdir()
    assert {row.error for row in rows if row.error} == {
        "score mine (scores/mine.py, line 7): AttributeError: 'NoneType' object has no attribute 'queries'; a score "
        f"that reads `window` declares inputs = ScoreInputs(window=True); traceback in errors/{file.name}"
    }
    assert "return window.queries" in file.read_text()


def test_a_context_can_be_cut_before_its_question_is_read(kvbench: Command, tiny: tuple[str, ...]) -> None:
    """Both schedules in one command, every policy, each with its own prefills."""
    after = "schedule.evict_after=prompt,context"
    finished = kvbench("run", *tiny, "policy=full,h2o_obcache", "budget=0.3", after)
    assert finished.code == 0, finished.err
    rows = rows_of(Path("out"))
    assert len(rows) == 12 and "12 rows from 6 prefills" in finished.err
    by = {schedule: [row for row in rows if row.schedule == schedule] for schedule in ("prompt", "context")}
    assert {row.prompt_sha256 for row in by["prompt"]} == {row.prompt_sha256 for row in by["context"]}
    for whole, context in zip(by["prompt"], by["context"], strict=True):
        assert context.full_cache_bytes < whole.full_cache_bytes  # type: ignore[operator]
    planned = kvbench("plan", *tiny, "policy=full,h2o_obcache", "budget=0.3", after, "task.samples=4")
    assert "12 of 16 rows are in out" in planned.out and "prefill: 1 context," in planned.out


def test_a_model_with_recurrent_layers_says_so_in_its_rows(kvbench: Command) -> None:
    """One of four layers has keys: budgets and cache bytes count it alone, the states have columns of their own."""
    settings = ("task.samples=1", "task.context_length=256", "task.max_new_tokens=3", "results.dir=out")
    schedules = "schedule.evict_after=prompt,context"
    finished = kvbench("run", "model=shape/tiny-qwen3-next", "policy=full,snapkv", "budget=0.5", schedules, *settings)
    assert finished.code == 0, finished.err
    rows = rows_of(Path("out"))
    assert len(rows) == 4 and {row.recurrent_layers for row in rows} == {3}
    width = 2 * 2 * 6 + 4 * 10  # what a layer convolves: queries, keys and values
    assert {row.recurrent_bytes for row in rows} == {3 * 4 * (4 * width + 4 * 6 * 10)}
    for row in rows:
        assert row.cache_bytes == (row.kept_tokens or 0) * 2 * 2 * 10 * 4 and row.local_layers == 0


def test_a_model_with_local_layers_says_so_in_its_rows(kvbench: Command) -> None:
    """Two of four layers see 64 tokens: budgets count the other two, bytes all four."""
    task = ("task.samples=1", "task.context_length=256", "task.max_new_tokens=3", "results.dir=out")
    finished = kvbench("run", "model=shape/tiny-gemma2", "policy=full,snapkv", "budget=0.5", *task)
    assert finished.code == 0, finished.err
    warning = "warning: random weights (shape/tiny-gemma2): accuracy is meaningless here; time and memory are valid\n\n"
    assert finished.out.startswith(warning) and "snapkv" in finished.out
    table = ("report", "table", "--results", "out", "--format")
    assert kvbench(*table, "markdown").out.startswith(f"> {warning}") and "random" not in kvbench(*table, "csv").out
    whole, cut = sorted(rows_of(Path("out")), key=lambda row: str(row.policy))
    pair = 2 * 2 * 10 * 4  # keys and values of 10 float32 numbers, two KV heads
    tokens, kept = whole.prompt_tokens or 0, cut.kept_tokens or 0
    assert (whole.local_layers, whole.kept_tokens, cut.kept_tokens) == (2, tokens, (tokens + 1) // 2)
    assert whole.cache_bytes == cut.full_cache_bytes == 2 * pair * (tokens + 63)
    assert cut.cache_bytes == 2 * pair * (kept + 63)


def test_the_full_cache_stands_beside_the_cells(kvbench: Command, tiny: tuple[str, ...]) -> None:
    """It is the cell of policy=full, from the same prefill, and no other cell is named differently for it."""
    tiny = (*tiny, "task.samples=2")
    method = (*tiny, "policy=snapkv", "budget=0.2", "policy.window=8")
    alone = kvbench("run", *method, "reference=none", "results.dir=alone")
    assert alone.code == 0 and {row.policy for row in rows_of(Path("alone"))} == {"snapkv window=8"}
    beside = kvbench("run", *method, "reference=full")
    assert beside.code == 0 and "2 cells, 4 rows to run from 2 prompts" in beside.err
    assert "4 rows from 2 prefills" in beside.err and "full: no eviction" in beside.out
    named = kvbench("run", *tiny, "policy=full,snapkv", "budget=0.2", "reference=full", "results.dir=named")
    assert "2 cells, 4 rows" in named.err
    both, full = outcomes(Path("out")), outcomes(Path("named"))
    assert outcomes(Path("alone")).items() <= both.items()
    assert {key: row for key, row in full.items() if row["policy"] == "full"}.items() <= both.items()
    assert kvbench("run", *method, "reference=full").err.startswith("kvbench: 2 cells, all 4 rows are in out")


@pytest.mark.parametrize(
    ("settings", "full"),
    [
        (("policy=snapkv,kvzip", "schedule.evict_after=prompt,context"), ["flat:prompt", "flat:context"]),
        (("policy=cake",), ["flat:prompt"]),  # evicts while decoding too
        (("policy=snapkv", "store=int4"), ["flat:prompt"]),
        (("policy=h2o_obcache", "schedule.prefill_block=64"), ["flat:prompt"]),
        (("policy=full",), ["flat:prompt"]),
        (("task=pg19", "policy=h2o_obcache", "schedule.decode_every=1"), ["flat:prompt"]),
        (("task=pg19", "policy=h2o_obcache", "schedule.decode_every=1", "task.reset=false", "budget=64"), []),
    ],
)
def test_the_reference_of_a_setting(tmp_path: Path, settings: tuple[str, ...], full: list[str]) -> None:
    """One for each prefill; stores that quantize are no reference, and no text is read token by token for one."""
    (tmp_path / "pg19").mkdir()
    (tmp_path / "pg19" / "book.txt").write_text("A book. " * 400)
    around = [f"data.root={tmp_path}", f"results.dir={tmp_path / 'out'}"]
    planned = plan_sweep([*settings, *around], lambda _: None)
    cells = [cell for cell in planned.plan.cells if cell.policy.name == "full"]
    assert [f"{cell.held.store}:{cell.schedule}" for cell in cells] == full
    (named,) = plan_sweep(["policy=full", *around], lambda _: None).plan.cells
    same = [cell.id for cell in cells if cell.held.store == "flat" and str(cell.schedule) == "prompt"]
    assert "task=pg19" in settings or same in ([], [named.id])


def test_a_text_in_blocks_has_no_reference(tmp_path: Path) -> None:
    words = "task=pg19 policy=full,h2o_obcache schedule.decode_every=1 task.samples=1 reference=none"
    (tmp_path / "pg19").mkdir()
    (tmp_path / "pg19" / "book.txt").write_text("A book. " * 400)
    where = [f"data.root={tmp_path}", f"results.dir={tmp_path / 'out'}"]
    full, cell = plan_sweep([*words.split(), *where], lambda _: None).plan.cells
    assert [*with_reference([cell])] == [full, cell]
    blocks = replace(cell, schedule=replace(cell.schedule, prefill_block=64))
    assert [*with_reference([blocks])] == [blocks]


@pytest.mark.parametrize(("report", "head"), [("cost", "prefills"), ("none_of_these", "string_match_all")])
def test_a_run_ends_with_the_report_that_its_task_names(
    report: str, head: str, kvbench: Command, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any report is called as `kvbench report` calls it; one that is not installed gives way to the usual table."""
    monkeypatch.setattr(Niah, "report", report)
    finished = kvbench("run", *tiny, "policy=full", "task.samples=1")
    assert finished.code == 0 and head in finished.out, finished.out
