"""Jobs of SLURM that work on a sweep: `jobs/<number>.json` in its results folder, and what squeue says of them."""

import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kvbench.records import ResultsFolder
from kvbench.support.errors import UserError

ROOM = "jobs"
SECONDS = 60


@dataclass(frozen=True)
class Job:
    """A job, or an array: its number, how many tasks it has, when it was submitted and for which command."""

    number: str
    tasks: int
    submitted_utc: str
    command: tuple[str, ...]

    def write(self, folder: ResultsFolder) -> Path:
        """Keep it in a results folder."""
        path = folder.path / ROOM / f"{self.number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")
        temporary.replace(path)
        return path


def read_jobs(folder: ResultsFolder) -> list[Job]:
    """The jobs of a results folder by number. Raises ValueError for a file that is none."""
    jobs = []
    for path in (folder.path / ROOM).glob("*.json"):
        try:
            data = json.loads(path.read_text("utf-8"))
            job = Job(data["number"], data["tasks"], data["submitted_utc"], tuple(data["command"]))
            if not (isinstance(job.number, str) and job.number.isdecimal() and job.number == path.stem):
                raise UserError(f"its number is {job.number!r}")  # another word would be an option of scancel
            jobs.append(job)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{path} is no job ({type(error).__name__}: {error}); remove it") from error
    return sorted(jobs, key=lambda job: int(job.number))


def queue(jobs: Iterable[Job]) -> dict[str, str] | None:
    """The states of tasks that are in the queue or were lately, by their names such as 12_3 or 12.

    None where there is no squeue, or none that answers. A task that SLURM has forgotten is not there.
    """
    numbers = [job.number for job in jobs]
    if not numbers:
        return {}
    if shutil.which("squeue") is None:
        return None
    # asked for by number, squeue fails as soon as it has forgotten one of them
    command = ["squeue", "--noheader", "--array", "--me", "--states=all", "--format=%A|%F|%K|%T"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    states = {}
    for line in said.splitlines():
        _, array, place, state = line.strip().split("|")
        if array in numbers:
            states[f"{array}_{place}" if place != "N/A" else array] = state
    return states


def cancel(jobs: Sequence[Job]) -> None:
    """Ask SLURM to end jobs. Raises ValueError, with its words, where it does not."""
    command = ["scancel", *(job.number for job in jobs)]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    except FileNotFoundError:
        raise UserError("scancel is not here: cancel where the jobs were submitted") from None
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        raise UserError(f"{' '.join(command)}: {said}") from None
