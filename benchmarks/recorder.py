"""How many rows a second a recorder brings to the disk: units of a sweep's size, each written whole and synced.

    python benchmarks/recorder.py [--cells 24] [--units 200] [--folder FOLDER]

What is read back must be what was written.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.rows import generated
from kvbench.records import Recorder, Row, read_rows


def main() -> None:
    """Measure and print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=24)
    parser.add_argument("--units", type=int, default=200)
    parser.add_argument("--folder")
    options = parser.parse_args()
    lines = [generated(range(cell, cell + 1), options.units) for cell in range(options.cells)]
    units = [[Row.from_json(line) for line in unit] for unit in zip(*lines, strict=True)]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        taken, cpu = [], time.process_time()
        with Recorder(folder) as recorder:
            for unit in units:
                start = time.perf_counter()
                recorder.append(unit)
                taken.append(time.perf_counter() - start)
        cpu = time.process_time() - cpu
        if read_rows(folder) != [row for unit in units for row in unit]:
            sys.exit("what was read back is not what was written: nothing to time")
    rows = options.cells * options.units
    print(
        f"{rows} rows in units of {options.cells}: {rows / sum(taken):.0f} rows a second, {rows / cpu:.0f} a second of"
    )
    print(f"the process; a unit {1000 * statistics.median(taken):.1f} ms, at most {1000 * max(taken):.1f} ms")


if __name__ == "__main__":
    main()
