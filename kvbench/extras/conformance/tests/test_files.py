"""Damaged files and the command: each file fails by itself, and the exit code says so."""

import random
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kvbench.cli.main import run_command
from kvbench.extras.conformance.golden import Case, check, load
from kvbench.extras.conformance.tests.cases import CASES, save


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


def test_what_a_flipped_bit_leaves_readable_is_unchanged(tmp_path: Path) -> None:
    """Dates and attributes of an archive have no checksum; whatever is read in spite of a flip is what was written."""
    whole, good = CASES[0].read_bytes(), load(CASES[0])
    generator = random.Random(0)
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
        assert (check(read).problem is None) == (not absent)


def test_a_bit_flipped_on_disk_is_the_failure_of_that_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = CASES[0].read_bytes()
    files = []
    for offset in payload(CASES[0]):
        for bit in (0, 7):
            damaged = bytearray(whole)
            damaged[offset] ^= 1 << bit
            files.append(tmp_path / f"{offset}_{bit}.npz")
            files[-1].write_bytes(damaged)
    assert run_command("conform", [str(CASES[1]), *map(str, files), str(CASES[2])]) == 5
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("PASS ") and lines[-2].startswith("PASS ")
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
    assert run_command("conform", [*map(str, files), str(CASES[1])]) == 5
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:-2]] == [f"FAIL  {file.name}" for file in files]
    assert all("is not a golden case: " in line for line in lines[:-2])
    assert lines[-2].startswith("PASS ") and lines[-1] == "1 of 10 cases match"


def test_command_reports_every_case_and_exits_five_on_failure(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("conform", [str(path) for path in CASES[:2]]) == 0
    assert "2 of 2 cases match" in capsys.readouterr().out
    case.arrays["kept"][1, 0, 50] ^= True
    broken = save(case, tmp_path / "broken.npz")
    text = tmp_path / "text.npz"
    text.write_text("no archive")
    assert run_command("conform", [str(CASES[0]), str(broken), str(text)]) == 5
    out = capsys.readouterr().out
    assert "FAIL  snapkv_group_then_pool: kept positions differ in layer 1, head 0: [50]" in out
    assert "FAIL  text.npz" in out and "1 of 3 cases match" in out
    with pytest.raises(FileNotFoundError, match=r"no such file: nowhere\.npz"):
        run_command("conform", ["nowhere.npz"])
