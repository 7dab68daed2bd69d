"""Golden cases match, and a case whose numbers were tampered with does not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvbench.eviction.scores.score import Score
from kvbench.extras.conformance.golden import Case, check, load
from kvbench.extras.conformance.tests.cases import CASES, GIVEN


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case_matches(path: Path) -> None:
    verdict = check(load(path))
    assert verdict.problem is None
    assert verdict.error < 0.5  # of the tolerance: float32 leaves room


@pytest.mark.parity
def test_every_given_case_of_these_parts_matches(shared: Path) -> None:
    """The copies here are those of the shared folder, and no case there needs only parts that are here and fails."""
    folder = shared / "golden" / "eviction"
    for path in GIVEN:
        assert path.read_bytes() == (folder / path.name).read_bytes()
    for path in folder.glob("*.npz"):
        verdict = check(load(path))
        assert verdict.problem is None or "not supported" in verdict.problem, f"{path.stem}: {verdict.problem}"


def flip_kept(case: Case) -> None:
    case.arrays["kept"][1, 0, 50] ^= True


def flip_length(case: Case) -> None:
    case.arrays["lengths"][2, 1] ^= 1


def flip_score(case: Case) -> None:
    """The lowest exponent bit of one score."""
    column = int(np.nanargmax(case.arrays["scores"][0, 0]))
    case.arrays["scores"].view(np.int64)[0, 0, column] ^= 1 << 52


def flip_query(case: Case) -> None:
    """The sign of one entry of a observed query."""
    case.arrays["query"].view(np.uint32)[0, 0, -1, 0] ^= 1 << 31


@pytest.mark.parametrize("flip", [flip_kept, flip_length, flip_score, flip_query], ids=lambda flip: flip.__name__)
def test_one_flipped_bit_fails(case: Case, flip: Callable[[Case], None]) -> None:
    assert check(case).problem is None
    flip(case)
    assert check(case).problem is not None


def test_a_score_that_is_not_a_number_fails(case: Case) -> None:
    """One that is expected to be one and is not."""
    case.arrays["scores"][0, 0, 100] = np.nan
    assert check(case).problem == "candidates are not the expected columns"


def test_whatever_a_score_raises_is_the_problem_of_its_case(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, parameters: object) -> Score:
        raise RuntimeError("out of order")

    monkeypatch.setattr("kvbench.extras.conformance.golden.case.make_score", broken)
    assert check(case).problem == "cannot be run: RuntimeError: out of order"


def test_equal_scores_may_be_exchanged(case: Case) -> None:
    """The contract accepts either order among ties, and nothing else."""
    kept, scores = case.arrays["kept"][0, 0], case.arrays["scores"][0, 0]
    plateau = next(
        (inside, outside)
        for inside in np.flatnonzero(kept)
        for outside in np.flatnonzero(~kept)
        if not np.isnan(scores[inside]) and abs(scores[inside] - scores[outside]) <= 1e-9 * scores[inside]
    )
    kept[list(plateau)] ^= True
    assert check(case).problem is None
