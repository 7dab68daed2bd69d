"""Verdicts of claims against a second code: numpy and scipy on the lines of the rows files, nothing of kvbench.

It reads the JSON that a sweep leaves, the file of claims as YAML, and tests by other ways than kvbench does: signs of
clusters by enumeration, the score test by maximising the likelihood under the margin, Student's test by scipy, Holm's
correction step by step.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest, norm, ttest_1samp

from kvbench.extras.claims.answers import Answers
from kvbench.extras.claims.file import ClaimsFile
from kvbench.extras.claims.verdicts import Verdict, check
from kvbench.records import Row

TASKS = ("ruler/niah_single_2", "ruler/niah_multikey_1", "ruler/vt", "ruler/fwe")
N, BOOKS, TEXTS = 60, 14, 8
SCORES = {"attn": 0.5, "caote": 0.8, "obcache_joint": 0.5, "vatp": 0.52}
SIDES = {score: {"policy": "snapkv", "score": score, "budget": 0.1} for score in SCORES}


def claim(name: str, family: str, a: str, b: str, shows: str, **others: Any) -> dict[str, Any]:
    """A claim about two scores."""
    return {"name": name, "says": name, "family": family, "a": SIDES[a], "b": SIDES[b], "shows": shows, **others}


CLAIMS = {
    "says": "a synthetic sweep",
    "alpha": 0.05,
    "floor": 10,
    "ceiling": 90,
    "beside": {"StreamingLLM": {"policy": "streaming_llm"}},
    "families": {
        "answers": {"common": {"model": "reference"}, "tasks": list(TASKS), "samples": N},
        "shared": {"common": {"model": "shared"}, "tasks": [TASKS[0]], "samples": 2 * TEXTS},
        "books": {"common": {"model": "reference"}, "tasks": ["pg19"], "first": 2, "samples": BOOKS},
    },
    "claims": [
        claim("gains", "answers", "attn", "caote", "difference", expects="b better"),
        claim("loses", "answers", "caote", "vatp", "difference", expects="b better"),
        claim("either", "answers", "attn", "vatp", "difference", expects="either"),
        claim("same", "answers", "attn", "obcache_joint", "equivalence", margin=10),
        claim("no-loss", "answers", "attn", "caote", "not worse", margin=5),
        claim("loss", "answers", "caote", "attn", "not worse", margin=5),
        claim("texts", "shared", "attn", "caote", "difference", expects="b better"),
        claim("lower", "books", "attn", "caote", "difference", expects="b better"),
        claim("near", "books", "attn", "obcache_joint", "equivalence", margin=2),
        claim("no-rise", "books", "attn", "vatp", "not worse", margin=3),
        claim("rise", "books", "caote", "attn", "not worse", margin=1),
    ],
}


def sweep(cell: Callable[..., list[Row]]) -> Iterator[list[Row]]:
    """Answers of four tasks, one of which nobody can and one everybody can; of texts of two prompts; and of books."""
    draws = np.random.default_rng(11)
    for task in TASKS:
        ease = draws.random(N)
        shift = {"ruler/vt": -2.0, "ruler/fwe": 2.0}.get(task, 0.0)
        for score, share in (*SCORES.items(), (None, 0.4)):
            noise = 0.02 if score in ("attn", "obcache_joint") else 0.1
            right = ease + noise * draws.standard_normal(N) < share + shift
            policy = "snapkv" if score else "streaming_llm"
            yield cell([*map(float, right)], policy, task=task, score=score)
    for score, share in SCORES.items():
        values = [float(x) for x in draws.integers(0, 5, 2 * TEXTS) * share / 4]
        rows = cell(values, task=TASKS[0], score=score, model="shared")
        yield [replace(row, context_sha256=f"{row.sample // 2:064x}") for row in rows]
    book = draws.normal(3.4, 0.3, 2 + BOOKS)
    for score, change in {"attn": 0.0, "caote": -0.03, "obcache_joint": 0.001, "vatp": 0.004}.items():
        values = [float(x) for x in book + change + 0.006 * draws.standard_normal(2 + BOOKS)]
        yield cell(values, task="pg19", score=score, metric="nll", unit="nats/token", better="lower")


@pytest.fixture
def verdicts(cell: Callable[..., list[Row]], results: Callable[..., Path], tmp_path: Path) -> dict[str, Verdict]:
    """What kvbench says."""
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(CLAIMS, sort_keys=False), "utf-8")
    claims = ClaimsFile(tmp_path / "claims.yaml").claims
    found = check(Answers.read(claims, results(*sweep(cell)), lambda text: None))
    return {each.claim.name: each for each in found}


def lines(folder: Path) -> list[dict[str, Any]]:
    """The rows as they lie on the disk."""
    return [json.loads(line) for file in (folder / "rows").iterdir() for line in file.read_text().splitlines()]


class Recomputed:
    """A claim by the second code."""

    def __init__(self, claim: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        family = CLAIMS["families"][claim["family"]]
        first = family.get("first", 0)
        self.claim, self.beside = claim, None
        self.left_out: dict[str, str] = {}
        values: dict[str, dict[tuple[str, int], tuple[float, str]]] = {"a": {}, "b": {}, "beside": {}}
        for row in rows:
            if row["model"] != family["common"]["model"] or not first <= row["sample"] < first + family["samples"]:
                continue
            if row["task"] not in family["tasks"]:
                continue
            key = row["task"], row["sample"]
            for side in "ab":
                if row["policy"] == "snapkv" and row["score"] == claim[side]["score"]:
                    values[side][key] = row["value"], row["context_sha256"] or f"{key}"
            if row["policy"] == "streaming_llm":
                values["beside"][key] = row["value"], ""
        for task in family["tasks"]:
            means = [np.mean([value for (of, _), (value, _) in values[side].items() if of == task]) for side in "ab"]
            if family["tasks"] != ["pg19"] and max(means) < CLAIMS["floor"] / 100:
                self.left_out[task] = "floor"
            if family["tasks"] != ["pg19"] and min(means) > CLAIMS["ceiling"] / 100:
                self.left_out[task] = "ceiling"
        keys = [key for key in sorted(values["a"]) if key[0] not in self.left_out]
        self.a, self.b = (np.array([values[side][key][0] for key in keys]) for side in "ab")
        self.texts = np.array([values["a"][key][1] for key in keys])
        if values["beside"]:
            self.beside = float(np.mean([values["beside"][key][0] for key in keys]))
        self.is_text = family["tasks"] == ["pg19"]

    @property
    def p(self) -> float:
        """The p of what the claim tests."""
        if self.claim["shows"] == "difference":
            return self.signs()
        margin = self.claim["margin"] / 100
        low, high = (np.log(1 - margin), np.log(1 + margin)) if self.is_text else (-margin, margin)
        if self.claim["shows"] == "equivalence":
            return max(self.above(self.a, self.b, low), self.above(self.b, self.a, -high))
        return self.above(self.b, self.a, -high) if self.is_text else self.above(self.a, self.b, low)

    def signs(self) -> float:
        """Sign flips of texts: the binomial test where differences are one answer, else every pattern of signs."""
        difference = self.b - self.a
        sums = np.array([difference[self.texts == text].sum() for text in np.unique(self.texts)])
        sums = sums[np.abs(sums) > 1e-12]
        if len(sums) == 0:
            return 1.0
        if np.allclose(np.abs(sums), 1.0):
            return float(binomtest(int((sums > 0).sum()), len(sums)).pvalue)
        patterns = np.array([*product((-1.0, 1.0), repeat=len(sums))])
        return float(np.mean(np.abs(patterns @ np.abs(sums)) >= abs(sums.sum()) - 1e-9))

    def above(self, a: np.ndarray, b: np.ndarray, limit: float) -> float:
        """p of "b - a is at most limit": Student's of perplexities, the score test of answers."""
        if self.is_text:
            return float(ttest_1samp(b - a, limit, alternative="greater").pvalue)
        gained, lost, n = int((b > a).sum()), int((b < a).sum()), len(a)

        def loss(q: float) -> float:  # the likelihood where q lose and q + limit gain
            logs = [(gained, q + limit), (lost, q), (n - gained - lost, 1 - 2 * q - limit)]
            return -sum(count * np.log(max(share, 1e-300)) for count, share in logs if count)

        q = minimize_scalar(
            loss, bounds=(max(0.0, -limit), (1 - limit) / 2), method="bounded", options={"xatol": 1e-13}
        ).x
        return float(norm.sf((gained - lost - n * limit) / np.sqrt(n * (2 * q + limit - limit**2))))


def holm(p: list[float]) -> list[float]:
    """Step down: the smallest p times the number of tests, the next times one less; none is below the one before."""
    corrected, largest = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, p[place] * (len(p) - rank)))
        corrected[place] = largest
    return corrected


def verdict(again: Recomputed, p_holm: float) -> str:
    """What follows from the corrected p and the direction."""
    if p_holm > CLAIMS["alpha"]:
        return "inconclusive"
    is_better = (again.b.mean() > again.a.mean()) != again.is_text
    expects = again.claim.get("expects", "either")
    return "confirmed" if expects == "either" or is_better == (expects == "b better") else "contradicted"


def test_every_line_is_that_of_a_second_code(verdicts: dict[str, Verdict], tmp_path: Path) -> None:
    assert {each.verdict for each in verdicts.values()} == {"confirmed", "contradicted", "inconclusive"}
    rows = lines(tmp_path / "runs")
    recomputed = {each["name"]: Recomputed(each, rows) for each in CLAIMS["claims"]}
    for family in CLAIMS["families"]:
        members = {name: each for name, each in recomputed.items() if each.claim["family"] == family}
        for (name, again), p in zip(members.items(), holm([each.p for each in members.values()]), strict=True):
            found = verdicts[name]
            assert {task.task: task.left_out for task in found.tasks if task.left_out} == again.left_out, name
            assert (found.n, found.clusters) == (len(again.a), len(set(again.texts))), name
            assert found.mean_a == pytest.approx(again.a.mean()) and found.mean_b == pytest.approx(again.b.mean()), name
            assert found.difference == pytest.approx((again.b - again.a).mean()), name
            assert found.p == pytest.approx(again.p, rel=1e-5, abs=1e-12), name
            assert found.p_holm == pytest.approx(p, rel=1e-5, abs=1e-12), name
            assert found.verdict == verdict(again, p), name
            assert found.beside["StreamingLLM"] == (None if again.beside is None else pytest.approx(again.beside)), name
