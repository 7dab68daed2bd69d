"""Golden cases match, and a case that was tampered with does not."""

import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvbench.cli.conform import main, make_score
from kvbench.golden import Case, check, load
from kvbench.golden.case import ARRAYS, AXES
from kvbench.golden.spec import REQUIRED
from kvbench.scores.score import Score

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


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"temperature": 2}, "field temperature is not supported"),
        ({"schedule": {"steps": 3, "state": "none"}}, "field schedule is not supported in a case of kind prefill"),
        ({"heads": {"kind": "uniform", "alpha": 0.5}}, "heads {'kind': 'uniform', 'alpha': 0.5} is not supported"),
        ({"heads": "uniform"}, "heads 'uniform' is not supported"),
        ({"layers": {"kind": "uniform", "beta": 20}}, "layers {'kind': 'uniform', 'beta': 20} is not supported"),
        ({"pool": {"kind": "max", "size": 7, "stride": 2}}, "legal: an object of kind, size and nothing else"),
        ({"pool": {"kind": "max"}}, "legal: an object of kind, size and nothing else"),
        ({"pool": {"kind": "max", "size": 4}}, "pool.size=4 has no middle"),
        ({"order": ["pool", "pool"]}, "policy.order=[pool,pool] is not legal"),
        ({"order": 3}, "policy.order=3 is not legal"),
        ({"sink": 1.5}, "sink 1.5 is not supported; legal: a whole number, 0 or more"),
        ({"sink": "4"}, "sink '4' is not supported"),
        ({"sink": True}, "sink True is not supported"),
        ({"recent": -1}, "recent -1 is not supported"),
        ({"window": -16}, "window -16 is not supported; legal: a whole number, 1 or more"),
        ({"budget_tokens": 64.0}, "budget_tokens 64.0 is not supported"),
        ({"total_pairs": 385}, "total_pairs is 385, but the expected lengths sum to 384"),
        ({"score_tolerance": float("nan")}, "score_tolerance nan is not legal; legal: a number above 0 and below 1"),
        ({"score_tolerance": -1e-5}, "score_tolerance -1e-05 is not legal"),
        ({"score_tolerance": 0}, "score_tolerance 0 is not legal"),
        ({"score_floor": float("inf")}, "score_floor inf is not legal"),
        ({"tie_tolerance": "wide"}, "tie_tolerance 'wide' is not legal"),
        ({"tie_tolerance": 1e9}, "tie_tolerance 1000000000.0 is not legal"),
        ({"variant": "x"}, "variant 'x' is not supported; legal: paper, official"),
        ({"name": None}, "name None is not legal"),
        ({"score": "attn"}, "score 'attn' is not supported"),
        ({"score": {"name": "attn"}}, "legal: an object of name, params and nothing else"),
        ({"score": {"name": ["attn"], "params": {}}}, "legal: a name and an object of parameters"),
        ({"score": {"name": "attn", "params": {"_target_": "builtins.print"}}}, "parameter _target_ of score attn"),
    ],
    ids=str,
)
def test_a_wrong_spec_fails_and_says_why(case: Case, changes: dict[str, Any], reason: str) -> None:
    case.spec.update(changes)
    problem = check(case, make_score).problem
    assert problem is not None and problem.startswith("cannot be run: ") and reason in problem


def test_a_pool_that_is_none_fails(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case.spec["pool"] = {"kind": "median", "size": 7}
    assert main([str(save(case, tmp_path / "case.npz"))]) == 5
    assert "FAIL  snapkv_group_then_pool: " in capsys.readouterr().out


@pytest.mark.parametrize("field", [field for field in REQUIRED if field != "name"])
def test_every_field_must_be_there(case: Case, field: str) -> None:
    del case.spec[field]
    assert check(case, make_score).problem == f"cannot be run: field {field} is missing"


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("size", [1, 7, 0, "3", None])
def test_a_shape_that_is_not_that_of_the_arrays_fails(case: Case, axis: str, size: Any) -> None:
    case.spec["shape"][axis] = size
    problem = check(case, make_score).problem
    assert problem is not None and "shape" in problem


@pytest.mark.parametrize("name", ARRAYS)
def test_every_array_must_be_there_in_its_shape_and_type(case: Case, name: str) -> None:
    good = case.arrays.pop(name)
    assert check(case, make_score).problem == f"cannot be run: array {name} is missing"
    for bad, reason in (
        (good[:, :1], "has shape"),
        (good[None], "has shape"),
        (good.astype(np.float16), "is float16, expected"),
    ):
        case.arrays[name] = bad
        problem = check(case, make_score).problem
        assert problem is not None and f"array {name} {reason}" in problem
    case.arrays[name] = good
    assert check(case, make_score).problem is None
    case.arrays["key_repeat"] = good
    problem = check(case, make_score).problem
    assert problem is not None and "array key_repeat is not supported" in problem


@pytest.mark.parametrize(("name", "value"), [("query", np.nan), ("key", np.inf), ("value", np.nan), ("scores", np.inf)])
def test_numbers_that_are_none_fail(case: Case, name: str, value: float) -> None:
    """Values play no part in this score, and an expected score of inf would allow anything."""
    case.arrays[name][0, 0, 100] = value
    problem = check(case, make_score).problem
    assert problem is not None and f"array {name} holds" in problem


def test_a_score_that_is_not_a_number_fails(case: Case) -> None:
    """One that is expected to be one and is not."""
    case.arrays["scores"][0, 0, 100] = np.nan
    assert check(case, make_score).problem == "candidates are not the expected columns"


def test_whatever_a_score_raises_is_the_problem_of_its_case(case: Case) -> None:
    def broken(name: str, parameters: object) -> Score:
        raise RuntimeError("out of order")

    assert check(case, broken).problem == "cannot be run: RuntimeError: out of order"


def payload(path: Path) -> list[int]:
    """Offsets that matter: signature and compressed bytes of every member, signature and checksum of the directory."""
    offsets = []
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            start = (
                member.header_offset + 50 + len(member.filename)
            )  # a header of 30 bytes, the name, 20 bytes of zip64
            offsets += [member.header_offset, start + 10, start + member.compress_size // 2]
        central = archive.start_dir
    return [*offsets, central, central + 16, path.stat().st_size - 22]


@pytest.mark.parametrize("seed", range(2))
def test_what_a_flipped_bit_leaves_readable_is_unchanged(tmp_path: Path, seed: int) -> None:
    """Dates and attributes of an archive have no checksum; whatever is read in spite of a flip is what was written."""
    whole, good = CASES[0].read_bytes(), load(CASES[0])
    generator = random.Random(seed)
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[generator.randrange(len(whole) - 500, len(whole))] ^= 1 << generator.randrange(8)
        (tmp_path / "damaged.npz").write_bytes(damaged)
        try:
            read = load(tmp_path / "damaged.npz")
        except ValueError:
            continue
        assert read.spec == good.spec
        for name, array in read.arrays.items():
            assert array.tobytes() == good.arrays[name].tobytes()
        absent = good.arrays.keys() - read.arrays.keys()
        assert (check(read, make_score).problem is None) == (not absent)


def test_a_bit_flipped_on_disk_is_the_failure_of_that_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = CASES[0].read_bytes()
    files = []
    for offset in payload(CASES[0]):
        for bit in (0, 7):
            damaged = bytearray(whole)
            damaged[offset] ^= 1 << bit
            files.append(tmp_path / f"{offset}_{bit}.npz")
            files[-1].write_bytes(damaged)
    assert main([str(CASES[1]), *map(str, files), str(CASES[2])]) == 5
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok ") and lines[-2].startswith("ok ")
    assert lines[-1] == f"2 of {len(files) + 2} cases match"
    assert [line.split(":")[0] for line in lines[1:-2]] == [f"FAIL  {file.name}" for file in files]


def test_files_that_are_no_cases_fail_each_by_itself(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = CASES[0].read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "single.npy", case.arrays["kept"])
    np.savez(tmp_path / "unspecified.npz", **case.arrays)  # type: ignore[arg-type]
    np.savez(tmp_path / "pickled.npz", spec=np.array({"kind": "prefill"}, dtype=object))
    for name, text in (("list", "[]"), ("broken", '{"kind": '), ("twice", '{"kind": "decode", "kind": "prefill"}')):
        np.savez(tmp_path / f"{name}.npz", spec=np.array(text))
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("letter.txt", "hello")
    files = sorted(tmp_path.iterdir())
    assert len(files) == 9
    assert main([*map(str, files), str(CASES[1])]) == 5
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:-2]] == [f"FAIL  {file.name}" for file in files]
    assert all("is no golden case: " in line for line in lines[:-2])
    assert lines[-2].startswith("ok ") and lines[-1] == "1 of 10 cases match"


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
