"""The audit of the papers' own numbers: counts that were worked out by other code, claims, and the command."""

import json
from collections import Counter

import pytest

from kvbench.cli.main import main
from kvbench.extras.audit.pair_tests import p_value
from kvbench.extras.audit.pairs import LEVELS
from kvbench.extras.audit.paper_claims import Audited, audited, claims_of
from kvbench.extras.audit.printed import SCALES, against_own, bests, line_pairs, printed_lines, swaps
from kvbench.report.stats.paired_tests import holm
from kvbench.support import paths
from kvbench.support.errors import UserError


@pytest.fixture(scope="module")
def claims() -> dict[str, Audited]:
    return {claim.id: audited(claim, paths.papers()) for claim in claims_of(paths.papers())}


@pytest.mark.parametrize(
    ("paper", "tables", "task", "up", "down", "shown"),
    [
        ("obcache", ("table 1", "table 3"), "ruler/*", 142, 17, (79, 91, 118, 121)),
        ("obcache", ("poster",), "ruler", 173, 19, (122, 133, 170, 192)),
        ("lava", ("table 11",), "ruler", 15, 0, (5, 6, 9, 15)),
        ("caote", ("table 5", "table 13"), "needle/*", 47, 6, (16, 18, 26, 40)),
    ],
)
def test_differences_shown_at_each_level(
    paper: str, tables: tuple[str, ...], task: str, up: int, down: int, shown: tuple[int, ...]
) -> None:
    lines = [line for line in printed_lines(paper, paths.papers()) if line.is_of({"table": tables, "task": task})]
    pairs = [pair.pair(suppose=True) for pair in swaps(lines) or against_own(lines, paper)]
    found = [pair for pair in pairs if pair is not None]
    assert len(found) == len(pairs)
    assert (sum(pair.difference > 0 for pair in found), sum(pair.difference < 0 for pair in found)) == (up, down)
    assert tuple(sum(p_value(pair, level) <= 0.05 for pair in found) for level in LEVELS) == shown


def test_one_best_of_a_column_is_above_its_runner_up_at_independence() -> None:
    pairs = [
        pair.pair(suppose=True)
        for paper in ("obcache", "lava", "caote")
        for pair in bests(printed_lines(paper, paths.papers()))
        if pair.b["unit"] in SCALES and pair.b.prompts is not None and pair.b["task"] != "longbench"
    ]
    found = [pair for pair in pairs if pair is not None]
    assert len(found) == 631
    judged = [pair for pair in found if pair.judged]
    assert [sum(p_value(pair, level) <= 0.05 for pair in judged) for level in ("any", "rho0")] == [1, 1]


def test_verdicts_on_the_claims(claims: dict[str, Audited]) -> None:
    counts = Counter(str(claim.verdict) for claim in claims.values())
    assert counts == {"decided": 27, "depends": 26, "inconclusive": 17, "false": 12, "not auditable": 9}
    tested = [claim for claim in claims.values() if claim.decisive is not None]
    adjusted = holm([claim.decisive for claim in tested if claim.decisive is not None])
    lost = {
        claim.claim.id for claim, p in zip(tested, adjusted, strict=True) if claim.verdict == "decided" and p > 0.05
    }
    assert lost == {"obcache-3a", "lava-14", "lava-16b", "lava-17a", "lava-20a", "lava-21a", "lava-23"}
    assert claims["obcache-1"].shows == "16 of 144 down, 3 level" and claims["caote-28"].shows == "5 of 42 down"
    assert claims["lava-22c"].verdict == "false"
    assert all(claim.claim.at and claim.claim.says for claim in claims.values())
    assert len(claims) == len(claims_of(paths.papers())), "no two have one name"


@pytest.mark.parametrize(
    ("name", "p"),
    [
        ("obcache-3a", {"any": 0.017}),
        ("obcache-6", {"any": 0.24, "rho0": 0.18}),
        ("obcache-8a", {"any": 0.85, "tasks": 6.1e-5}),
        ("obcache-10a", {"any": 2.3e-8}),
        ("obcache-10b", {"any": 0.75, "rho0": 0.69, "mid": 0.124, "best": 2.4e-9}),
        ("lava-12", {"any": 0.81, "rho0": 0.76, "mid": 0.47, "tasks": 0.131}),
        ("lava-15a", {"any": 0.64, "rho0": 0.51, "mid": 0.017}),
        ("lava-17a", {"tasks": 0.010}),
        ("lava-20b", {"tasks": 0.19}),
        ("lava-23", {"tasks": 0.031}),
        ("caote-25", {"any": 6.8e-7}),
        ("caote-26b", {"any": 0.57, "rho0": 0.50, "mid": 0.13, "best": 0.001}),
        ("caote-32a", {"tasks": 3.05e-5}),
        ("other-2", {"best": 0.0625}),
        ("kvcache_factory-1", {"any": 0.054, "rho0": 0.015}),
        ("rkv-1", {"any": 8.0e-8}),
    ],
)
def test_p_of_claims(claims: dict[str, Audited], name: str, p: dict[str, float]) -> None:
    claim = claims[name]
    found = {**(claim.p or {}), "tasks": claim.tasks_p}
    assert {level: found[level] for level in p} == pytest.approx(p, rel=0.03)


def test_an_item_is_audited(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "obcache/table1", "--audit", "--format", "json"]) == 0
    records = json.loads(capsys.readouterr().out)
    cells = [record for record in records if record["kind"] == "difference"]
    assert len(cells) == 144
    assert Counter(cell["verdict"] for cell in cells)["decided"] == 70
    assert main(["paper", "triattention/aime", "--audit"]) == 0
    assert "8 answers to each of 30 problems" in capsys.readouterr().out
    assert main(["paper", "obcache/poster", "--audit"]) == 0
    assert "n is not known of 192 lines" in capsys.readouterr().out


def test_the_values_of_an_arm_are_audited_where_no_method_is_swapped(capsys: pytest.CaptureFixture[str]) -> None:
    """R-KV: each buffer against the first of its budget, 65.5 to 90.5; a template moves three of six tasks."""
    assert main(["paper", "rkv/vllm", "--audit", "--format", "json"]) == 0
    buffers = json.loads(capsys.readouterr().out)
    assert [(one["host"], one["method"]) for one in buffers[:3]] == [
        ("R-KV, buffer 16", f"R-KV, buffer {size}") for size in (64, 128, 256)
    ]
    assert (buffers[2]["a"], buffers[2]["b"], buffers[2]["verdict"]) == (65.5, 90.5, "decided")
    assert main(["paper", "kvcache_factory/protocol", "--audit", "--format", "json"]) == 0
    pairs = [one for one in json.loads(capsys.readouterr().out) if one["kind"] == "difference"]
    moved = [one["difference"] for one in pairs if "FullKV" in one["method"]]
    assert len(pairs) == 3 * 6 + 2 * 6 and moved == [6.63, 2.17, 0, 1.76, 0, 0]


def test_two_possible_partners_are_refused() -> None:
    lines = printed_lines("obcache", paths.papers())
    with pytest.raises(UserError, match="could be its partner"):
        line_pairs(lines, {"score": "obcache_*"}, {"score": "attn"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["obcache/table2"], "prints no means"),
        (["all"], "takes one item"),
        (["obcache/table1", "budget=80"], "takes one item"),
        (["obcache/table9"], "unknown paper item"),
    ],
)
def test_what_cannot_be_audited_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", *words, "--audit"]) == 2
    assert said in capsys.readouterr().err
