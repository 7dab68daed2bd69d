"""A million rows to a table: seconds and memory of reading, selecting and summarising them.

    python benchmarks/rows.py [--rows 1000000] [--cells 2000] [--repeat 1]

Rows as long as those of a run, written to a temporary folder (about 1.2 GB; generating them is not timed). Each way in
is a process of its own, whose largest resident memory is reported. First, on a small folder, the summaries must be what
plain Python makes of the same rows one by one.
"""

import argparse
import hashlib
import json
import math
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from kvbench.records import ResultsFolder, Row, read_rows
from kvbench.records.folder import Finished
from kvbench.records.parquet_rows import write_parquet
from kvbench.records.row import with_checksum
from kvbench.report.rows import describer, load_table
from kvbench.report.tables.summary import NEEDED, summaries

FILES = 4
ONE = "from benchmarks.rows import measured; measured({!r})"


def main() -> None:
    """Measure and print a line a way in."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 1_000_000), ("cells", 2_000), ("repeat", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder, "small"), Path(folder, "large")
        write(small, 2_000, 20)
        check(small)
        write(large, options.rows, options.cells)
        size = sum(path.stat().st_size for path in large.rglob("*.jsonl"))
        write_parquet(load_table(large), Path(folder, "rows.parquet"), describer(large))
        machine = platform.processor() or platform.machine()
        print(f"{machine}, {options.rows} rows of {options.cells} cells, {size >> 20} MiB")
        for source in (large, Path(folder, "rows.parquet")):
            runs = [in_a_process(source) for _ in range(options.repeat)]
            seconds, busy, memory = zip(*runs, strict=True)
            spread = f"{statistics.median(seconds):6.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
            busiest = f"{max(busy):.2f} s of a processor at most"
            print(f"{source.suffix or '.jsonl':<9} {spread}, {busiest}, {max(memory) >> 20} MiB resident at most")


def in_a_process(source: Path) -> tuple[float, float, int]:
    """(seconds, seconds of a processor, bytes) of a fresh interpreter."""
    run = subprocess.run([sys.executable, "-c", ONE.format(str(source))], capture_output=True, text=True, check=True)
    seconds, busy, memory = run.stdout.split()
    return float(seconds), float(busy), int(memory)


def measured(source: str) -> None:
    """Summarise rows; print seconds, seconds of a processor and the largest resident memory of this process."""
    start, busy = time.perf_counter(), time.process_time()
    summaries(load_table(source, NEEDED))
    print(time.perf_counter() - start, time.process_time() - busy, largest_memory())


def largest_memory() -> int:
    """Bytes resident at most in this process. Not ru_maxrss on Linux: that of a parent is handed down to its child."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def check(folder: Path) -> None:
    """Exit where the summaries differ from sums over rows that were read one by one."""
    summary_of = {line.cell: line for line in summaries(load_table(folder, NEEDED))}
    rows: dict[str, list[Row]] = {}
    for row in read_rows(folder):
        rows.setdefault(row.cell, []).append(row)
    for cell, group in rows.items():
        values = [row.value for row in group if row.value is not None]
        expected = (len(values), sum(row.error is not None for row in group), math.fsum(values) / len(values))
        if (summary_of[cell].n, summary_of[cell].errors, summary_of[cell].mean) != expected or len(summary_of) != len(
            rows
        ):
            sys.exit(f"cell {cell}: {summary_of[cell]} is not {expected}: nothing to time")


def write(folder: Path, rows: int, cells: int) -> None:
    """A results folder of so many rows."""
    (folder / "rows").mkdir(parents=True)
    for part in range(FILES):
        name, checksum, part_of_cells = f"2026-host-{part}", 0, range(part, cells, FILES)
        with (folder / "rows" / f"{name}.jsonl").open("wb") as file:
            for line in generated(part_of_cells, rows // cells):
                checksum = zlib.crc32(line, checksum)
                file.write(line)
        finished = Finished(len(part_of_cells) * (rows // cells), f"{checksum:08x}")
        ResultsFolder(folder).write_finished(name, finished)


def generated(cells: range, samples: int) -> Iterator[bytes]:
    """Lines of rows, each as long as those of a run."""
    for cell in cells:
        draw = random.Random(cell)
        budget = draw.choice(("0.05", "0.1", "0.2", "0.4"))
        policy, score = draw.choice(("h2o_obcache", "tova_obcache", "snapkv")), draw.choice(("attn", "obcache_joint"))
        name = hashlib.sha256(str(cell).encode()).hexdigest()
        row = Row(
            **{
                "cell": name[:16],
                "sample": 0,
                "model": "reference",
                "task": f"ruler/task_{cell // 24}",
                "policy": policy,
            },
            **{"score": score, "budget": budget, "variant": "paper", "layout": "kv_heads", "schedule": "prompt"},
            **{"task_version": "ruler-c3f5e3b-2026.1", "context_length": 4096, "seed": 42, "prompt_tokens": 4000},
            **{"kept_tokens": 400.0, "kept_fraction": float(budget), "cache_bytes": 71303168, "new_tokens": 12},
            **{
                "full_cache_bytes": 713031680,
                "allocated_bytes": 73400320,
                "store": "flat",
                "metric": "string_match_all",
            },
            **{"prediction": " the special magic number is 8090293", "prompt_sha256": name, "output_sha256": name},
            **{"kept_sha256": name, "top2_margin": 6.799571990966797, "environment": "71cea5a54fda"},
            code="c0de00000000",
        )
        line = json.loads(row.to_json())
        del line["checksum"]
        for sample in range(samples):
            seconds = {f"{part}_seconds": draw.random() for part in ("prefill", "evict", "decode")}
            failed = draw.random() < 0.001
            judged = {"error": "too long", "value": None} if failed else {"value": float(draw.random() < 0.7)}
            yield with_checksum(json.dumps(line | {"sample": sample} | seconds | judged)).encode() + b"\n"


if __name__ == "__main__":
    main()
