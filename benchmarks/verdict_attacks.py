"""Folders of rows in which something is lost, or cannot be known, and the verdicts of `kvbench gate` and `report
history`.

    python benchmarks/verdict_attacks.py [--markdown]

Each line is an attack: a baseline and a run, or a series of runs, the verdict that it must get, and the one it got.
Exit code 1 where they differ. No model is loaded; tests/report/test_verdicts.py builds the same folders.
"""

import argparse
import hashlib
import io
import json
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

from kvbench.cli.errors import ExitCode
from kvbench.cli.main import main as kvbench
from kvbench.records import REQUESTED, Recorder, Row

PASSED, FAILED, INCONCLUSIVE = "passed", "failed", "inconclusive"


@dataclass(frozen=True)
class Attack:
    """A series of runs, oldest first, each the rows of a folder; the verdict on the last, and its words of the gate."""

    name: str
    runs: tuple[Sequence[Row], ...]
    verdict: str
    words: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """The exit code of that verdict."""
        is_allowed = self.verdict == INCONCLUSIVE and (self.is_series or bool(self.words))
        return ExitCode.OK if self.verdict == PASSED or is_allowed else ExitCode.GATE

    @property
    def is_series(self) -> bool:
        """Whether `report history` judges it instead of `gate`."""
        return len(self.runs) > 2


def cell(values: Sequence[float], contexts: int | None = None, **columns: object) -> list[Row]:
    """The rows of one cell. ``contexts``: how many the questions are about, in turn; by default each has its own."""
    requested = {
        "model": "reference",
        "task": "ruler/niah_single_1",
        "task_version": "1",
        "context_length": 512,
        "policy": "snapkv",
        "score": "attn",
        "budget": "0.1",
        "variant": "paper",
        "layout": "kv_heads",
        "schedule": "prompt",
        "seed": 0,
    } | columns
    identity = "|".join(str(requested[name]) for name in REQUESTED if name in requested)
    return [
        Row(
            cell=_sha256(identity)[:16],
            sample=sample,
            value=value,
            metric="string_match_all",
            prompt_sha256=_sha256(f"{requested['task']} question {sample}"),
            context_sha256=None if contexts is None else _sha256(f"context {sample % contexts}"),
            cache_bytes=1000,
            **requested,  # type: ignore[arg-type]
        )
        for sample, value in enumerate(values)
    ]


def cells(count: int, values: Sequence[float]) -> list[Row]:
    """So many cells of the same values and prompts."""
    return [row for i in range(count) for row in cell(values, budget=f"{(i + 1) / 100:g}")]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def lost(n: int, count: int) -> list[float]:
    """Answers of n questions, of which the first ``count`` are wrong."""
    return [0.0] * count + [1.0] * (n - count)


def attacks() -> Iterator[Attack]:
    """All of them."""
    for n in (*range(1, 8), 50):
        yield Attack(f"one cell 1.0 -> 0.0, n {n}", (cell(lost(n, 0)), cell(lost(n, n))), FAILED)
    for n in (1, 7, 50, 300):
        verdict = INCONCLUSIVE if n < 300 else PASSED
        yield Attack(f"one cell, nothing lost, n {n}", (cell(lost(n, 0)), cell(lost(n, 0))), verdict)
    yield Attack("one cell, 1 of 10 lost", (cell(lost(10, 0)), cell(lost(10, 1))), INCONCLUSIVE)
    yield Attack("one cell, 4 of 10 lost", (cell(lost(10, 0)), cell(lost(10, 4))), FAILED)
    same = [replace(row, prompt_sha256=_sha256("one prompt")) for row in cell(lost(300, 0))]
    yield Attack("one prompt 300 times, nothing lost", (same, same), INCONCLUSIVE)
    for contexts in (1, 3, 7):
        before, after = (cell(lost(50, count), contexts) for count in (0, 50))
        yield Attack(f"50 questions on {contexts} contexts, 1.0 -> 0.0", (before, after), FAILED)
        yield Attack(f"50 questions on {contexts} contexts, nothing lost", (before, before), INCONCLUSIVE)
    yield Attack("64 cells of one question, 1.0 -> 0.0", (cells(64, [1.0]), cells(64, [0.0])), FAILED)
    yield Attack("64 cells of one question, nothing lost", (cells(64, [1.0]), cells(64, [1.0])), INCONCLUSIVE)
    yield Attack("64 cells of 12 questions, 3 lost", (cells(64, lost(12, 0)), cells(64, lost(12, 3))), FAILED)
    yield Attack("64 cells of 12 questions, 1 lost", (cells(64, lost(12, 0)), cells(64, lost(12, 1))), INCONCLUSIVE)
    yield Attack("4 cells of 300 questions, nothing lost", (cells(4, lost(300, 0)),) * 2, PASSED)
    half = [row for row in cells(4, lost(300, 0)) if row.sample < 150]
    yield Attack("half of the baseline's rows missing", (half, cells(4, lost(300, 0))), INCONCLUSIVE)
    yield Attack("the same, allowed", (half, cells(4, lost(300, 0))), INCONCLUSIVE, ("--allow-undecided",))
    yield Attack("half of the baseline's cells missing", (cells(2, lost(300, 0)), cells(4, lost(300, 0))), INCONCLUSIVE)
    full = cells(4, lost(300, 0))
    broken = [replace(row, value=None, error="out of memory") if row.sample < 150 else row for row in full]
    yield Attack("half of the baseline's rows failed", (broken, full), INCONCLUSIVE)
    apart = [replace(row, prompt_sha256=_sha256(f"{row.budget} {row.sample}")) for row in cells(10, [1.0] * 5)]
    groups = apart, [replace(row, value=0.0) if row.budget == "0.01" else row for row in apart]
    together = ("by=policy", "--min-effect", "50,50")
    yield Attack("by=policy, one of ten cells 1.0 -> 0.0", groups, FAILED, together)
    for runs in (3, 9):
        series = tuple(cell(lost(50, min(50, 7 * run))) for run in range(runs))
        yield Attack(f"drift: 7 of 50 lost a run, run {runs}", series, FAILED)
    slow = tuple(cell(lost(50, run)) for run in range(12))
    yield Attack("drift: 1 of 50 lost a run, run 12", slow, FAILED)
    later = (cell(lost(50, 0)), *[cell(lost(50, 0)) + cell(lost(50, 7 * run), budget="0.5") for run in range(4)])
    yield Attack("drift of a cell that the anchor lacks, run 5", later, FAILED)
    standing = (cell(lost(50, 0)), *[cell(lost(50, 7))] * 7)
    yield Attack("7 of 50 lost once, and for seven runs", standing, FAILED)
    yield Attack(
        "everything lost for three runs, then mended",
        (*[cell(lost(300, 0))] * 2, *[cell(lost(300, 300))] * 3, *[cell(lost(300, 0))] * 4),
        PASSED,
    )


def written(attack: Attack, folder: Path) -> list[str]:
    """The runs of an attack as folders."""
    paths = [folder / f"run{number:02}" for number in range(1, len(attack.runs) + 1)]
    for path, rows in zip(paths, attack.runs, strict=True):
        with Recorder(path) as recorder:
            recorder.append(rows)
    return [str(path) for path in paths]


@dataclass(frozen=True)
class Outcome:
    """What a command said: its verdict, exit code, and the failures of its JUnit file."""

    verdict: str
    code: int
    failures: int


def outcome(attack: Attack, folder: Path) -> Outcome:
    """Judge an attack with the command that it is for."""
    paths = written(attack, folder)
    junit = folder / "verdict.xml"
    if attack.is_series:
        tree = folder / "history.json"
        words = [
            "report",
            "history",
            *paths,
            "--out",
            str(folder / "h.html"),
            "--json",
            str(tree),
            "--junit",
            str(junit),
        ]
        code, _ = _run([*words, *attack.words])
        verdict = json.loads(tree.read_text("utf-8"))["runs"][-1]["status"]
    else:
        words = ["gate", "--baseline", paths[0], "--current", paths[1], "--format", "json", "--junit", str(junit)]
        code, text = _run([*words, *attack.words])
        verdict = json.loads(text)["verdict"]
    return Outcome(verdict, code, int(ET.parse(junit).getroot().get("failures", "0")))


def _run(words: Sequence[str]) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = kvbench(list(words))
    return code, out.getvalue()


def main() -> None:
    """Print the table; exit code 1 where a verdict is not the one that the attack must get."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="a table of Markdown")
    form: Callable[..., str] = (
        "| {} | {} | {} | {} | {} |" if parser.parse_args().markdown else "{:44} {:12} {:12} {:>4} {:>8}"
    ).format
    print(form("attack", "must be", "is", "exit", "failures"))
    wrong = 0
    for attack in attacks():
        with tempfile.TemporaryDirectory() as folder:
            got = outcome(attack, Path(folder))
        wrong += (got.verdict, got.code) != (attack.verdict, attack.code)
        print(form(attack.name, attack.verdict, got.verdict, got.code, got.failures), flush=True)
    sys.exit(f"{wrong} verdicts are wrong" if wrong else None)


if __name__ == "__main__":
    main()
