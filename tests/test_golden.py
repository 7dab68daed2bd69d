"""Golden cases match, and a case that was tampered with does not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvbench.cli.conform import main, make_score
from kvbench.golden import Case, check, load

CASES = sorted((Path(__file__).parent / "golden" / "eviction").glob("*.npz"))


@pytest.fixture
def case() -> Case:
    """SnapKV on a GQA-native cache: 3 layers, 2 KV heads, 200 tokens, 64 of them kept."""
    return load(next(path for path in CASES if path.stem == "snapkv_group_then_pool"))


def save(case: Case, path: Path) -> Path:
    """Write a case the way its file was written."""
    np.savez(path, spec=np.array(json.dumps(case.spec)), **case.arrays)
    return path


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case_matches(path: Path) -> None:
    verdict = check(load(path), make_score)
    assert verdict.problem is None
    assert verdict.error < 0.5  # of the tolerance: float32 leaves room


@pytest.mark.parity
def test_every_given_case_of_these_parts_matches(shared: Path) -> None:
    """The copies here are those of the shared folder, and no case there needs only parts that are here and fails."""
    folder = shared / "golden" / "eviction"
    for path in CASES:
        assert path.read_bytes() == (folder / path.name).read_bytes()
    for path in folder.glob("*.npz"):
        verdict = check(load(path), make_score)
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
    """The sign of one entry of a voting query."""
    case.arrays["query"].view(np.uint32)[0, 0, -1, 0] ^= 1 << 31


@pytest.mark.parametrize("flip", [flip_kept, flip_length, flip_score, flip_query], ids=lambda flip: flip.__name__)
def test_one_flipped_bit_fails(case: Case, flip: Callable[[Case], None]) -> None:
    assert check(case, make_score).problem is None
    flip(case)
    assert check(case, make_score).problem is not None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "decode"),
        ("window", "all"),
        ("heads", {"kind": "mix", "alpha": 0.2}),
        ("layers", {"kind": "pyramid", "beta": 20}),
        ("group", "layer_mean"),
        ("score", {"name": "no_such_score", "params": {}}),
        ("score", {"name": "attn", "params": {"no_such_parameter": 1}}),
        ("recent", 65),
    ],
    ids=str,
)
def test_what_cannot_be_run_fails_and_says_why(case: Case, field: str, value: Any) -> None:
    case.spec[field] = value
    problem = check(case, make_score).problem
    assert problem is not None and problem.startswith("cannot be run: ")


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
    assert check(case, make_score).problem is None


def test_command_reports_every_case_and_exits_five_on_failure(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(path) for path in CASES[:2]]) == 0
    assert "2 of 2 cases match" in capsys.readouterr().out
    flip_kept(case)
    broken = save(case, tmp_path / "broken.npz")
    text = tmp_path / "text.npz"
    text.write_text("no archive")
    assert main([str(CASES[0]), str(broken), str(text)]) == 5
    out = capsys.readouterr().out
    assert "FAIL  snapkv_group_then_pool: kept positions differ in layer 1, head 0: [50]" in out
    assert "FAIL  text.npz" in out and "1 of 3 cases match" in out


def test_command_names_missing_files() -> None:
    with pytest.raises(FileNotFoundError, match=r"no such file: nowhere\.npz"):
        main(["nowhere.npz"])
