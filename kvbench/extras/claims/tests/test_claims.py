"""Claims held against rows: nothing is said before all prompts are there, and one correction covers a family."""

import os
import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import yaml

from kvbench.cli.main import main
from kvbench.extras.claims.age import sentences
from kvbench.extras.claims.answers import Answers
from kvbench.extras.claims.file import ClaimsFile
from kvbench.extras.claims.verdicts import WAITING, Verdict, check
from kvbench.records import Heartbeat, Recorder, ResultsFolder, Row
from kvbench.records.moments import spans_of
from kvbench.records.parquet_rows import write_parquet
from kvbench.report.rows import load_table
from kvbench.report.stats.equivalence import p_not_within
from kvbench.report.stats.paired import Paired
from kvbench.support.errors import MissingFile, UserError
from tests.repository import ROOT

FAMILY = {"common": {"model": "reference"}, "tasks": ["ruler/niah_single_1"], "samples": 40}


def difference(name: str, a: str, b: str, **others: Any) -> dict[str, Any]:
    """A claim that the score `b` answers more than the score `a`."""
    sides = {"a": {"policy": "snapkv", "score": a}, "b": {"policy": "snapkv", "score": b}}
    claim = {"name": name, "says": "one is better", "family": "scores", "shows": "difference", **sides}
    return claim | {"expects": "b better"} | others


def margin(name: str, a: str, b: str, shows: str = "equivalence", points: float = 10) -> dict[str, Any]:
    """A claim that the score `b` is within some points of the score `a`."""
    claim = difference(name, a, b, shows=shows, margin=points)
    del claim["expects"]
    return claim


def written(folder: Path, *claims: dict[str, Any], **others: Any) -> Path:
    """A file of claims."""
    content = {"says": "a test", "families": {"scores": FAMILY}, "claims": list(claims)} | others
    path = folder / "claims.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    return path


def checked(file: Path, folder: Path) -> dict[str, Verdict]:
    """The verdicts by the names of the claims."""
    answers = Answers.read(ClaimsFile(file).claims, folder, lambda text: None)
    return {each.claim.name: each for each in check(answers)}


@pytest.fixture
def scores(cell: Callable[..., list[Row]], results: Callable[..., Path]) -> Path:
    """Forty prompts: attention answers 20, caote 32 (all of these too), joint 21, vatp 8; and ten more prompts."""
    right = {"attn": range(20), "caote": range(32), "obcache_joint": range(21), "vatp": range(8)}
    return results(
        *(cell([float(n in of) for n in range(40)] + [1.0] * 10, score=score) for score, of in right.items())
    )


def test_no_verdict_before_all_prompts_are_there(scores: Path, tmp_path: Path):
    file = written(tmp_path, difference("gains", "attn", "caote"), families={"scores": FAMILY | {"samples": 51}})
    waiting = checked(file, scores)["gains"]
    assert waiting.verdict == WAITING and waiting.p is None
    assert [(task.n, task.mean_a, task.left_out) for task in waiting.tasks] == [(50, None, "")], "no number either"
    alone = checked(written(tmp_path, difference("gains", "attn", "caote")), scores)["gains"]
    both = checked(written(tmp_path, difference("gains", "attn", "caote"), difference("later", "attn", "lava")), scores)
    assert both["later"].verdict == WAITING and both["later"].missing
    assert both["gains"].p == alone.p and both["gains"].p_holm == pytest.approx(2 * alone.p_holm), "it keeps its place"
    assert (alone.n, alone.mean_a, alone.mean_b) == (40, 0.5, 0.8)


def test_tasks_at_an_end_are_left_out_and_named(cell: Callable[..., list[Row]], results, tmp_path: Path, capsys):
    tasks = {"ruler/vt": (0.0, 0.05), "ruler/fwe": (0.5, 0.8), "ruler/cwe": (1.0, 1.0), "ruler/qa_1": (0.0, 1.0)}
    cells = [
        cell([float(n < share * 20) for n in range(20)], score=score, task=task)
        for task, shares in tasks.items()
        for score, share in zip(("attn", "caote"), shares, strict=True)
    ]
    family = FAMILY | {"tasks": list(tasks), "samples": 20}
    file = written(tmp_path, difference("gains", "attn", "caote"), families={"scores": family}, floor=10, ceiling=95)
    folder = results(*cells)
    found = checked(file, folder)["gains"]
    assert [task.left_out for task in found.tasks] == ["floor", "", "ceiling", ""] and found.n == 40
    assert main(["claims", "check", str(file), "--results", str(folder)]) == 0
    assert "gains: ruler/vt at the floor (0.0 and 5.0 %)" in " ".join(capsys.readouterr().out.split())
    narrow = written(tmp_path, difference("gains", "attn", "caote"), floor=10, ceiling=95, families={
        "scores": family | {"tasks": ["ruler/vt", "ruler/cwe"]}
    })  # fmt: skip
    assert checked(narrow, folder)["gains"].verdict == "inconclusive (no room)"


def test_a_side_of_two_budgets_is_refused(cell: Callable[..., list[Row]], results, tmp_path: Path):
    folder = results(
        *(cell([1.0] * 40, score=score, budget=size) for score in ("attn", "caote") for size in ("0.1", "0.2"))
    )
    with pytest.raises(UserError, match=r"of family scores selects 2 cells of .*budgets 0.1, 0.2; add conditions"):
        checked(written(tmp_path, difference("gains", "attn", "caote")), folder)


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (difference("gains", "attn", "caote", expects=None), "claim gains: shows: difference needs expects"),
        (difference("gains", "attn", "caote", margin=5), "claim gains: shows: difference needs expects"),
        (margin("same", "attn", "caote") | {"margin": None}, "claim same: shows: equivalence needs a margin"),
        (difference("gains", "attn", "caote", family="others"), "gains: family others is not among families: scores"),
        (difference("gains", "attn", "caote", n=5), "claim gains.n: Extra inputs are not permitted"),
        (difference("gains", "attn", "caote") | {"a": {"polcy": "snapkv"}}, "polcy"),
    ],
)
def test_a_file_that_breaks_the_rules_is_refused_in_one_line(claim: dict, message: str, tmp_path: Path):
    with pytest.raises(UserError) as error:
        _ = ClaimsFile(written(tmp_path, claim)).claims
    assert message in str(error.value) and "\n" not in str(error.value)


def test_what_stands_beside_needs_a_budget(tmp_path: Path):
    file = written(tmp_path, difference("gains", "attn", "caote"), beside={"newest": {"policy": "streaming_llm"}})
    with pytest.raises(UserError, match=r"claim gains: side a needs one budget, for what stands beside it"):
        _ = ClaimsFile(file).claims


def test_files_that_are_none_are_refused(tmp_path: Path):
    with pytest.raises(MissingFile, match=r"nothing.yaml: there is no such file of claims"):
        _ = ClaimsFile(tmp_path / "nothing.yaml").claims
    for text in ("- 1", ""):
        (tmp_path / "broken.yaml").write_text(text)
        with pytest.raises(UserError, match=r"broken.yaml: it has no keys and values; required: says, "):
            _ = ClaimsFile(tmp_path / "broken.yaml").claims
    for text in ("a: [", "claims: &x [*x]"):
        (tmp_path / "broken.yaml").write_text(text)
        with pytest.raises(UserError, match=r"broken.yaml"):
            _ = ClaimsFile(tmp_path / "broken.yaml").claims


def test_the_command_ends_with_4_while_claims_wait(scores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = written(tmp_path, difference("gains", "attn", "caote"), difference("later", "attn", "lava"))
    assert main(["claims", "check", str(file), "--results", str(scores)]) == 4
    printed = capsys.readouterr()
    assert f"1 of 2 claims wait for rows of {scores}" in printed.err
    assert "not run: 40 of 80 rows" in printed.out and "Waiting: later: no row has score=lava" in printed.out
    assert main(["claims", "check", str(file), "--results", str(scores), "--format", "json"]) == 4
    assert '"name": "gains"' in capsys.readouterr().out
    out = tmp_path / "claims.md"
    assert main(["claims", "check", str(file), "--results", str(scores), "--out", str(out)]) == 4
    assert f"wrote {out}" in capsys.readouterr().err and "gains" in out.read_text()
    assert main(["claims", "check"]) == 2 and main(["claims", str(file)]) == 2


def test_without_rows_the_page_is_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    family, beside = FAMILY | {"common": {"budget": 0.5}}, {"newest": {"policy": "streaming_llm"}}
    file = written(tmp_path, difference("gains", "attn", "caote"), families={"scores": family}, beside=beside)
    assert main(["claims", "check", str(file), "--results", str(tmp_path / "later"), "--format", "markdown"]) == 4
    page = capsys.readouterr().out
    assert "Not run: there is no row. Everything here is planned." in page and "not run: 0 of 80 rows" in page
    assert "| newest: streaming_llm, 0.5 | 0 of 40 |" in page and "0 of 120 rows" in page


def test_what_stands_beside_a_claim_has_its_budget(cell: Callable[..., list[Row]], results, tmp_path: Path, capsys):
    """Its bytes are compared too: those of a cache for each query head are three times as many."""
    sizes = {"0.2": 100, "0.4": 200}
    folder = results(
        *(cell([float(n < 30) for n in range(40)], "streaming_llm", budget=size, cache_bytes=sizes[size])
          for size in sizes),
        *(cell([float(n < right) for n in range(40)], score=score, budget="0.4", cache_bytes=held)
          for score, right, held in (("attn", 10, 200), ("caote", 20, 600))),
    )  # fmt: skip
    sides = {"a": {"policy": "snapkv", "score": "attn", "budget": 0.4}, "b": {"policy": "snapkv", "score": "caote"}}
    family = FAMILY | {"common": {"budget": 0.4}}
    beside = {"newest": {"policy": "streaming_llm"}}
    file = written(tmp_path, difference("gains", "", "") | sides, families={"scores": family}, beside=beside)
    found = checked(file, folder)["gains"]
    assert found.beside == {"newest": 0.75}
    assert main(["claims", "check", str(file), "--results", str(folder), "--format", "markdown"]) == 0
    lines = {line.split(" | ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "-50.0 [" in lines["| snapkv, attn, 0.4"] and "times" not in lines["| snapkv, attn, 0.4"]
    assert "-25.0 [" in lines["| snapkv, caote"] and "at 3.00 times its bytes" in lines["| snapkv, caote"]
    assert "streaming_llm, 0.2" not in "".join(lines), "a budget of no claim"


@pytest.fixture
def run_later(cell: Callable[..., list[Row]], tmp_path: Path) -> Path:
    """The rows of one claim, in a folder that names the process which made them."""
    folder = ResultsFolder(tmp_path / "run")
    heartbeat = Heartbeat(folder, 60, 180)
    heartbeat.start()
    for score, right in (("attn", 10), ("caote", 30)):
        with Recorder(folder) as recorder:  # a file for each
            recorder.append(cell([float(n < right) for n in range(40)], score=score))
    heartbeat.end("finished")
    return folder.path


def committed(file: Path, day: str) -> None:
    """Commit a file as of a day."""
    when = {f"GIT_{who}_{what}": text for who in ("AUTHOR", "COMMITTER") for what, text in
            (("NAME", "nobody"), ("EMAIL", "nobody@example.org"), ("DATE", f"{day}T00:00:00Z"))}  # fmt: skip
    for words in (("init", "-q"), ("add", file.name), ("commit", "-qm", "claims")):
        subprocess.run(["git", "-C", file.parent, *words], check=True, env=os.environ | when)


def test_the_page_says_which_is_older(run_later: Path, tmp_path: Path):
    """The file by its history, else by its own date; rows by their processes, also where they were packed."""

    def said(file: Path, rows: Path) -> str:
        claims = ClaimsFile(file)
        return " ".join(sentences(claims, Answers.read(claims.claims, rows, lambda text: None)))

    file = written(tmp_path, difference("gains", "attn", "caote"))
    assert "no history is at hand; the file itself does not say" in said(file, run_later)
    file = written(tmp_path, difference("gains", "attn", "caote"), written=date(2026, 1, 2))
    assert "says that it is of 2026-01-02" in said(file, run_later)
    assert "By its own date the file is older than every one" in said(file, run_later)
    packed = tmp_path / "packed.parquet"
    assert main(["export", "--results", str(run_later), "--format", "parquet", "--out", str(packed)]) == 0
    committed(file, "2026-01-03")
    for rows in (run_later, packed):
        assert "last changed 2026-01-03 00:00 UTC by commit" in said(file, rows)
        assert "80 of 80 rows, made by 1 version of the code (c0de00000000), each cell by one, from" in said(file, rows)
        assert "The claims are older than every one of them." in said(file, rows)
    committed(written(tmp_path, difference("gains", "attn", "caote"), floor=1), "2098-01-01")
    assert "The claims are NOT older" in said(file, packed)
    written(tmp_path, difference("gains", "attn", "caote"), floor=2)
    assert "and not committed; the file itself does not say" in said(file, packed)
    for process in (run_later / "processes").iterdir():
        process.unlink()
    assert "when is not known of all of them, so nothing shows that the claims are older" in said(file, run_later)


def test_moments_of_a_damaged_file_are_refused(run_later: Path, tmp_path: Path):
    table = load_table(run_later)
    write_parquet(table, tmp_path / "rows.parquet", lambda cell: None)
    file = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    for text in (b"[", b"[1]", b'{"a": ["2026-01-01", "2026-01-02"]}', b'{"a": [1, 2]}', b'{"a": []}'):
        metadata = {**(file.schema.metadata or {}), b"kvbench.made": text}
        pyarrow.parquet.write_table(file.replace_schema_metadata(metadata), tmp_path / "rows.parquet")
        with pytest.raises(UserError, match=r"rows.parquet: when its rows were made cannot be read"):
            spans_of(tmp_path / "rows.parquet", table)


def test_equality_is_seldom_shown_where_there_is_none():
    """At a true difference of the margin, 5 % of tables show equality; 8 % of 40 texts of four equal answers."""
    generator, shown = np.random.default_rng(7), {1: 0, 4: 0}
    for size in shown:
        for _ in range(400):
            lost = np.repeat(generator.random(160 // size) < 0.1, size)
            a = np.ones(160)
            paired = Paired(a, np.where(lost, 0.0, 1.0), np.repeat(np.arange(160 // size), size))
            shown[size] += p_not_within(paired, -0.1, 0.1) <= 0.05
    assert shown[1] / 400 <= 0.07 and shown[4] / 400 <= 0.1, shown


def test_the_committed_claims_are_whole():
    claims = ClaimsFile(ROOT / "results" / "confirm" / "claims.yaml").claims
    assert sum(claim.family == "primary" for claim in claims.claims) == 12
