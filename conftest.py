"""What every test may rely on: no network, one thread, and an honest answer about the shared reference files."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports torch or transformers; child processes of tests inherit it.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
# Modules are compiled once, and not by every process of a test and by every session of pytest.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Kernels run in Triton's interpreter, which must be asked for before anything imports triton.
os.environ.setdefault("TRITON_INTERPRET", "1")

# absl, which rouge_score imports, keeps the stderr that it finds, here a file of pytest, and closes it when another
# package configures logging.
with suppress(ImportError):
    from absl import logging as absl_logging

    absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__

# How long an example takes says nothing about it; what failed once is printed so that it can be pasted into a test.
settings.register_profile("kvbench", deadline=None, print_blob=True, max_examples=50)
settings.load_profile("kvbench")

SHARED = "KVBENCH_SHARED"


def shared_folder(root: Path) -> Path | None:
    """Return the folder that KVBENCH_SHARED names, seen from the repository's root; None where it is unset."""
    named = os.environ.get(SHARED)
    return (root / named).resolve() if named else None


@pytest.fixture
def shared(pytestconfig: pytest.Config) -> Path:
    """Return the folder of reference files; a test that asks for it is a parity test."""
    folder = shared_folder(pytestconfig.rootpath)
    if folder is None:
        pytest.skip(f"{SHARED} is not set: no reference files to compare with")
    if not folder.is_dir():
        pytest.fail(f"{SHARED}={os.environ[SHARED]!r} is no folder ({folder}); unset it to skip the parity tests")
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """No test inherits the width of a screen from whoever runs it, or from a test before it."""
    os.environ.pop("COLUMNS", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for the fixture `shared` is marked `parity`."""
    for item in items:
        if "shared" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.parity)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests stay: garbage is looked for only among what comes after them.

    Kernels run faster in an interpreter that does once what does not change.
    """
    gc.disable()
    try:
        collected = yield
    finally:
        gc.freeze()
        gc.enable()
    if "triton.runtime.interpreter" in sys.modules:
        from benchmarks.gpu_check.interpreter import remember_parts

        remember_parts()
    return collected


def pytest_unconfigure() -> None:
    """Let the end of the process free what collection made: else nanobind tells of leaks."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Where the reference files are there, a parity test that skips has failed: nothing was compared."""
    report: pytest.TestReport = yield
    folder = shared_folder(item.config.rootpath)
    expected_failure = hasattr(report, "wasxfail")
    if report.skipped and not expected_failure and folder and folder.is_dir() and item.get_closest_marker("parity"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: a parity test may not be skipped while {SHARED} is there ({reason})"
    return report
