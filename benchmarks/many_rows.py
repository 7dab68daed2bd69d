"""Commands on a folder that already has very many rows: processor seconds and resident memory of each.

    python benchmarks/many_rows.py [--rows 200000 1000000] [--cells 2000] [--folder DIR]

The rows are synthetic and valid, of cells that no command asks for (`benchmarks/rows.py` writes them, 1.2 GB for a
million). Each command is a process of its own: a run of one new prompt, twice, for the first run reads all files as
lines and leaves their columns in `columns/`; the same run when nothing is missing; the status; a table of all cells.
The first line is a run in an empty folder: what Python, torch and one prompt take.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.rows import write

RUN = ("run", "task=ruler/niah_single_1", "task.max_new_tokens=4", "policy=snapkv", "budget=0.2", "--quiet")


def main() -> None:
    """Print a line a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[200_000, 1_000_000])
    parser.add_argument("--cells", type=int, default=2_000)
    parser.add_argument("--folder", type=Path, help="where rows are written, or taken from if they are there already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = options.folder or Path(temporary)
        report("empty folder, one prompt", [*RUN, "task.samples=1", f"results.dir={temporary}/empty"])
        for rows in options.rows:
            folder = place / f"{rows}-rows"
            if not folder.exists():
                write(folder, rows, options.cells)
            size = sum(path.stat().st_size for path in (folder / "rows").iterdir())
            print(f"{rows} rows of {options.cells} cells, {size >> 20} MiB", flush=True)
            results = f"results.dir={folder}"
            report("one new prompt", [*RUN, "task.samples=1", results])
            report("one more prompt", [*RUN, "task.samples=2", results])
            report("nothing to do", [*RUN, "task.samples=2", results])
            report("status", ["status", "--results", str(folder)])
            report("report table", ["report", "table", "--results", str(folder)])


def report(name: str, arguments: list[str]) -> None:
    """Run a command in a fresh process and print what it took. Exits where it fails."""
    command, start = [sys.executable, "-m", "kvbench", *arguments], time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    messages = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 75):
        sys.exit(f"{name}: {messages}")
    busy, seconds = usage.ru_utime + usage.ru_stime, time.perf_counter() - start
    print(f"{name:<26} {busy:6.1f} s of processors, {seconds:6.1f} s, {usage.ru_maxrss >> 10:5} MiB", flush=True)


if __name__ == "__main__":
    main()
