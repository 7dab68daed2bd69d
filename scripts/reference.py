"""Make, pack, check and tell the committed rows of a model: results/reference (the embedded one), results/smollm2.

    python scripts/reference.py run [--part main] [--samples N] [--processes 2] [--results DIR] [--seconds S]
    python scripts/reference.py pack [--results DIR]       rows and tables of a run into results/NAME
    python scripts/reference.py unpack [--results DIR]     the packed rows as a run, which `run` then continues
    python scripts/reference.py gate [--results DIR]       make some rows again; exit code 5: worse, or too few to tell
    python scripts/reference.py pages [--check]            the tables of the pages in docs, from the committed rows
    python scripts/reference.py pictures                   the figures of README and docs, from the committed rows

`--rows smollm2` chooses the model of the first four; by default it is `reference`. What the rows are stands in
results/NAME/sweeps.yaml. A run goes on where it stopped; `--stale` says what it does about rows of other code, as of
`kvbench run`. After `--seconds`, or a SIGTERM, it ends the prompt at hand and exits with 75: the same command goes on.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reference_results.sweeps import NAMES, TOP, row_set


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "pack", "unpack", "gate", "pages", "pictures"))
    parser.add_argument("--rows", choices=NAMES, default=NAMES[0])
    parser.add_argument("--results", type=Path)
    parser.add_argument("--part", action="append", default=[])
    parser.add_argument("--samples", type=int)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--stale", choices=("stop", "keep", "rerun"), default="stop")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    known = row_set(options.rows)
    if unknown := [name for name in options.part if name not in known.parts]:
        parser.error(f"--part {unknown[0]}: allowed: {', '.join(known.parts)}")
    results = (options.results or known.runs).resolve()
    chosen = [known.parts[name] for name in options.part] or [part for part in known.parts.values() if not part.long]
    match options.command:
        case "run":
            from reference_results.workers import make_all

            asked = (known, chosen, results, options.samples, options.processes)
            return make_all(*asked, stale=options.stale, seconds=options.seconds)
        case "pack":
            from reference_results.pack import pack_all

            pack_all(known, results, chosen)
            return 0
        case "unpack":
            from reference_results.unpack import unpack_all

            unpack_all(known, results)
            return 0
        case "gate":
            from reference_results.gate import gate

            folder = results if options.results else TOP / "results" / "runs" / f"gate-{known.name}"
            return gate(known, folder, options.processes)
        case "pictures":
            from reference_results.pictures import IMAGES, draw_all

            draw_all(IMAGES)
            return 0
    from reference_results.pages import write_pages

    return write_pages(options.check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
