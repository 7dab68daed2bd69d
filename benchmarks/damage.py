"""What commands make of damaged rows: every damage of a list, and bits flipped at random.

    python benchmarks/damage.py [--flips 2000]

A folder of rows is written without a model, damaged, and read by each command in this process. Printed is a table
damage x command: refused (exit code 2 or 3, and a line), warned (a line names what is wrong), same number (the output
is that of the whole folder), or WRONG. Then single bits of its rows file are flipped, and those that no reader
tells of are counted. Ends with 1 if anything is WRONG or silent. Nothing is random but by a fixed seed.
"""

import argparse
import hashlib
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from kvbench.cli.main import main as kvbench
from kvbench.records import KeptSets, Recorder, ResultsFolder, Row, read_rows
from kvbench.records.environment import content_hash
from kvbench.report.rows import load_table
from kvbench.support.errors import MissingFile, UserError

SAMPLES = 12
COMMANDS = {
    "table": ("report", "table", "--results", "{0}"),
    "rows": ("report", "rows", "--results", "{0}", "--format", "csv"),
    "compare": ("compare", "--results", "{0}", "policy=snapkv", "policy=h2o"),
    "gate": ("gate", "--baseline", "{1}", "--current", "{0}"),
    "export": ("export", "--results", "{0}", "--format", "markdown"),
    "status": ("status", "--results", "{0}"),
}


def main() -> None:
    """Print the table and the count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        wrong = table(Path(place), list(DAMAGES))
        silent = flipped(Path(place) / "flips", options.flips)
    sys.exit(1 if wrong or silent else 0)


def table(place: Path, names: list[str]) -> int:
    """Print what each command makes of each of these damages; returns how often that is WRONG."""
    whole = write(place / "whole")
    damaged = place / "damaged"
    shutil.copytree(whole, damaged)
    peace = {name: output(command, damaged, whole) for name, command in COMMANDS.items()}
    shutil.rmtree(damaged)
    wrong = 0
    print(f"| damage | {' | '.join(COMMANDS)} |\n|{' :-- |' * (len(COMMANDS) + 1)}")
    for name in names:
        shutil.copytree(whole, damaged)
        DAMAGES[name](damaged)
        verdicts = [verdict(peace[command], output(COMMANDS[command], damaged, whole)) for command in COMMANDS]
        shutil.rmtree(damaged)
        wrong += verdicts.count("WRONG")
        print(f"| {name} | {' | '.join(verdicts)} |", flush=True)
    print(f"{len(names)} damages, {len(names) * len(COMMANDS)} commands, {wrong} WRONG")
    return wrong


def output(command: tuple[str, ...], folder: Path, whole: Path) -> tuple[int, str, str]:
    """Exit code, stdout without the folder's name, and stderr."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = kvbench([word.format(folder, whole) for word in command])
    return code, out.getvalue().replace(str(folder), "FOLDER").replace(str(whole), "FOLDER"), err.getvalue()


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
            told: list[str] = []
            try:
                read(folder, told.append)
            except (UserError, MissingFile) as error:
                told = [str(error)]
            silent += not told
    print(f"{flips} single-bit flips, rows read line by line and by Arrow: {silent} silent")
    return silent


def write(folder: Path) -> Path:
    """A results folder of four cells, of which samples have right and wrong answers, and kept sets."""
    results, draw = ResultsFolder(folder), random.Random(1)
    with Recorder(folder) as recorder:
        for policy, right in (("full", 0.9), ("snapkv", 0.7), ("h2o", 0.5), ("tova", 0.3)):
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
                columns |= {"store": "flat", "prediction": "the number is 8090293", "metric": "string_match_all"}
                columns |= {"value": float(draw.random() < right), "kept_sha256": kept[-1].sha256}
                rows.append(Row(**columns, prompt_sha256=hashlib.sha256(str(sample).encode()).hexdigest()))
            recorder.append(rows, {"kept": [line.to_json() for line in kept]})
    results.write_sweep(
        ["policy=full,snapkv,h2o,tova"], dict.fromkeys((row.cell for row in read_rows(folder)), SAMPLES)
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


def old(damage: Damage | None = None) -> Damage:
    """A folder of an earlier kvbench, without checksums, with a damage."""

    def change(content: list[str]) -> None:
        for place, line in enumerate(content):
            columns = json.loads(line) | {"schema": 4}
            del columns["checksum"]
            content[place] = json.dumps(columns) + "\n"

    def both(folder: Path) -> None:
        shutil.rmtree(folder / "finished")
        lines(change)(folder)
        if damage is not None:
            damage(folder)

    return both


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
    "another policy": replaced('"policy": "snapkv"', '"policy": "h2o"'),
    "another task": replaced("ruler/niah_single_1", "ruler/niah_single_2"),
    "another budget": replaced('"budget": "0.1"', '"budget": "0.2"'),
    "another sample": replaced('"sample": 2,', '"sample": 77,'),
    "another prompt hash": replaced('"prompt_sha256": "', '"prompt_sha256": "0'),
    "a later schema": replaced('"schema": 5', '"schema": 7'),
    "an earlier schema": replaced('"schema": 5', '"schema": 4'),
    "another checksum": replaced('"checksum": "', '"checksum": "0'),
    "a misspelt checksum": replaced('"checksum"', '"chdcksum"'),
    "a spliced row": lines(spliced),
    "a row of another run": changed(value=0.5),
    "a row of another cell": changed(policy="tova"),
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
    "old rows": old(),
    "old rows, a digit of a value": old(lines(lambda content: content.__setitem__(14, _other_value(content[14])))),
    "old rows, a value of 5.0": old(lines(lambda content: content.__setitem__(14, _other_value(content[14], "5.0")))),
    "old rows, a misspelt column": old(replaced('"value"', '"vqlue"')),
    "old rows, a column twice": old(replaced(VALUE, '"value": 0.5, "value": ')),
    "old rows, another policy": old(replaced('"policy": "snapkv"', '"policy": "h2o"')),
    "a cell file edited": moved('"seed": 42', '"seed": 43'),
    "a cell file cut short": short_cells,
    "cell files exchanged": exchanged_cells,
    "cell files gone": lambda folder: shutil.rmtree(folder / "cells"),
    "the count gone": lambda folder: shutil.rmtree(folder / "finished"),
    "masks of another row": another_mask,
}


def _other_value(line: str, value: str | None = None) -> str:
    now = "1.0" if VALUE + "1.0" in line else "0.0"
    return line.replace(VALUE + now, VALUE + (value or ("0.0" if now == "1.0" else "1.0")), 1)


if __name__ == "__main__":
    main()
