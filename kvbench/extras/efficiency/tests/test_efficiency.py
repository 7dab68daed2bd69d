"""The table and the picture of timed cells, and what rows cost: numbers that anybody can check by hand."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.cli.main import main
from kvbench.extras.efficiency import report as efficiency
from kvbench.extras.efficiency.report import (
    PRODUCTION,
    STEP,
    Spread,
    Timed,
    quantized_note,
    share_of_full,
    timed_cells,
)
from kvbench.records import Process, Recorder, ResultsFolder, Row, Timing
from kvbench.records.row import with_checksum
from kvbench.report.formats.emit import emitted, write_report
from kvbench.report.selection import NothingSelected
from kvbench.report.tables import cost
from kvbench.report.tables.cost import costs
from tests.cells import name_of

CELLS = {"full": "1.0", "snapkv": "0.1"}


@pytest.fixture
def timed(tmp_path: Path) -> Path:
    """Two cells of batch 2, three repetitions each, at two lengths; the longer full cache ran out of memory."""
    folder = tmp_path / "timed"
    with Recorder(folder) as recorder:
        for tokens in (100, 200):
            for place, (policy, budget) in enumerate(CELLS.items()):
                description = {
                    "task": {"batch": 2, "new_tokens": 3, "name": "efficiency", "context_length": tokens},
                    "policy": {"name": policy},
                }
                cell = name_of(description)
                failed = (policy, tokens) == ("full", 200)
                ResultsFolder(folder).write_cell(cell, description)
                rows = [_row(cell, sample, tokens, policy, budget, failed) for sample in range(3)]
                timings = [_timing(cell, sample, tokens, place).to_json() for sample in range(3)]
                recorder.append(rows, {} if failed else {"timings": timings})
    return folder


def _row(cell: str, sample: int, tokens: int, policy: str, budget: str, failed: bool) -> Row:
    measured = {"prefill_seconds": 1.0 + sample, "evict_seconds": 0.25, "decode_seconds": 0.5}
    measured |= {"new_tokens": 3, "value": 0.125}
    return Row(
        cell=cell, sample=sample, model="tiny", task="efficiency", task_version=None, context_length=tokens,
        policy=policy, score=None if policy == "full" else "attn", budget=budget, variant=None, layout="kv_heads",
        schedule="prompt", seed=0, prompt_tokens=tokens, metric="seconds_per_token", context_sha256="0f",
        code="c0de00000000", **({"error": "out of memory: none"} if failed else measured),
    )  # fmt: skip


def _timing(cell: str, sample: int, tokens: int, place: int) -> Timing:
    quantities = {
        "prefill_seconds": 2.0 * (1 + sample),
        "score_seconds": 0.3 * place,
        "first_token_seconds": 2.5 * (1 + sample),
        "held_bytes": 1024.0 * tokens / (1 + 9 * place),
        "decode_bytes": 2048.0,
        "prefill_flops": 3e9,
        "prefill_moved_bytes": 1e9,
        "score_moved_bytes": 3e8,
        "step_flops": 1e6,
        "step_moved_bytes": 5e8,
        "device_copy_bytes_per_second": 1e10,
        "device_flops_per_second": 1e9,
        "load": 0.5,
    }
    return Timing(cell, sample, quantities, (0.1, 0.2, 0.3))


def test_medians_quartiles_and_rooflines_by_hand(timed: Path) -> None:
    full, snapkv, *_ = timed_cells(timed, print)
    assert (full.columns["policy"], full.batch, full.new_tokens) == ("full", 2, 3)
    first = full.quantities["first_token_seconds"]
    assert (first.median, first.low, first.high, first.n) == (5.0, 3.75, 6.25, 3)
    step = full.quantities[STEP]
    assert (step.median, step.n) == (0.2, 9)
    assert full.tokens_per_second == pytest.approx(10)
    assert full.roofline("prefill") == (pytest.approx(3 / 4), "flops")
    assert full.roofline("step") == (pytest.approx(0.05 / 0.2), "bytes")
    assert full.roofline("score") is None  # nothing was scored
    assert snapkv.roofline("score") == (pytest.approx(0.03 / 0.3), "bytes")


@pytest.mark.parametrize(
    ("method", "full", "share"),
    [
        ({STEP: 6.0}, {STEP: 10.0, PRODUCTION: 9.0}, 0.25),
        ({STEP: 6.0}, {STEP: 10.0}, 0.0),  # nothing else was timed
        ({STEP: 6.0}, {STEP: 10.0, PRODUCTION: 11.0}, 0.0),
        ({STEP: 6.0}, {STEP: 10.0, PRODUCTION: 5.0}, 1.0),  # in production the full cache is faster
        ({STEP: 10.0}, {STEP: 10.0, PRODUCTION: 9.0}, None),
        ({STEP: 6.0, PRODUCTION: 3.0}, {STEP: 10.0, PRODUCTION: 4.0}, 0.0),  # both replay a graph
        ({STEP: 6.0, PRODUCTION: 4.0}, {STEP: 10.0, PRODUCTION: 4.0}, None),
        ({}, {STEP: 10.0, PRODUCTION: 4.0}, None),
    ],
)
def test_the_share_of_a_gain_over_the_restricted_full_cache_alone(
    method: dict[str, float], full: dict[str, float], share: float | None
) -> None:
    def cell(medians: dict[str, float]) -> Timed:
        spreads = {name: Spread(number, number, number, 3) for name, number in medians.items()}
        return Timed("0f", {}, 1, 5, spreads)

    assert cell(method).restricted_share(cell(full)) == share


def test_a_method_is_compared_with_the_full_cache_of_its_block(timed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of the full cache take 0.2 s, in production 0.175 s; those of a method 0.15 s."""
    description = {
        "task": {"batch": 2, "new_tokens": 3, "name": "efficiency", "context_length": 300},
        "policy": {"name": "full"},
    }
    names = [name_of(description | {"policy": {"name": policy}}) for policy in ("full", "snapkv")]
    timings = [_timing(name, 0, 300, place) for place, name in enumerate(names)]
    timings[0] = replace(timings[0], quantities=timings[0].quantities | {PRODUCTION: 0.175})
    timings[1] = replace(timings[1], steps=(0.15,))
    with Recorder(timed) as recorder:
        for name, policy in zip(names, ("full", "snapkv"), strict=True):
            ResultsFolder(timed).write_cell(name, description | {"policy": {"name": policy}})
        rows = [
            _row(name, 0, 300, policy, "0.1", False) for name, policy in zip(names, ("full", "snapkv"), strict=True)
        ]
        recorder.append(rows, {"timings": [timing.to_json() for timing in timings]})
    records = efficiency.report_of(timed, print).records
    shares = [record["restricted_share"] for record in records if record["context_length"] == 300]
    assert shares == [None, pytest.approx(0.5)]
    assert {record["restricted_share"] for record in records if record["context_length"] < 300} == {None}
    floors = [record["step_floor_seconds"] for record in records if "step_flops" in record]
    assert floors == [pytest.approx(0.05)] * 5
    main(["report", "efficiency", "context_length=300", "--results", str(timed)])
    full, snapkv = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("full", "snapkv"))]
    assert "175 [175, 175] ms" in full and " 50 % " in snapkv


def test_a_cell_that_failed_says_why_and_comes_with_the_others(timed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "efficiency", "--results", str(timed)]) == 0
    text = capsys.readouterr().out
    assert "model tiny, 200 tokens, batch 2, 3 new tokens" in text
    assert "full: out of memory: none" in text
    (line,) = [line for line in text.splitlines() if line.startswith("full") and "MiB" not in line and "75 %" in line]
    assert "5 [3.75, 6.25] s" in line and "100 KiB" in line and "25 % bytes" in line


def test_nothing_is_wider_than_the_terminal(timed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that do not fit stand in blocks below, each beside the labels of the cells."""
    report = efficiency.report_of(timed, print, {"policy": ["snapkv"], "context_length": ["100"]})
    wide = emitted(report, "text")
    monkeypatch.setenv("COLUMNS", "80")
    write_report(report, "text", out := io.StringIO())
    narrow = out.getvalue()
    assert max(map(len, wide.splitlines())) > 120 and max(map(len, narrow.splitlines())) <= 80
    assert sorted({*wide.split()}) == sorted({*narrow.split()}) and narrow.count("snapkv") > wide.count("snapkv") == 1


def test_lines_for_programs_have_every_quantity(timed: Path) -> None:
    report = efficiency.report_of(timed, print)
    lines = list(csv.DictReader(io.StringIO(emitted(report, "csv"))))
    assert len(lines) == 4 and lines[0]["prefill_seconds"] == "4.0" and lines[0]["prefill_seconds_q1"] == "3.0"
    snapkv = emitted(efficiency.report_of(timed, print, {"policy": ["snapkv"]}), "json")
    assert [line["batch"] for line in json.loads(snapkv)] == [2, 2]
    table = [line for line in emitted(report, "markdown").splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table[:4]}) == 1 and table[0].startswith("| policy | score | budget |")


def test_rows_that_were_not_timed_are_none_to_report(small: Path) -> None:
    with pytest.raises(FileNotFoundError, match="kvbench run task=efficiency"):
        timed_cells(small, print)


def test_rows_of_other_tasks_are_left_out(timed: Path) -> None:
    with Recorder(timed) as recorder:
        recorder.append([replace(_row("ab" * 8, 0, 50, "h2o", "0.2", False), metric="f1")])
    assert len(timed_cells(timed, print)) == 4
    with pytest.raises(NothingSelected, match="no selected row was timed"):
        timed_cells(timed, print, {"policy": ["h2o"]})


@pytest.mark.parametrize("settings", [[], ["y=peak", "scale=log"]], ids=["both", "peak"])
def test_the_picture_is_drawn(timed: Path, tmp_path: Path, settings: list[str]) -> None:
    out = tmp_path / "latency.svg"
    assert main(["report", "plot", "latency", "--results", str(timed), "--out", str(out), *settings]) == 0
    text = out.read_text("utf-8")
    assert "snapkv" in text and "tokens of context" in text


def test_costs_by_hand(timed: Path) -> None:
    """Three repetitions of a batch of two; cells that agree to the bit on how long one took share it."""
    short, long = costs(timed, print)
    assert (short.rows, short.failed, short.prefills) == (6, 0, 6)
    assert short.prefill_tokens == 600 and short.prefill_seconds == 2 * (1 + 2 + 3)
    assert (short.new_tokens, short.evict_seconds, short.decode_seconds) == (36, 3.0, 6.0)
    assert (long.rows, long.failed, long.new_tokens, long.seconds) == (6, 3, 18, 12 + 1.5 + 3)


def test_a_shared_prefill_costs_once(cell: Callable[..., list[Row]], results: Callable[..., Path]) -> None:
    measured = {"prompt_tokens": 70, "context_sha256": "0f", "prefill_seconds": 2.5}
    measured |= {"new_tokens": 4, "decode_seconds": 0.5}
    folder = results(cell([1.0], "full", **measured), cell([0.0], "h2o", **measured), cell(["failed"], "tova"))
    (cost,) = costs(folder, print)
    assert (cost.prefills, cost.prefill_tokens, cost.prefill_seconds, cost.new_tokens) == (1, 70, 2.5, 8)
    assert (cost.rows, cost.failed, cost.decode_seconds) == (3, 1, 1.0)


def test_seconds_that_no_row_has_are_unknown(cell: Callable[..., list[Row]], results: Callable[..., Path]) -> None:
    """As of packed rows, which have none."""
    unknown = dict.fromkeys(("prefill_seconds", "evict_seconds", "decode_seconds"))
    folder = results(cell([1.0], "full", prompt_tokens=70, context_sha256="0f", new_tokens=4, **unknown))
    (found,) = costs(folder, print)
    assert (found.prefills, found.prefill_tokens, found.prefill_seconds, found.seconds) == (None, None, None, None)
    report = cost.report_of(folder, print)
    assert "0 s" not in emitted(report, "text") and "held: unknown" in emitted(report, "text")
    assert json.loads(emitted(report, "json"))["costs"][0]["evict_seconds"] is None


def test_what_processes_held_is_device_seconds_and_energy(timed: Path) -> None:
    process = Process(
        name="a", host="b", pid=1, machine=None, born=None, job=None, devices=2, lease_seconds=1.0,
        started_utc="2026-01-01T00:00:00+00:00", beat_utc="2026-01-01T00:01:30+00:00", ended="finished", joules=1250.0,
    )  # fmt: skip
    (timed / "processes").mkdir()
    fields = {name: getattr(process, name) for name in process.__dataclass_fields__}
    (timed / "processes" / "a.json").write_text(with_checksum(json.dumps(fields)))
    as_json, text, markdown = (emitted(cost.report_of(timed, print), form) for form in ("json", "text", "markdown"))
    assert json.loads(as_json)["held"] == {"processes": 1, "device_seconds": 180.0, "joules": 1250.0}
    assert "held: 3 min of devices by 1 processes" in text and "1250 J" in text
    assert markdown.splitlines()[1].startswith("| :-- |") and "| all |" in markdown


def test_equal_bytes_by_hand() -> None:
    """64 numbers of bfloat16 are 128 bytes; in 4 bits 32, with a scale and a shift of 2 bytes each 36."""
    assert share_of_full(4, 2) == 36 / 128 and share_of_full(2, 2) == 20 / 128
    assert share_of_full(4, 4) == (32 + 8) / 256
    assert quantized_note("bfloat16").endswith("holds 28.1 % in 4 bits and 15.6 % in 2 bits")
    assert quantized_note(None) == quantized_note("float64") == ""
