"""Claims that were written before their rows, recomputed by pandas, sign flips of scipy and Holm of statsmodels."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import yaml
from scipy.stats import permutation_test, ttest_1samp
from statsmodels.stats.multitest import multipletests

from kvbench.extras.claims.answers import Answers
from kvbench.extras.claims.file import ClaimsFile
from kvbench.extras.claims.verdicts import CONFIRMED, CONTRADICTED, Verdict, check

FOLDER = Path(__file__).parents[2] / "results" / "confirm"
TEXTS = 320
"""Prompts of each of the two tasks, which share a text where they have the same number."""
BOOKS = 22


@pytest.fixture(scope="module")
def content() -> Mapping[str, Any]:
    return yaml.safe_load((FOLDER / "claims.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def rows() -> pandas.DataFrame:
    return pandas.read_parquet(FOLDER / "rows.parquet")


@pytest.fixture(scope="module")
def ours() -> Mapping[str, Verdict]:
    """The verdict of each claim."""
    answers = Answers.read(ClaimsFile(FOLDER / "claims.yaml").claims, FOLDER / "rows.parquet", lambda words: None)
    return {each.claim.name: each for each in check(answers)}


def by_text(rows: pandas.DataFrame, side: Mapping[str, Any], tasks: tuple[str, ...]) -> np.ndarray:
    """The mean over the tasks of each text, in points; of books the mean negative log-likelihood."""
    wanted = {"layout": "kv_heads"} | {name: str(value) for name, value in side.items()}
    hit = rows["task"].isin(tasks)
    for name, value in wanted.items():
        hit &= rows[name].eq(value)
    values = rows[hit].pivot(index="sample", columns="task", values="value")
    assert values.shape == ((TEXTS, 2) if len(tasks) == 2 else (BOOKS, 1)), wanted
    assert not values.isna().any(axis=None), wanted
    return 100 * values.mean(axis=1).to_numpy() if len(tasks) == 2 else values["pg19"].to_numpy()


@pytest.mark.parametrize("family", ["primary", "further", "books"])
def test_another_code_reaches_the_same_verdicts(
    content: Mapping[str, Any], rows: pandas.DataFrame, ours: Mapping[str, Verdict], family: str
) -> None:
    claims = [claim for claim in content["claims"] if claim["family"] == family]
    tasks = tuple(content["families"][family]["tasks"])
    differences, p = [], []
    for claim in claims:
        b, a = (by_text(rows, claim[side], tasks) for side in ("b", "a"))
        difference = b - a
        differences.append(difference)
        if claim["shows"] == "difference":
            flipped = permutation_test(  # the sign of a zero changes no sum
                (difference[difference != 0],),
                np.sum,
                permutation_type="samples",
                n_resamples=9999,
                rng=np.random.default_rng(1),
            )
            p.append(flipped.pvalue)
        else:
            above = ttest_1samp(difference, -claim["margin"], alternative="greater").pvalue
            below = ttest_1samp(difference, claim["margin"], alternative="less").pvalue
            p.append(above if claim["shows"] == "not worse" else max(above, below))
    corrected = multipletests(p, method="holm")[1]
    for claim, difference, p_holm in zip(claims, differences, corrected, strict=True):
        verdict = ours[claim["name"]]
        mean = difference.mean() if len(tasks) == 2 else 100 * difference.mean()  # nats
        assert 100 * (verdict.difference or 0) == pytest.approx(mean), claim["name"]
        assert (verdict.verdict in (CONFIRMED, CONTRADICTED)) == (p_holm <= content["alpha"]), claim["name"]
        assert verdict.p_holm == pytest.approx(p_holm, abs=0.03), claim["name"]


def test_every_row_is_there(rows: pandas.DataFrame) -> None:
    assert rows["error"].isna().all() and rows["value"].notna().all()
    counts = rows.groupby(["task", "cell"]).size()
    assert counts["pg19"].tolist() == [BOOKS] * 12
    assert counts.drop("pg19").tolist() == [TEXTS] * 58
