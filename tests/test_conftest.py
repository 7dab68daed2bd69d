"""The test bench itself: a missing reference file is no pass, and array annotations are looked at when asked for."""

import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

from kvbench.eviction.pooling import Pool
from tests.forked import Forked

ROOT = Path(__file__).resolve().parent.parent


def test_array_annotations_are_checked_where_they_are_asked_for(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("jaxtyping_packages"):
        pytest.skip("annotations are checked by `make test-annotations`")
    one_axis_too_few = torch.zeros(5)
    with pytest.raises(TypeCheckError):
        Pool("max", 3)(one_axis_too_few)


def test_what_checks_annotations_can_be_found() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    rooms = re.search(r"ROOMS_OF_ARRAYS := \$\(addprefix kvbench\.,(.*?)\)", makefile)[1].split()  # type: ignore[index]
    assert len(rooms) > 10
    assert [room for room in rooms if find_spec(f"kvbench.{room}") is None] == []
    asked = ["make", "--dry-run", "--no-print-directory", "test-annotations", "VENV=/nowhere"]
    named = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    tests = {ROOT / word.partition("::")[0] for word in named if re.match(r"(tests|kvbench)/", word)}
    assert len(tests) > 30 and [test for test in tests if not test.exists()] == []


PARITY = """
import pytest

def test_compares(shared):
    pytest.skip("no file of that name")

@pytest.mark.parity
def test_is_marked():
    pytest.skip("another reason")

@pytest.mark.parity
@pytest.mark.xfail(reason="known")
def test_is_expected_to_fail():
    assert False

def test_is_another():
    pytest.skip("not about reference files")
"""


@pytest.mark.parametrize(
    ("folder", "counts"),
    [
        ("reference", "2 failed, 1 skipped, 1 xfailed"),
        (None, "3 skipped, 1 xfailed"),
        ("missing", "2 skipped, 1 xfailed, 1 error"),
    ],
)
def test_a_parity_test_may_not_skip_where_the_files_are(tmp_path: Path, folder: str | None, counts: str) -> None:
    (tmp_path / "reference").mkdir()
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "test_parity.py").write_text(PARITY)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = parity\n")

    def work() -> int:
        for name in [name for name in os.environ if name == "KVBENCH_SHARED" or "PYTEST" in name]:
            del os.environ[name]
        if folder:
            os.environ["KVBENCH_SHARED"] = folder
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        return pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:unraisableexception"])

    out, _ = Forked(work, tmp_path, tmp_path).communicate()
    assert counts in out.splitlines()[-1]
