"""Let every call that changes a file fail, one at a time, and run the same command again.

    python -m benchmarks.write_faults [--only COMMAND] [--every N] [--write FOLDER] [--calls]

A command runs once to count its calls: files created, written, synced, closed, renamed and removed. Then it runs in a
fresh copy of its folder for every call and every fault (`disk.Kind` says which), and once more without. Wrong is: a row
that is lost or there twice; exit code 0 although something is missing; a traceback, or an error that is not one line
with the file and the reason; a second run that fails, or leaves another folder than a run without a fault. Ends with 1
if anything is wrong. All commands take about half an hour of processor time.
"""

import argparse
import contextlib
import io
import os
import platform
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

from benchmarks.write_faults.commands import COMMANDS
from benchmarks.write_faults.disk import Kind
from benchmarks.write_faults.trials import clean, tried
from kvbench.run import local

NAMED = ("lost", "doubled", "silent", "traceback", "unclear", "again", "differs", "stray")


def main() -> None:
    """Print what is wrong and the counts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.write_faults", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", help="this command", choices=COMMANDS)
    parser.add_argument("--every", type=int, default=1, help="one fault of so many")
    parser.add_argument("--write", type=Path, help="a folder for the table")
    parser.add_argument("--calls", action="store_true", help="print the calls")
    flags = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # the counts so far are printed
        signal.signal(number, signal.default_int_handler)
    prepare()
    print(HEAD, flush=True)
    lines, wrong = [], 0
    for name in [flags.only] if flags.only else COMMANDS:
        with tempfile.TemporaryDirectory(prefix="kvbench-faults-") as place:
            line, found = faults(name, Path(place), flags.every, flags.calls)
        lines.append(line)
        wrong += found
        print(line, flush=True)
    if flags.write is not None:
        text = f"python -m benchmarks.write_faults\n{platform.machine()}, {os.cpu_count()} cores\n\n"
        (flags.write / "write_faults.txt").write_text(text + "\n".join([HEAD, *lines]) + "\n")
    sys.exit(1 if wrong else 0)


HEAD = f"{'command':16} {'calls':>6} {'faults':>7} {'held':>6}  {'  '.join(NAMED)}"


def prepare() -> None:
    """Let the children of this process have the model, on one thread: threads do not survive a fork."""
    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["KVBENCH_HOME"] = "home"
    loaded, usual = {}, local.load

    def load(info: object, *rest: object) -> object:
        if str(info.spec) not in loaded:  # type: ignore[attr-defined]
            loaded[str(info.spec)] = usual(info, *rest)  # type: ignore[arg-type]
        return loaded[str(info.spec)]  # type: ignore[attr-defined]

    local.load = load  # type: ignore[assignment]


def faults(name: str, place: Path, every: int, shows: bool = False) -> tuple[str, int]:
    """Try the faults of a command, until an interrupt; returns the line of the table, and how many went wrong."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        known = clean(COMMANDS[name], place)
    each: list[tuple[int, Kind]] = [(n, kind) for n, call in enumerate(known.calls) for kind in call.kinds()]
    chosen = each[::every]
    counts, bad = Counter[str](), 0
    if shows:
        print("\n".join(f"  {n} {call.name} {call.path}" for n, call in enumerate(known.calls)))
    for done, (number, kind) in enumerate(chosen):
        try:
            wrong = tried(known, number, kind)
        except KeyboardInterrupt:
            chosen = chosen[:done]
            break
        counts.update({words.partition(":")[0].partition(",")[0] for words in wrong})
        bad += bool(wrong)
        call = known.calls[number]
        for words in wrong:
            print(f"  {name}, {kind} at {number} {call.name} {call.path}: {words}", flush=True)
    numbers = "  ".join(f"{counts[word]:{len(word)}}" for word in NAMED)
    return f"{name:16} {len(known.calls):6} {len(chosen):7} {len(chosen) - bad:6}  {numbers}", bad


if __name__ == "__main__":
    main()
