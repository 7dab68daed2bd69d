"""Make, pack, check and tell the committed rows of the embedded model, results/reference.

    python scripts/reference.py run [--part main] [--samples N] [--processes 2] [--results DIR]
    python scripts/reference.py pack [--results DIR]       rows and tables of a run into results/reference
    python scripts/reference.py gate [--results DIR]       make the first samples again; exit code 5: they are worse
    python scripts/reference.py pages [--check]            the tables of docs/claims.md and docs/sensitivity.md
    python scripts/reference.py pictures                   the figures of README and docs, from the committed rows

What the rows are stands in results/reference/sweeps.yaml. A run goes on where it stopped.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reference_results.sweeps import REFERENCE, TOP, parts

RESULTS = TOP / "results" / "runs" / "reference"


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "pack", "gate", "pages", "pictures"))
    parser.add_argument("--results", type=Path)
    parser.add_argument("--part", action="append", choices=list(parts()), default=[])
    parser.add_argument("--samples", type=int)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    known = parts()
    results = (options.results or RESULTS).resolve()
    chosen = [known[name] for name in options.part] or [part for part in known.values() if not part.long]
    match options.command:
        case "run":
            from reference_results.workers import make_all

            return make_all(chosen, results, options.samples, options.processes)
        case "pack":
            from reference_results.pack import pack_all

            pack_all(results, chosen, REFERENCE)
            return 0
        case "gate":
            from reference_results.gate import gate

            gated = [known["main"], known["books"]]
            folder = results if options.results else TOP / "results" / "runs" / "gate"
            return gate(gated, folder, REFERENCE, options.processes)
        case "pictures":
            from reference_results.pictures import IMAGES, draw_all

            draw_all(IMAGES)
            return 0
    from reference_results.pages import write_pages

    return write_pages(options.check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
