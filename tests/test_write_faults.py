"""A few of the faults of benchmarks/write_faults, and faults that it must find."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.write_faults.__main__ import faults, prepare
from kvbench.records.folder import replacing
from kvbench.run import local


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of this process have the model."""
    monkeypatch.setattr(local, "load", local.load)
    for name in ("KVBENCH_HOME", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")
    prepare()


@pytest.mark.parametrize(
    ("command", "every"),
    [
        ("pack", 11),
        ("cancel", 7),
        ("run", 150),
        pytest.param("run", 17, marks=pytest.mark.slow),
        pytest.param("merge", 17, marks=pytest.mark.slow),
        pytest.param("prompts", 5, marks=pytest.mark.slow),
    ],
)
def test_no_failed_write_costs_a_row_or_goes_unseen(
    command: str, every: int, forks: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, wrong = faults(command, tmp_path, every)
    assert wrong == 0, capsys.readouterr().out
    calls, tried, held = map(int, line.removeprefix(command).split()[:3])
    assert tried == held and tried * every >= 4 * calls  # every call has four faults or more


def test_a_command_that_ends_well_without_its_file_is_found(
    forks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def careless(final: Path) -> Iterator[Path]:
        with suppress(OSError), replacing(final) as temporary:
            yield temporary

    monkeypatch.setattr("kvbench.records.manifest.replacing", careless)
    assert faults("pack", tmp_path, 11)[1] > 0
    assert "silent: results manifest.json" in capsys.readouterr().out
