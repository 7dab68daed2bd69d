"""Kill -9 of tasks of launcher=slurm on a real cluster, again and again: no row is lost, doubled or different.

    scripts/slurm_single_node.sh start; export SLURM_CONF=/tmp/kvbench-slurm/slurm.conf
    python benchmarks/slurm_kills.py [--kills 20] [--tasks 2] [--samples 60]

A sweep of the embedded model is made by one process, then by the tasks of jobs on this node, which are killed one after
the other, up to two seconds after each has recorded rows. A sweep that is complete is compared, and another one begins.
Exits with 1 at the first difference. Not part of `make bench`: it needs a SLURM.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from kvbench.records import read_processes, read_rows
from kvbench.records.row import has_checksum

SWEEP = ("policy=full,snapkv,h2o_obcache", "budget=0.2", "task.context_length=512")
JOBS = ("launcher=slurm", "launcher.gpus=0", "launcher.time=30", "results.lease_seconds=24")
Rows = dict[tuple[str, int], dict[str, Any]]


def main() -> None:
    """Print a line for each sweep, and the number of kills."""
    if "SLURM_CONF" not in os.environ:
        print("no SLURM_CONF: not run (see the head of this script)")
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("kills", 20), ("tasks", 2), ("samples", 60)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    draw, kills, sweep = random.Random(25), 0, 0
    with tempfile.TemporaryDirectory() as place:
        sweep_words = (*SWEEP, f"task.samples={options.samples}")
        kvbench(*sweep_words, f"results.dir={place}/alone")
        expected = rows_of(Path(place, "alone"))
        while kills < options.kills:
            sweep += 1
            folder, before, killed = Path(place, str(sweep)), kills, set[str]()
            while len(rows_of(folder)) < len(expected):
                kvbench(*sweep_words, *JOBS, f"launcher.shards={options.tasks}", f"results.dir={folder}")
                while kills < options.kills and working(folder, killed):
                    victim = draw.choice(working(folder, killed) or [""])
                    time.sleep(draw.uniform(0, 2))
                    kills += kill(folder, victim)
                    killed.add(victim)
                    print(f"killed {kills}, {len(rows_of(folder))} of {len(expected)} rows", file=sys.stderr)
                while is_queued():
                    time.sleep(1)
                rows = rows_of(folder)
                if not rows.items() <= expected.items():
                    sys.exit("a row differs from that of one process")
            twice = [key for key, count in lines_of(folder).items() if count > 1]
            print(
                f"sweep {sweep}: {kills - before} kills, {len(expected)} rows, {len(twice)} of them twice", flush=True
            )
            if twice or rows_of(folder) != expected:
                sys.exit("a row is there twice, or another one")
    print(f"{kills} tasks killed in {sweep} sweeps: no row lost, doubled or different")


def kvbench(*words: str) -> None:
    """Run a sweep, or submit it."""
    done = subprocess.run([sys.executable, "-m", "kvbench", "run", *words], capture_output=True, text=True)
    if done.returncode not in (0, 75):
        sys.exit(done.stderr)


def working(folder: Path, killed: set[str]) -> list[str]:
    """The processes that have recorded rows and run; waits until there is one, or no job is queued."""
    while True:
        names = [
            process.name
            for process in read_processes(folder)
            if process.rows and not process.has_ended and process.name not in killed
        ]
        if names or not is_queued():
            return names
        time.sleep(0.2)


def kill(folder: Path, name: str) -> bool:
    """Kill a process by its number, if it still runs."""
    for process in read_processes(folder):
        if process.name == name and not process.has_ended:
            os.kill(process.pid, signal.SIGKILL)
            return True
    return False


def is_queued() -> bool:
    """Whether SLURM has a task of ours that waits or runs."""
    return bool(subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, check=True).stdout.strip())


def rows_of(folder: Path) -> Rows:
    """What each row says, without seconds and place."""
    return {(row.cell, row.sample): row.outcome() for row in read_rows(folder, lambda _: None)}


def lines_of(folder: Path) -> Counter[tuple[str, int]]:
    """How many whole lines each sample of a cell has over all rows files."""
    lines = [line for path in (folder / "rows").glob("*.jsonl") for line in path.read_bytes().splitlines()]
    rows = [json.loads(line) for line in lines if has_checksum(line)]
    return Counter((row["cell"], row["sample"]) for row in rows)


if __name__ == "__main__":
    main()
