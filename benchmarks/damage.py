"""What commands make of damaged rows: every damage of a list, and bits flipped at random.

    python benchmarks/damage.py [--flips 2000]

A folder of rows is written without a model, damaged, and read by each command in this process. Printed is a table
damage x command: refused (exit code 2 or 3, and a line), warned (a line names what is wrong), same number (the output
is that of the whole folder), or WRONG. A second table is of a folder with curves, timings and numbers of probes.
Then every file beside the rows becomes what no reader expects (a FIFO, another type, ...), and every command must end
within a minute without an internal error. Last, single bits of the rows file are flipped, and those that no reader
tells of are counted; then those of `sweeps/` and `processes/`, and the commands that say nothing of a rows file that
is gone. Ends with 1 if anything is WRONG or silent. Nothing is random but by a fixed seed.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from kvbench.cli.main import main as kvbench
from kvbench.extras.probes.numbers import probed, write_probed
from kvbench.records import (
    Curve,
    Heartbeat,
    KeptSets,
    PromptRecord,
    Recorder,
    ResultsFolder,
    Row,
    Timing,
    read_rows,
)
from kvbench.records.environment import content_hash
from kvbench.records.row import SCHEMA, with_checksum
from kvbench.report.rows import load_table
from kvbench.run.launch.slurm import Job
from kvbench.support.errors import MissingFile, UserError

SAMPLES = 12
CODE = "c0de00000000"
Commands = dict[str, tuple[str, ...]]
COMMANDS: Commands = {
    "table": ("report", "table", "--results", "{0}"),
    "rows": ("report", "rows", "--results", "{0}", "--format", "csv"),
    "compare": ("compare", "--results", "{0}", "policy=snapkv", "policy=h2o_obcache"),
    "gate": ("gate", "--baseline", "{1}", "--current", "{0}"),
    "export": ("export", "--results", "{0}", "--format", "markdown"),
    "status": ("status", "--results", "{0}"),
    "plot kept": ("report", "plot", "kept", "--results", "{0}", "--out", "{2}.svg"),
    "html": ("report", "html", "--results", "{0}", "--out", "{2}.html"),
}
SIDE_COMMANDS: Commands = {
    "table": COMMANDS["table"],
    "efficiency": ("report", "efficiency", "--results", "{0}", "--format", "csv"),
    "latency": ("report", "plot", "latency", "--results", "{0}", "--out", "{2}.svg"),
    "perplexity": ("report", "plot", "perplexity", "x=position", "--results", "{0}", "--out", "{2}.svg"),
    "html": COMMANDS["html"],
    "probe": ("probe",),
}
OTHER_COMMANDS: Commands = {
    **{name: command for name, command in COMMANDS.items() if name not in ("plot kept", "html")},
    "cancel": ("cancel", "--results", "{0}"),
    "cost": ("report", "cost", "--results", "{0}"),
    "history": ("report", "history", "{0}", "--out", "{2}.html"),
    "efficiency": SIDE_COMMANDS["efficiency"],
    "probe": ("probe",),
}
LOST_COMMANDS: Commands = {
    **{name: command for name, command in COMMANDS.items() if name != "plot kept"},  # shows kept sets, all there
    "csv": ("report", "table", "--results", "{0}", "--format", "csv"),
    "cost": OTHER_COMMANDS["cost"],
    "footprint": ("report", "footprint", "--results", "{0}"),
    "pages": ("report", "pages", "--results", "{0}"),
    "history": OTHER_COMMANDS["history"],
    "junit": ("export", "--results", "{0}", "--format", "junit"),
    "plot tradeoff": ("report", "plot", "tradeoff", "--results", "{0}", "--out", "{2}.svg"),
    "plot bars": ("report", "plot", "bars", "--results", "{0}", "--out", "{2}.svg"),
}
"""What must say that a rows file is gone."""
SECONDS = 60


def main() -> None:
    """Print the tables and the count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        wrong = table(Path(place), list(DAMAGES)) + side_table(Path(place), list(SIDE_DAMAGES))
        wrong += attacked(Path(place), list(SIDE_FILES))
        silent = flipped(Path(place) / "flips", options.flips) + flipped_beside(Path(place) / "beside", options.flips)
        silent += lost_file(Path(place) / "lost")
    sys.exit(1 if wrong or silent else 0)


def table(place: Path, names: list[str]) -> int:
    """Print what each command makes of each of these damages; returns how often that is WRONG."""
    return _table(write(place / "whole"), {name: DAMAGES[name] for name in names}, COMMANDS)


def side_table(place: Path, names: list[str]) -> int:
    """The same of a folder with curves, timings and numbers of probes."""
    return _table(write_sides(place / "sides"), {name: SIDE_DAMAGES[name] for name in names}, SIDE_COMMANDS)


def attacked(place: Path, files: list[str]) -> int:
    """Print how every command ends where one of these files is what no reader expects; returns how often badly."""
    whole = write(place / "attacked")
    write_others(whole)
    (place / "bin").mkdir()
    for name in ("squeue", "scancel", "sacct"):  # of a cluster without jobs
        (place / "bin" / name).write_text("#!/bin/sh\n")
        (place / "bin" / name).chmod(0o755)
    os.environ["PATH"] = f"{place / 'bin'}:{os.environ['PATH']}"
    bad = 0
    for name, words in OTHER_COMMANDS.items():
        code, _, err = output(words, Path(shutil.copytree(whole, place / "damaged")), whole)
        shutil.rmtree(place / "damaged")
        if code not in (0, 4, 5, 75):
            sys.exit(f"the whole folder is not read: {name}: {err}")
    print(f"| file | {' | '.join(OTHER_COMMANDS)} |\n|{' :-- |' * (len(OTHER_COMMANDS) + 1)}")
    for name in files:
        verdicts: dict[str, Counter[str]] = {command: Counter() for command in OTHER_COMMANDS}
        for attack, change in ATTACKS.items():
            damaged = Path(shutil.copytree(whole, place / "damaged", symlinks=True))
            change(next(damaged.glob(SIDE_FILES[name])))
            for command, words in OTHER_COMMANDS.items():
                code, _, err = output(words, damaged, whole)
                ends = "refused" if code in (2, 3) else "warned" if "warning: " in err else "read"
                if code not in (0, 2, 3, 4, 5, 75):
                    ends, bad = "WRONG", bad + 1
                    print(f"{name}, {attack}, {command}: {code} {err[-300:]}", flush=True)
                verdicts[command][ends] += 1
            shutil.rmtree(damaged)
        counts = [", ".join(f"{n} {ends}" for ends, n in sorted(ended.items())) for ended in verdicts.values()]
        print(f"| {name} | {' | '.join(counts)} |", flush=True)
    print(f"{len(files)} files, {len(files) * len(ATTACKS) * len(OTHER_COMMANDS)} commands, {bad} WRONG")
    return bad


def _table(whole: Path, damages: "dict[str, Damage]", commands: Commands) -> int:
    damaged = whole.parent / "damaged"
    shutil.copytree(whole, damaged)
    peace = {name: output(command, damaged, whole) for name, command in commands.items()}
    shutil.rmtree(damaged)
    if failed := {name: ended for name, ended in peace.items() if ended[0] not in (0, 4, 5, 75)}:
        sys.exit(f"the whole folder is not read: {failed}")
    wrong = 0
    print(f"| damage | {' | '.join(commands)} |\n|{' :-- |' * (len(commands) + 1)}")
    for name, damage in damages.items():
        shutil.copytree(whole, damaged)
        damage(damaged)
        verdicts = [verdict(peace[command], output(commands[command], damaged, whole)) for command in commands]
        shutil.rmtree(damaged)
        wrong += verdicts.count("WRONG")
        print(f"| {name} | {' | '.join(verdicts)} |", flush=True)
    print(f"{len(damages)} damages, {len(damages) * len(commands)} commands, {wrong} WRONG")
    return wrong


def output(command: tuple[str, ...], folder: Path, whole: Path) -> tuple[int, str, str]:
    """Exit code, what is printed or drawn without the folder's name, and stderr; code 1 where it hangs."""
    out, err, drawn = StringIO(), StringIO(), whole.parent / "drawn"

    def hangs(*_: object) -> None:
        raise SystemExit("hangs")

    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            words = [word.format(folder, whole, drawn) for word in command]
            code = _probe(folder) if command == ("probe",) else kvbench(words)
    except BaseException as error:
        return 1, "", f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    for path in whole.parent.glob("drawn.*"):
        out.write(path.read_text())
        path.unlink()
    return code, out.getvalue().replace(str(folder), "FOLDER").replace(str(whole), "FOLDER"), err.getvalue()


def _probe(folder: Path) -> int:
    """The numbers that `kvbench probe` prints, without measuring missing ones."""
    cells = {path.stem: SAMPLES for path in folder.glob("cells/*.json")}
    try:
        numbers = probed(folder, cells)
    except (UserError, MissingFile) as error:
        print(f"kvbench: {error}", file=sys.stderr)
        return 2
    print(numbers.to_pylist())
    return 0


def verdict(peace: tuple[int, str, str], now: tuple[int, str, str]) -> str:
    """What a command did, by its output for the whole folder and for the damaged one."""
    code, out, err = now
    if code in (2, 3) and err.startswith("kvbench: "):
        return "refused"
    if code not in (0, 4, 5, 75):
        return "WRONG"
    if {line for line in err.splitlines() if "warning: " in line} - set(peace[2].splitlines()):
        return "warned"
    return "same number" if (code, out) == peace[:2] else "WRONG"


def flipped(folder: Path, flips: int) -> int:
    """Flip single bits of the rows files, one at a time; returns how many nobody told of."""
    (path,) = (write(folder) / "rows").iterdir()
    whole = path.read_bytes()
    draw, silent = random.Random(25), 0
    for _ in range(flips):
        bit = draw.randrange(8 * len(whole))
        place, mask = bit // 8, 1 << bit % 8
        path.write_bytes(whole[:place] + bytes([whole[place] ^ mask]) + whole[place + 1 :])
        for read in (read_rows, lambda folder, warn: load_table(folder, warn=warn)):
            messages: list[str] = []
            try:
                read(folder, messages.append)
            except (UserError, MissingFile) as error:
                messages = [str(error)]
            silent += not messages
    print(f"{flips} single-bit flips, rows read line by line and by Arrow: {silent} silent")
    return silent


def flipped_beside(folder: Path, flips: int) -> int:
    """Flip single bits of the files of `sweeps/` and `processes/`; returns how many nobody told of."""
    write(folder)
    heartbeat = Heartbeat(ResultsFolder(folder), 60.0, 180.0)
    heartbeat.start()
    heartbeat.end("finished")
    draw, silent = random.Random(39), Counter[str]()
    for name in ("sweeps", "processes"):
        (path,) = (folder / name).glob("*.json")
        whole = path.read_bytes()
        for _ in range(flips):
            bit = draw.randrange(8 * len(whole))
            place, mask = bit // 8, 1 << bit % 8
            path.write_bytes(whole[:place] + bytes([whole[place] ^ mask]) + whole[place + 1 :])
            code, _, err = output(COMMANDS["status"], folder, folder)
            silent[name] += code not in (2, 3) and "warning: " not in err
        path.write_bytes(whole)
    print(
        f"{flips} single-bit flips of each: {silent['sweeps']} silent in sweeps/, {silent['processes']} in processes/"
    )
    return silent.total()


def lost_file(place: Path) -> int:
    """Print what each command says of a folder whose second rows file is gone; returns how many say nothing."""
    folder = write(place / "two")
    more = [replace(row, sample=row.sample + SAMPLES) for row in read_rows(folder)]
    with Recorder(folder) as recorder:
        recorder.append(more)
    ResultsFolder(folder).write_sweep(["task.samples=24"], dict.fromkeys((row.cell for row in more), 2 * SAMPLES))
    whole, files = Path(shutil.copytree(folder, place / "whole")), sorted((folder / "rows").iterdir())
    files[-1].unlink()
    warned = {}
    for name, command in LOST_COMMANDS.items():
        code, out, err = output(command, folder, whole)
        warned[name] = code in (2, 3) or "rows are missing" in err or "48 of 96 rows done" in out
    silent = [name for name, is_warned in warned.items() if not is_warned]
    print(f"a rows file that is gone: {len(warned)} commands, {len(silent)} silent {silent}")
    return len(silent)


def write_sides(folder: Path) -> Path:
    """A results folder of two cells, one with curves, one with timings, and numbers of a probe of both."""
    results, draw = ResultsFolder(folder), random.Random(2)
    with Recorder(folder) as recorder:
        for task, metric in (("pg19", "nll"), ("efficiency", "seconds_per_token")):
            description = {
                "task": {"name": task, "batch": 1, "new_tokens": 4},
                "budget": "0.1",
                "policy": {"name": "h2o_obcache"},
            }
            cell = content_hash(description)[:16]
            results.write_cell(cell, description)
            columns: dict[str, Any] = {"cell": cell, "model": "reference", "task": task, "task_version": "1"}
            columns |= {
                "context_length": 512,
                "policy": "h2o_obcache",
                "score": "attn",
                "budget": "0.1",
                "variant": None,
            }
            columns |= {
                "code": CODE,
                "layout": None,
                "schedule": "prompt",
                "seed": 42,
                "metric": metric,
                "prompt_sha256": "ab",
            }
            for sample in range(4):
                value = draw.random()
                sides: dict[str, list[str]] = {"prompts": [PromptRecord.of("ab", "the end", ("right",)).to_json()]}
                if task == "pg19":
                    curve = Curve(cell, sample, "nll", (0, 1, 2, 4), (3.0 + draw.random(), 2.0, 4.0), (1, 1, 2))
                    value = sum(curve.sums) / sum(curve.counts)
                    sides["curves"] = [curve.to_json()]
                else:
                    quantities = {"prefill_seconds": draw.random(), "held_bytes": 1048576.0}
                    sides["timings"] = [Timing(cell, sample, quantities, (draw.random(), 0.25, 0.5)).to_json()]
                row = Row(**columns, sample=sample, value=value, prompt_tokens=500, cache_bytes=4096)
                recorder.append([row], sides)
                common = {"probe": "oracle_recall", "cell": cell, "sample": sample, "policy": "h2o_obcache"}
                numbers = [{"layer": layer, "quantity": "recall", "value": draw.random()} for layer in range(4)]
                write_probed(folder, common, numbers)
    return folder


def write_others(folder: Path) -> None:
    """One file of each other kind, as runs leave them."""
    (rows,) = (folder / "rows").iterdir()
    cell = sorted((folder / "cells").iterdir())[0].stem
    contents = {
        "curves": Curve(cell, 0, "nll", (0, 1), (1.0,), (1,)).to_json(),
        "timings": Timing(cell, 0, {"prefill_seconds": 1.0}, (0.5,)).to_json(),
        "prompts": PromptRecord.of("ab", "the end", ("right",)).to_json(),
    }
    for name, line in contents.items():
        (folder / name).mkdir()
        (folder / name / rows.name).write_text(line + "\n")
    write_probed(folder, {"probe": "oracle_recall", "cell": cell, "sample": 0}, [{"quantity": "recall", "value": 1.0}])
    ResultsFolder(folder).write_environment({"versions": {}})
    heartbeat = Heartbeat(ResultsFolder(folder), 60.0, 180.0)
    heartbeat.start()
    heartbeat.end("finished")  # `kvbench cancel` would end this process
    (process,) = (folder / "processes").glob("*.json")
    fields = json.loads(process.read_text())
    del fields["checksum"]
    others = {
        "processes/p.json": with_checksum(json.dumps(fields | {"name": "p"})) + "\n",
        "processes/p.cancel": "",
        "processes/p.lock": "",
        "jobs/7.json": json.dumps(asdict(Job("7", 1, "2026-01-01T00:00:00+00:00", ("run",)))),
        "leases/0f-1.0": "p",
        "wandb/mirrored.json": '{"a": "b"}',
        "errors/0f.txt": "Traceback",
    }
    for name, content in others.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)


def write(folder: Path) -> Path:
    """A results folder of four cells, of which samples have right and wrong answers, and kept sets."""
    results, draw = ResultsFolder(folder), random.Random(1)
    with Recorder(folder) as recorder:
        for policy, right in (("full", 0.9), ("snapkv", 0.7), ("h2o_obcache", 0.5), ("tova_obcache", 0.3)):
            description = {
                "task": {"name": "ruler/niah_single_1", "version": "1", "context_length": 512},
                "policy": {"name": policy, "variant": "paper", "layout": "kv_heads"},
                "score": {"name": "attn"},
                "budget": "0.1",
                "seed": 42,
            }
            cell = content_hash(description)[:16]
            results.write_cell(cell, description)
            rows, kept = [], []
            for sample in range(SAMPLES):
                mask = bytes([draw.randrange(256), draw.randrange(256)])
                lengths = ((sum(byte.bit_count() for byte in mask),),)
                kept.append(KeptSets(cell, sample, 16, (0,), lengths, ((mask,),)))
                columns: dict[str, Any] = {
                    "cell": cell,
                    "sample": sample,
                    "policy": policy,
                    "score": "attn",
                    "seed": 42,
                }
                columns |= {"model": "reference", "task": "ruler/niah_single_1", "task_version": "1"}
                columns |= {"context_length": 512, "budget": "0.1", "variant": "paper", "layout": "kv_heads"}
                columns |= {"schedule": "prompt", "prompt_tokens": 500, "kept_tokens": float(lengths[0][0])}
                columns |= {"cache_bytes": 4096, "full_cache_bytes": 40960, "kept_fraction": 0.1, "new_tokens": 5}
                columns |= {
                    "code": CODE,
                    "store": "flat",
                    "prediction": "the number is 8090293",
                    "metric": "string_match_all",
                }
                columns |= {"value": float(draw.random() < right), "kept_sha256": kept[-1].sha256}
                rows.append(Row(**columns, prompt_sha256=hashlib.sha256(str(sample).encode()).hexdigest()))
            recorder.append(rows, {"kept": [line.to_json() for line in kept]})
    results.write_sweep(
        ["policy=full,snapkv,h2o_obcache,tova_obcache"], dict.fromkeys((row.cell for row in read_rows(folder)), SAMPLES)
    )
    return folder


Damage = Callable[[Path], object]


def lines(change: Callable[[list[str]], object]) -> Damage:
    """A damage of the lines of the rows file, which are changed in place."""

    def damage(folder: Path) -> None:
        (path,) = (folder / "rows").iterdir()
        content = path.read_text().splitlines(keepends=True)
        change(content)
        path.write_text("".join(content), newline="")

    return damage


def replaced(before: str, after: str, line: int = 14) -> Damage:
    """A text of a line that is another one."""

    def change(content: list[str]) -> None:
        assert before in content[line], before
        content[line] = content[line].replace(before, after, 1)

    return lines(change)


def remade(change: Callable[[dict[str, Any]], str]) -> Damage:
    """A folder whose lines are what this makes of their columns, with no count of them."""

    def remake(content: list[str]) -> None:
        content[:] = [change(json.loads(line)) + "\n" for line in content]

    def damage(folder: Path) -> None:
        shutil.rmtree(folder / "finished")
        lines(remake)(folder)

    return damage


def _unchecked(columns: dict[str, Any]) -> str:
    """A line without its checksum."""
    return json.dumps({name: value for name, value in columns.items() if name != "checksum"})


def _later(columns: dict[str, Any]) -> str:
    """A line of a later schema, with its checksum."""
    return with_checksum(_unchecked(columns | {"schema": SCHEMA + 1}))


def moved(before: str, after: str) -> Damage:
    """A damage of the cell files."""

    def damage(folder: Path) -> None:
        for path in (folder / "cells").iterdir():
            path.write_text(path.read_text().replace(before, after))

    return damage


def exchanged_cells(folder: Path) -> None:
    """A cell file with the content of another."""
    first, second, *_ = sorted((folder / "cells").iterdir())
    first.write_bytes(second.read_bytes())


def short_cells(folder: Path) -> None:
    """Cell files that end too soon."""
    for path in (folder / "cells").iterdir():
        path.write_bytes(path.read_bytes()[:99])


def another_mask(folder: Path) -> None:
    """Kept sets of a row that are those of another; the hash of a row is checked where they are drawn."""
    (path,) = (folder / "kept").iterdir()
    first, second, *rest = path.read_text().splitlines()
    masks = [json.loads(line) for line in (first, second)]
    masks[0] |= {name: masks[1][name] for name in ("lengths", "kept")}
    path.write_text("\n".join([json.dumps(masks[0]), second, *rest]) + "\n")


def spliced(content: list[str]) -> None:
    """The beginning of a row and the end of another."""
    content[3] = content[3][:400] + content[15][400:]


def with_crlf(content: list[str]) -> None:
    """Lines as another system ends them."""
    content[:] = [line.replace("\n", "\r\n") for line in content]


def changed(**columns: object) -> Damage:
    """A whole row, with its checksum, of other columns."""

    def change(content: list[str]) -> None:
        content[14] = replace(Row.from_json(content[14]), **columns).to_json() + "\n"  # type: ignore[arg-type]

    return lines(change)


VALUE = '"value": '
DAMAGES: dict[str, Damage] = {
    "a digit of a value": lines(lambda content: content.__setitem__(14, _other_value(content[14]))),
    "a value of 5.0": lines(lambda content: content.__setitem__(14, _other_value(content[14], "5.0"))),
    "a value of NaN": lines(lambda content: content.__setitem__(14, _other_value(content[14], "NaN"))),
    "a value of null": lines(lambda content: content.__setitem__(14, _other_value(content[14], "null"))),
    "a misspelt column": replaced('"value"', '"vqlue"'),
    "a column twice": replaced(VALUE, '"value": 0.5, "value": '),
    "an integer of 20 digits": replaced('"seed": 42', '"seed": 18446744073709551615'),
    "another policy": replaced('"policy": "snapkv"', '"policy": "h2o_obcache"'),
    "another task": replaced("ruler/niah_single_1", "ruler/niah_single_2"),
    "another budget": replaced('"budget": "0.1"', '"budget": "0.2"'),
    "another sample": replaced('"sample": 2,', '"sample": 77,'),
    "another prompt hash": replaced('"prompt_sha256": "', '"prompt_sha256": "0'),
    "a later schema": replaced(f'"schema": {SCHEMA}', f'"schema": {SCHEMA + 1}'),
    "an earlier schema": replaced(f'"schema": {SCHEMA}', f'"schema": {SCHEMA - 1}'),
    "another checksum": replaced('"checksum": "', '"checksum": "0'),
    "a misspelt checksum": replaced('"checksum"', '"chdcksum"'),
    "a spliced row": lines(spliced),
    "a row of another run": changed(value=0.5),
    "a row of another cell": changed(policy="tova_obcache"),
    "a line that is gone": lines(lambda content: content.pop(14)),
    "a cut at a line's end": lines(lambda content: content.__delitem__(slice(30, None))),
    "a cut within a line": lines(lambda content: content.__setitem__(slice(30, None), [content[30][:200]])),
    "an empty file": lines(lambda content: content.clear()),
    "a line twice": lines(lambda content: content.insert(14, content[14])),
    "two lines exchanged": lines(lambda content: content.__setitem__(slice(14, 16), content[15:13:-1])),
    "lines end with CRLF": lines(with_crlf),
    "a blank line": lines(lambda content: content.insert(14, "\n")),
    "zero bytes within": lines(lambda content: content.__setitem__(14, "\0" * 300 + "\n")),
    "a byte order mark": lines(lambda content: content.__setitem__(0, "\ufeff" + content[0])),
    "rows without checksums": remade(_unchecked),
    "rows of a later schema": remade(_later),
    "a cell file edited": moved('"seed": 42', '"seed": 43'),
    "a cell file cut short": short_cells,
    "cell files exchanged": exchanged_cells,
    "cell files gone": lambda folder: shutil.rmtree(folder / "cells"),
    "the count gone": lambda folder: shutil.rmtree(folder / "finished"),
    "masks of another row": another_mask,
}


def sides(change: Callable[[list[str]], object], *folders: str) -> Damage:
    """A damage of the lines of files beside the rows."""

    def damage(folder: Path) -> None:
        for name in folders:
            (path,) = (folder / name).iterdir()
            content = path.read_text().splitlines(keepends=True)
            change(content)
            path.write_text("".join(content), newline="")

    return damage


def _digit(content: list[str]) -> None:
    place = content[1].index("0.") + 2
    content[1] = content[1][:place] + str((int(content[1][place]) + 5) % 10) + content[1][place + 1 :]


def _another_line(content: list[str]) -> None:
    """Another line with its checksum, of a row that has one, with the numbers of the next."""
    changed = json.loads(content[2]) | {"sample": json.loads(content[1])["sample"]}
    del changed["checksum"]
    content.append(with_checksum(json.dumps(changed)) + "\n")


def _another_curve(content: list[str]) -> None:
    """A curve with its checksum, of the sums of another row."""
    lines = [json.loads(line) for line in content[1:3]]
    changed = lines[0] | {"sums": lines[1]["sums"]}
    del changed["checksum"]
    content[1] = with_checksum(json.dumps(changed)) + "\n"


def probes(change: Callable[[list[Path]], object]) -> Damage:
    """A damage of the files of a probe."""
    return lambda folder: change(sorted((folder / "probes").iterdir()))


def flip(place: int) -> Callable[[list[Path]], object]:
    """A bit of the first file, at this byte."""

    def change(paths: list[Path]) -> None:
        data = bytearray(paths[0].read_bytes())
        data[place] ^= 1
        paths[0].write_bytes(data)

    return change


def _unchecked_probe(paths: list[Path]) -> None:
    """The numbers of a probe without their checksum."""
    parquet.write_table(parquet.read_table(paths[0]).replace_schema_metadata(None), paths[0])


BOTH = ("curves", "timings")
SIDE_DAMAGES: dict[str, Damage] = {
    "a digit of a curve": sides(lambda content: content.__setitem__(1, content[1].replace("2.0", "9.0", 1)), "curves"),
    "a digit of a timing": sides(_digit, "timings"),
    "a line that is gone": sides(lambda content: content.pop(1), *BOTH),
    "a cut within a line": sides(lambda content: content.__setitem__(3, content[3][:50]), *BOTH),
    "a line twice": sides(lambda content: content.insert(1, content[1]), *BOTH),
    "a second line of a row that differs": sides(_another_line, *BOTH),
    "a curve of another row": sides(_another_curve, "curves"),
    "two lines exchanged": sides(lambda content: content.__setitem__(slice(1, 3), content[2:0:-1]), *BOTH),
    "a line of another sample": sides(lambda content: content.__setitem__(1, content[2]), *BOTH),
    "a misspelt checksum": sides(lambda content: content.__setitem__(1, content[1].replace("check", "chack")), *BOTH),
    "lines without checksums": sides(
        lambda content: content.__setitem__(slice(None), [_unchecked(json.loads(line)) + "\n" for line in content]),
        *BOTH,
    ),
    "a spliced line": sides(lambda content: content.__setitem__(1, content[1][:60] + content[2][60:]), *BOTH),
    "an empty file": sides(lambda content: content.clear(), *BOTH),
    "the file gone": lambda folder: [shutil.rmtree(folder / name) for name in BOTH],
    "zero bytes within": sides(lambda content: content.__setitem__(1, "\0" * 99 + "\n"), *BOTH),
    "the right answer of a prompt": sides(
        lambda content: content.__setitem__(0, content[0].replace("right", "wrong")), "prompts"
    ),
    "a probe, a bit of a number": probes(flip(200)),
    "a probe, a bit of the footer": probes(flip(-40)),
    "a probe, a bit of the last byte": probes(flip(-1)),
    "a probe cut short": probes(lambda paths: paths[0].write_bytes(paths[0].read_bytes()[:999])),
    "a probe, empty": probes(lambda paths: paths[0].write_bytes(b"")),
    "a probe without a checksum": probes(_unchecked_probe),
    "a probe under another name": probes(lambda paths: paths[1].write_bytes(paths[0].read_bytes())),
}


def _file(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _no_file(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


ATTACKS: dict[str, Callable[[Path], None]] = {
    "truncated": lambda path: _file(path, path.read_bytes()[:20]),
    "no JSON": lambda path: _file(path, b"{]\n{]\n"),
    "a list": lambda path: _file(path, b"[1, 2]\n[3]\n"),
    "null": lambda path: _file(path, b"null\n"),
    "other types": lambda path: _file(path, re.sub(rb": [^,}]+", b': {"a": [true, null]}', path.read_bytes())),
    "binary": lambda path: _file(path, bytes(range(256)) * 9),
    "empty": lambda path: _file(path, b""),
    "a FIFO": lambda path: _no_file(path, os.mkfifo),
    "a folder": lambda path: _no_file(path, Path.mkdir),
    "a broken link": lambda path: _no_file(path, lambda link: link.symlink_to("nowhere")),
    "a link to itself": lambda path: _no_file(path, lambda link: link.symlink_to(link.name)),
    "huge numbers": lambda path: _file(path, re.sub(rb"\d+", b"9" * 5000, path.read_bytes())),
    "numbers over 64 bits": lambda path: _file(path, re.sub(rb"\b\d+\b", b"9" * 25, path.read_bytes())),
    "negative numbers": lambda path: _file(path, re.sub(rb": (\d)", rb": -\1", path.read_bytes())),
    "deep": lambda path: _file(path, b"[" * 100_000 + b"\n"),
}
SIDE_FILES = {
    **{name: f"{name}/*" for name in ("rows", "kept", "prompts", "curves", "timings", "cells", "environments")},
    **{name: f"{name}/*" for name in ("finished", "leases", "jobs", "sweeps", "errors", "probes")},
    "processes": "processes/p.json",
    "requests to stop": "processes/p.cancel",
    "locks": "processes/p.lock",
    "wandb": "wandb/mirrored.json",
}


def _other_value(line: str, value: str | None = None) -> str:
    now = "1.0" if VALUE + "1.0" in line else "0.0"
    return line.replace(VALUE + now, VALUE + (value or ("0.0" if now == "1.0" else "1.0")), 1)


if __name__ == "__main__":
    main()
