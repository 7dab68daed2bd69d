"""A sweep of 200 cells over 50 prompts in one process, and some of its prompts cell by cell.

    python benchmarks/ratios/many_cells.py [--prompts 50] [--alone 5] [--write FOLDER]

The embedded model, 512 tokens, 16 new ones. The sweep is `kvbench run` from start to table; cell by cell the model is
loaded once and every cell reads each prompt itself. Seconds by the wall and of the process. Exits 1 where one of the
rows is another when its cell runs alone.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from kvbench.models.loading.load import load, model_info
from kvbench.records import read_rows
from kvbench.run.plan import PrefillJob
from kvbench.run.prefill_job import run_prefill_job
from kvbench.tasks.task import Sample
from kvbench.work.planned import plan_sweep

ROOT = Path(__file__).parents[2]
SETTINGS = (
    "policy=snapkv,h2o_obcache,tova_obcache,plain",
    "score=attn,caote,key_norm,vatp,obcache_value",
    "budget=0.5,0.45,0.4,0.35,0.3,0.25,0.2,0.15,0.125,0.1",
    "task.context_length=512",
    "task.max_new_tokens=16",
    "model.threads=1",
    "reference=none",
)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--alone", type=int, default=5)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    settings = [*SETTINGS, f"task.samples={options.prompts}"]
    measured: dict[str, Any] = {"machine": machine(), "settings": settings}
    with tempfile.TemporaryDirectory() as folder:
        results = f"results.dir={folder}/sweep"
        measured["sweep"] = together([*settings, results])
        measured["cell_by_cell"], same = alone(
            [*settings, f"results.dir={folder}/none"], options.alone, f"{folder}/sweep"
        )
    text = json.dumps(measured, indent=1)
    print(text)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "many_cells.json").write_text(text + "\n", "utf-8")
    if not same:
        sys.exit("rows differ where their cell runs alone: no result")


def together(settings: list[str]) -> dict[str, Any]:
    """The whole command, in one process."""
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "kvbench", "run", *settings]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    )
    wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"kvbench run ended with {done.returncode}: {done.stderr[-2000:]}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall, 1), "process_s": round(used, 1), "includes": "start, planning, loading, table"}


def alone(settings: list[str], prompts: int, swept: str) -> tuple[dict[str, Any], bool]:
    """The first prompts with one cell at a time, and whether the rows are those of the sweep."""
    (group,) = plan_sweep(settings, tell=print).plan.groups
    jobs = group.jobs[:prompts]
    model = load(model_info(group.model))
    all_samples = group.samples(model.tokenizer)
    samples = {sample.id: sample for sample in all_samples if isinstance(sample, Sample)}
    expected = {(row.cell, row.sample): row.outcome() for row in read_rows(swept)}
    wall, used, rows, same = [], [], 0, 0
    for job in jobs:
        start, busy = time.perf_counter(), time.process_time()
        alone_rows = [
            row
            for number, cells in job.missing.items()
            for cell in cells
            for row in run_prefill_job(model, PrefillJob({number: (cell,)}), [samples[number]], "alone").rows
        ]
        wall.append(round(time.perf_counter() - start, 2))
        used.append(round(time.process_time() - busy, 2))
        rows += len(alone_rows)
        same += sum(row.outcome() == expected[row.cell, row.sample] for row in alone_rows)
    figures = {"prompts": len(jobs), "rows": rows, "wall_s": wall, "process_s": used, "same_rows": same}
    return figures, same == rows


def machine() -> dict[str, Any]:
    """What ran, on what, and how busy it was."""
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": 1,
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "transformers")},
    }


if __name__ == "__main__":
    main()
