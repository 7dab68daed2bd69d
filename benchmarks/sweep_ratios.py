"""A sweep against kvpress 0.5.5 and transformers, as ratios of one run on one machine with one model and its prompts.

    python benchmarks/sweep_ratios.py [--tokens 1024 4096] [--new 32] [--repeat 3] [--turns 2] [--write FOLDER]
    python benchmarks/sweep_ratios.py --folder MODEL --dtype bfloat16 --device cuda --tokens 8192 32768 --write FOLDER

(a) 24 cells (six policies, four budgets), kvpress one cell after another; (b) one cell, of one prompt and of several;
(c) the full cache against `generate`, likewise; (d) scoring over prefill; (e) rows a second of the recorder. The model
is a random Llama of 30 million parameters, or a folder's. Sides are processes that take turns. Ratios are of the
seconds of the process: those of the wall on a machine with other work count that work too; both are written down. Where
answers differ, a line names the sides, and for (c) the first token that differs with transformers' logits of both.
Exits 1 where those of (c) are not nearly tied, or more than a tenth of the answers of (a) differ for policies whose
kept sets both sides define alike; with `--least`, also where (c), or `generate` once per cell over all cells, is a
smaller ratio of processor time.

kvpress needs an environment of its own (transformers below 5.3): made in build/kvpress the first time, about a
gigabyte. `--kvpress` names a folder of its packages, e.g. of the wheels of `make gpu-bundle`, for this interpreter.
`--no-kvpress` leaves (a) and (b) out.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "ratios"))
from setup import KEEP, LLAMA, Request, grid, ids, write  # pyright: ignore

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build"
SIDES = Path(__file__).parent / "ratios"
PINS = ("kvpress==0.5.5", "transformers<5.3", "torch==2.13.0")
QUESTION = 16
NAMES = {
    "sweep": "24 cells, kvpress",
    "one": "one cell, kvpress",
    "one_prompts": "several prompts, one cell, kvpress",
    "full": "full cache, generate",
    "full_prompts": "several prompts, full cache, generate",
    "generate": "all cells, generate once per cell",
}
"""What the ratios of the table compare."""
TIED = {"float64": 1e-9, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}
"""Two logits whose distance is a smaller part of the largest one are nearly tied: the sides sum in other orders."""
EXACT = ("snapkv", "tova", "key_norm", "key_diff", "streaming_llm")
"""Policies of (a) that keep the same pairs on both sides; kvpress answers the sixth over stand-in keys."""


def main() -> None:
    """Measure, print a table, write it as JSON and Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--turns", type=int, default=2, help="processes of each side")
    parser.add_argument("--budgets", type=int, default=len(KEEP), help="of each policy")
    parser.add_argument(
        "--prompts", type=int, default=8, help="decoded together where a run does that; 1: not measured"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder")
    parser.add_argument("--no-kvpress", action="store_true")
    parser.add_argument("--kvpress", type=Path, help="a folder with its packages, in place of an environment")
    parser.add_argument("--least", type=float, nargs=2, metavar=("FULL", "CELLS"), default=(0, 0))
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    folder = options.folder or str(random_llama())
    vocabulary = json.loads(Path(folder, "config.json").read_text("utf-8"))["vocab_size"]
    theirs = None if options.no_kvpress else options.kvpress or environment()
    measured: dict[str, Any] = {"machine": machine(options), "recorder": recorder(), "lengths": {}}

    def save() -> None:
        if options.write:
            options.write.mkdir(parents=True, exist_ok=True)
            (options.write / "sweep_ratios.json").write_text(json.dumps(measured, indent=1) + "\n", "utf-8")
            (options.write / "sweep_ratios.md").write_text(table(measured) + "\n", "utf-8")

    faults: list[str] = []
    for tokens in options.tokens:
        request = Request(
            folder, options.dtype, options.device, options.threads, ids(tokens, vocabulary, 1),
            ids(QUESTION, vocabulary, 2), options.new, grid(tokens, options.budgets),
        )  # fmt: skip
        parts = measured["lengths"][str(tokens)] = {}
        repeat = max(1, options.repeat * 1024 // max(1024, tokens))
        for fault in length(request, repeat, options.turns, options.prompts, theirs, parts):
            if fault:
                faults.append(f"{tokens} tokens: {fault}")
            save()
        save()  # what follows the last answers that were compared
    print(table(measured))
    slow = too_slow(measured, options.least)
    if slow:
        sys.exit("\n".join(slow))
    if faults:
        sys.exit("\n".join(["answers differ where they must not: no result", *faults]))


def too_slow(measured: dict[str, Any], least: Sequence[float]) -> list[str]:
    """The ratios of processor time of `--least` that are smaller."""
    return [
        f"{tokens} tokens, {NAMES[name]}: {parts[name]['cpu']['ratio']:.2f} times as fast, less than {bound:g}"
        for tokens, parts in measured["lengths"].items()
        for name, bound in zip(("full", "generate"), least, strict=True)
        if parts[name]["cpu"]["ratio"] < bound
    ]


def length(
    request: Request, repeat: int, turns: int, prompts: int, theirs: Path | None, measured: dict[str, Any]
) -> Iterator[str]:
    """Add all ratios at one length, one after the other; where the answers of each differ though they must not.

    Sides alternate, with `turns` processes each but for kvpress' sweep, `repeat` times in a process, after one that
    warms up.
    """
    many, single, full = (BUILD / "bench" / f"{len(request.context)}_{name}.json" for name in ("many", "one", "full"))
    write(request, many)
    write(replace(request, cells=[request.cells[2]]), single)
    write(replace(request, cells=[("full", None)]), full)
    again = ("--repeat", str(repeat))

    def ours(path: Path, *more: str) -> dict[str, Any]:
        return side(sys.executable, SIDES / "kvbench_side.py", path, *again, *more)

    mine, joint, plain = [], [], []
    for _ in range(turns):
        mine.append(ours(full, "--prompt"))
        if prompts > 1:
            joint.append(ours(full, "--prompt", "--prompts", str(prompts)))
        plain.append(side(sys.executable, SIDES / "generate_side.py", full, *again))
    measured["full"] = compare(joined(mine), joined(plain))
    answer = mine[0]["answers"][0]
    if joint:
        measured["full_prompts"] = compare(joined(joint), times(joined(plain), prompts)) | together(joint)
        yield "" if joint[0]["answers"][0] == answer else "the answer decoded with those of other prompts differs"
    if answer == plain[0]["answers"][0]:
        yield ""
    else:
        rival = side(sys.executable, SIDES / "generate_side.py", full, "--rival", json.dumps(answer))
        words, measured["tie"] = parted(rival["parting"], request.dtype)
        print(f"{len(request.context)} tokens: {words}", file=sys.stderr)
        yield "" if measured["tie"] else words
    if theirs is not None:
        mine, joint, their = [], [], []
        for _ in range(turns):
            mine.append(ours(single))
            if prompts > 1:
                joint.append(ours(single, "--prompts", str(prompts)))
            their.append(side(str(theirs), SIDES / "kvpress_side.py", single, *again))
        measured["one"] = compare(joined(mine), joined(their))
        if joint:
            measured["one_prompts"] = compare(joined(joint), times(joined(their), prompts)) | together(joint)
        yield ""
    first = ours(many)
    measured["scoring"] = {"prefill_cpu": first["prefill_cpu"], "score_cpu": first["score_cpu"]}
    measured["generate"] = compare(first, times(joined(plain), len(request.cells)))
    if theirs is not None:
        other = side(str(theirs), SIDES / "kvpress_side.py", many)
        pairs = zip(request.cells, first["answers"], other["answers"], strict=True)
        alike = {f"{policy} {kept}": mine == their for (policy, kept), mine, their in pairs}
        mine = joined([first, *(ours(many) for _ in range(turns - 1))])
        measured["sweep"] = compare(mine, other) | {"same_answers": alike}
        exact = {cell: same for cell, same in alike.items() if cell.split()[0] in EXACT}
        others = [cell for cell, same in exact.items() if not same]
        words = f"answers of kvbench and kvpress differ in {len(others)} of {len(exact)} cells: {', '.join(others)}"
        yield words if len(others) > 0.1 * len(exact) else ""  # float32: a near tie may end otherwise


def parted(parting: dict[str, Any] | None, dtype: str) -> tuple[str, bool]:
    """What to say of two answers over the full cache that differ, and whether it is a near tie."""
    if parting is None:
        return "full cache: kvbench and transformers' generate differ, but not when generate runs again", False
    (theirs, ours), (their_logit, our_logit) = parting["tokens"], parting["logits"]
    distance = abs(their_logit - our_logit) / parting["size"]
    tied = distance < TIED[dtype]
    return (
        f"full cache, new token {parting['place']}: kvbench chooses {ours}, transformers' generate {theirs}; its "
        f"logits are {our_logit:.7g} and {their_logit:.7g}, apart by {distance:.1e} of the largest: "
        + ("a near tie" if tied else "no tie, a fault of one side"),
        tied,
    )


def recorder() -> dict[str, Any]:
    """Rows a second, as `recorder.py` says."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "recorder.py")], capture_output=True, text=True, check=True
    )
    return {"said": " ".join(done.stdout.split())}


def side(python: str, script: Path, request: Path, *options: str) -> dict[str, Any]:
    """What a process prints."""
    packages = python if Path(python).is_dir() else None
    command = [sys.executable if packages else python, str(script), str(request), *options]
    named = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or python == sys.executable}
    if packages:
        named["PYTHONPATH"] = packages
    if python == sys.executable:
        named["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(command, capture_output=True, text=True, env=named, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def joined(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The seconds of several processes of one side."""
    return {name: [second for run in runs for second in run[name]] for name in ("wall", "cpu")}


def together(runs: list[dict[str, Any]]) -> dict[str, bool]:
    """Whether kvbench decoded the prompts as one batch, as a run does but with Triton after the context."""
    return {"together": all(run["together"] for run in runs)}


def times(side: dict[str, Any], cells: int) -> dict[str, Any]:
    """The seconds of a side for so many cells, one after the other."""
    return {name: [cells * second for second in seconds] for name, seconds in side.items()}


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Seconds of both sides, and how many times ours the medians of theirs are."""
    ratios = {name: statistics.median(theirs[name]) / statistics.median(ours[name]) for name in ("wall", "cpu")}
    return {name: {"ours": ours[name], "theirs": theirs[name], "ratio": ratios[name]} for name in ("wall", "cpu")}


def table(measured: dict[str, Any]) -> str:
    """The result in Markdown."""
    lines = [", ".join(f"{name} {value}" for name, value in measured["machine"].items()), ""]
    lines += ["| tokens | what | kvbench | other | ratio | ratio by the wall |", "|---|---|---|---|---|---|"]
    for tokens, parts in measured["lengths"].items():
        for name, words in NAMES.items():
            if name in parts:
                cpu, wall = parts[name]["cpu"], parts[name]["wall"]
                mine, their = statistics.median(cpu["ours"]), statistics.median(cpu["theirs"])
                lines.append(
                    f"| {tokens} | {words} | {mine:.2f} s | {their:.2f} s | {cpu['ratio']:.2f} | {wall['ratio']:.2f} |"
                )
        if "scoring" not in parts:
            continue
        prefill, score = parts["scoring"]["prefill_cpu"], parts["scoring"]["score_cpu"]
        lines.append(f"| {tokens} | scoring over prefill | {score:.3f} s | {prefill:.2f} s | {score / prefill:.3f} | |")
    return "\n".join([*lines, "", f"Recorder: {measured['recorder']['said']}"])


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """What ran, on what, and how busy it was."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model n")]
        cpu = named[0] if named else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": options.threads,
        "prompts together": options.prompts,
        "device": options.device,
        "dtype": options.dtype,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "transformers")},
        "load": round(os.getloadavg()[0], 1),
    }


def random_llama() -> Path:
    """A folder with the random model, made once."""
    folder = BUILD / "bench" / "llama"
    if not (folder / "model.safetensors").exists():
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        without = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
        LlamaForCausalLM(LlamaConfig(**(LLAMA | without))).save_pretrained(folder)
    return folder


def environment() -> Path:
    """The interpreter of kvpress' environment, made once."""
    python = BUILD / "kvpress" / "bin" / "python"
    stamp = BUILD / "kvpress" / ".installed"
    if not stamp.exists():
        print(f"installing {', '.join(PINS)} into {BUILD / 'kvpress'}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(BUILD / "kvpress")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PINS], check=True)
        stamp.touch()
    return python


if __name__ == "__main__":
    main()
