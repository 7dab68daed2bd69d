"""The rows of a command at Weights & Biases: one run per cell, named by the cell's hash, the same wherever it is made.

The results folder stays the record: nothing is read back from there.

A run holds the cell's description as its config, value and new tokens by sample, a table of samples, and as its summary
the means of the table; runs of one command are a group, with one more run for the table and the trade-off of the whole
command. Nothing about the machine is sent: no variables, arguments, packages, code or git.
"""

import fcntl
import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

from kvbench.records import ResultsFolder, Row
from kvbench.records.lines import read_json
from kvbench.report.report_file import text_to
from kvbench.support.annotations import Help, Range, check_ranges
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped

if TYPE_CHECKING:  # pandas and matplotlib are loaded when there is something to mirror
    from kvbench.report.tables.summary import Summary

Mode = Literal["offline", "online", "disabled"]
MIRRORED, LOCK = "wandb/mirrored.json", "wandb/mirrored.lock"
"""A hash of the mirrored rows, by run; and the file whose lock the one process has that mirrors."""
SAMPLE = ("sample", "value", "prediction", "error", "new_tokens", "kept_fraction", "cache_bytes", "prompt_sha256")


@dataclass(frozen=True)
class Wandb:
    """Mirrors to a project. The variable `WANDB_MODE`, if set, replaces `mode`.

    Raises ValueError for a table of less than no samples.
    """

    name: str = "wandb"
    project: str = "kvbench"
    entity: Annotated[str | None, Help("null: the account's default")] = None
    mode: Annotated[
        Mode,
        Help("offline: files under results.dir/wandb, for wandb sync; online; disabled. WANDB_MODE, if set, wins"),
    ] = "offline"
    samples: Annotated[int, Help("rows of the table of samples of each cell, at most"), Range(0, 10**9)] = 200

    def __post_init__(self) -> None:
        check_ranges(self, "logger")
        for name, value in (("project", self.project), ("entity", self.entity)):
            if value is not None and (not 1 <= len(value) <= 128 or set(value) & set("/\\#?%:")):  # as wandb refuses
                raise UserError(f"logger.{name}={value}: allowed: 1 to 128 characters without / \\ # ? % :")

    def check(self) -> None:
        """Raise UserError if the package is missing, WANDB_MODE is not a mode, or nobody is logged in to go online."""
        if find_spec("wandb") is None:
            raise UserError("logger=wandb needs wandb: pip install 'kvbench[wandb]', or leave logger out")
        mode = os.environ.get("WANDB_MODE", self.mode)
        if mode not in ("offline", "online", "disabled"):
            raise UserError(f"WANDB_MODE={mode}: allowed: offline, online, disabled")
        if mode == "online" and not _is_logged_in():
            raise UserError(
                "W&B is online, and nobody is logged in: run wandb login, or leave out logger.mode=online and "
                "WANDB_MODE: files are written, and wandb sync sends them later"
            )

    def mirror(self, results: ResultsFolder, rows: Sequence[Row]) -> str | None:
        """Mirror cells whose rows have changed since they were mirrored from this folder, then the whole command.

        Returns where the files of an offline logger are, and the command that sends them.
        """
        mode = os.environ.get("WANDB_MODE", self.mode)
        if mode == "disabled" or not rows:
            return None
        with _alone(results):
            self._mirror(results, rows)
        if mode == "online":
            return None
        runs = results.path / "wandb" / "offline-run-"
        return f"W&B is offline: the files are in {runs.parent}; wandb sync {shlex.quote(str(runs))}* sends them"

    def _mirror(self, results: ResultsFolder, rows: Sequence[Row]) -> None:
        from kvbench.report.tables.summary import summaries

        by_cell = grouped(sorted(rows, key=lambda row: row.sample), lambda row: row.cell)
        mirrored = _read(results)
        group = hashlib.sha256("".join(sorted(by_cell)).encode()).hexdigest()[:16]
        lines = {line.cell: line for line in summaries(rows)}
        for cell, members in by_cell.items():
            if mirrored.get(cell) != (state := _state(members)):
                self._cell(results, group, lines[cell], members)
                mirrored[cell] = state
                _write(results, mirrored)
        if mirrored.get(group) != (state := _state(rows)):
            self._sweep(results, group, list(lines.values()))
            mirrored[group] = state
            _write(results, mirrored)

    def _cell(self, results: ResultsFolder, group: str, line: "Summary", rows: Sequence[Row]) -> None:
        import wandb

        label = " ".join(str(part) for part in (line.task, line.policy, line.score, line.budget) if part is not None)
        config = {"cell": line.cell, **(results.read_cell(line.cell) or {})}
        with self._run(results, line.cell, label, group, "cell", config) as run:
            for row in rows:
                numbers = {"value": row.value, "new_tokens": row.new_tokens}
                run.log({name: number for name, number in numbers.items() if number is not None}, step=row.sample)
            table = wandb.Table(columns=list(SAMPLE))
            for row in rows[: self.samples]:
                table.add_data(*(getattr(row, name) for name in SAMPLE))
            run.log({"samples": table})
            run.summary.update({name: value for name in _columns() if (value := getattr(line, name)) is not None})

    def _sweep(self, results: ResultsFolder, group: str, lines: Sequence["Summary"]) -> None:
        import wandb

        from kvbench.report.plots.plot import plot

        config = {"cells": [line.cell for line in lines]}
        with self._run(results, group, f"sweep of {len(lines)} cells", group, "sweep", config) as run:
            columns: Any = _columns()
            table = wandb.Table(columns=columns)
            for line in lines:
                table.add_data(*(getattr(line, name) for name in columns))
            logged: dict[str, Any] = {"table": table}
            with TemporaryDirectory() as folder:
                try:
                    picture = Path(folder) / "tradeoff.png"
                    plot("tradeoff", results, picture, {"cell": ",".join(config["cells"])}, lambda text: None)
                    logged["tradeoff"] = wandb.Image(str(picture))
                except ValueError:  # a command whose cells make no curve
                    pass
                run.log(logged)

    @contextmanager
    def _run(
        self, results: ResultsFolder, id: str, name: str, group: str, kind: str, config: Mapping[str, Any]
    ) -> Iterator[Any]:
        """Yield a run of that id, continued if it exists."""
        import wandb

        results.path.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            save_code=False,
            host="",
            program="kvbench",
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        mode: Any = os.environ.get("WANDB_MODE", self.mode)
        place: Any = {"project": self.project, "entity": self.entity, "mode": mode, "dir": str(results.path)}
        about: Any = {"id": id, "name": name, "group": group, "job_type": kind, "config": dict(config)}
        run = wandb.init(**about, **place, resume="allow", settings=settings)
        try:
            yield run
        finally:
            run.finish()


def _is_logged_in() -> bool:
    """Return whether W&B has a key, which is not verified."""
    import wandb

    return bool(wandb.login(prompt=False, verify=False))


def _columns() -> list[str]:
    """Columns of a summary that are a cell's own: decoding steps are shared by cells."""
    from kvbench.report.tables.summary import COLUMNS

    return [name for name in COLUMNS if name != "decode_seconds"]


def _state(rows: Sequence[Row]) -> str:
    text = "\n".join(sorted(row.to_json() for row in rows))
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def _alone(results: ResultsFolder) -> Iterator[None]:
    """Hold the folder's lock of mirrored runs: two parts of a sweep may end at the same time."""
    path = results.path / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(results: ResultsFolder) -> dict[str, str]:
    """Return the hashes in ``MIRRORED``. Raises UserError for a file that is not a JSON object of texts."""
    path = results.path / MIRRORED
    if not os.path.lexists(path):
        return {}
    return read_json(dict[str, str], path, "a JSON object of hashes by run (without it every cell is uploaded again)")


def _write(results: ResultsFolder, mirrored: Mapping[str, str]) -> None:
    path = results.path / MIRRORED
    path.parent.mkdir(parents=True, exist_ok=True)
    with text_to(path) as file:
        json.dump(mirrored, file, indent=1, sort_keys=True)
