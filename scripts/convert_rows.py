"""Turn rows of development versions (schema 9) into rows of schema 1, and say which cell has which new name.

    python scripts/convert_rows.py results/smollm2/main.parquet ...      files of packed rows, in place
    python scripts/convert_rows.py results/reference/kept ...            results folders, in place

Numbers, answers and hashes stay as they are. The names of cells change, since their descriptions name each setting;
`results/earlier_cells.csv` has the old and the new name of every cell that was converted.
"""

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from kvbench.records.columns import TYPES
from kvbench.records.moments import as_metadata, spans_of
from kvbench.records.parquet import checked_bytes, to_parquet
from kvbench.records.parquet_rows import descriptions_of, metadata_of
from kvbench.records.row import COLUMNS, HIGHER, LOWER, SCHEMA, SHARE, with_checksum
from kvbench.run.cell import canonical, digest

TABLE = Path(__file__).parents[1] / "results" / "earlier_cells.csv"
POLICIES = {
    "h2o": "h2o_obcache",
    "h2o_full": "h2o",
    "h2o_max": "h2o_kvzip",
    "tova": "tova_obcache",
    "tova_layer": "tova",
}
"""Names of policies in descriptions, and what they are called."""
OF_LAYERS: Mapping[str, Mapping[str, Any]] = {
    "pyramid": {"splits": "candidates"},
    "entropy": {"splits": "candidates"},
    "preference": {"queries": "window", "splits": "candidates"},
}
"""Settings that descriptions of layer allocations and labels left out, by kind, in their order."""
OF_TASKS = {"temperature": 0.0, "top_p": 1.0, "samples_per_prompt": 1, "reasoning": "auto"}
"""Settings that descriptions of tasks left out."""
NEEDLES, CONVERSATIONS = "ruler/niah", ("scbench/", "kvzip/", "squad", "gsm8k")
LOSS, LOSS_UNIT = "nll", "nats per token"
"""The one metric that is no share, of rows that do not say it."""


def described(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a cell with every setting, from one that left some out."""
    if "policy" not in old or not isinstance(old["policy"], Mapping):
        return dict(old)
    policy = {"accepts" if key == "takes" else key: _whole(item) for key, item in old["policy"].items()}
    policy["name"] = POLICIES.get(policy["name"], policy["name"])
    policy = {"window_skips": 0, "budget_span": "prompt", **policy}
    policy["layers"] = {**OF_LAYERS.get(policy["layers"]["kind"], {}), **policy["layers"]}
    new = {**old, "policy": policy, "task": _task(old["task"])}
    if "schedule" in old:
        new["schedule"] = {"answer_budget": None, "decode_counts": "answer", **old["schedule"]}
    if isinstance(score := old.get("score"), Mapping) and score["name"] in ("caote", "fastcaote"):
        new["score"] = {"merge": "attention", **score}
    return new


def label(old: str) -> str:
    """Return the label of a policy with every setting of its layers, from one that left some out."""
    words = old.split(" ")
    places = [place for place, word in enumerate(words) if word.startswith("layers.")]
    named = dict(words[place].removeprefix("layers.").split("=", 1) for place in places)
    missing = {key: item for key, item in OF_LAYERS.get(named.get("kind", ""), {}).items() if key not in named}
    after = places[-1] + 1 if places else len(words)
    return " ".join((*words[:after], *(f"layers.{key}={item}" for key, item in missing.items()), *words[after:]))


def _whole(item: Any) -> Any:
    """Return a setting of a policy with what a part of a prompt left out."""
    return {"most": None, **item} if isinstance(item, Mapping) and {"part", "of"} <= item.keys() else item


def _task(old: Mapping[str, Any]) -> dict[str, Any]:
    added: dict[str, Any] = dict(OF_TASKS)
    if old["name"].startswith(NEEDLES):
        added["texts"] = "fixed"
    if old["name"].startswith(CONVERSATIONS):
        added["turns"] = "none"
    return added | dict(old)


def convert_file(path: Path, names: dict[str, str]) -> None:
    """Convert a Parquet file of rows."""
    data, _ = checked_bytes(path)
    table = pyarrow.parquet.read_table(pa.BufferReader(data))
    cells = {name: described(old) for name, old in descriptions_of(path).items()}
    new = {name: digest(canonical(description)) for name, description in cells.items()}
    names.update(new)
    rows = [_row(row, new) for row in table.to_pylist()]
    converted = pa.Table.from_pylist(rows, pa.schema(list(TYPES.items())))
    metadata = metadata_of({new[name]: description for name, description in cells.items()})
    metadata |= as_metadata({new[name]: span for name, span in spans_of(path, table).items()})
    path.write_bytes(to_parquet(converted, metadata))


def _row(row: dict[str, Any], new: Mapping[str, str]) -> dict[str, Any]:
    row = {name: row.get(name) for name in COLUMNS} | {"cell": new[row["cell"]], "policy": label(row["policy"])}
    if row["better"] is None and row["metric"] is not None:
        is_loss = row["metric"] == LOSS
        row |= {"better": LOWER if is_loss else HIGHER, "unit": LOSS_UNIT if is_loss else SHARE}
    return row


def convert_folder(folder: Path, names: dict[str, str]) -> None:
    """Convert the cells, rows and other lines of a results folder. What its processes noted about files leaves."""
    new: dict[str, str] = {}
    for file in sorted((folder / "cells").glob("*.json")):
        description = described(json.loads(file.read_text("utf-8")))
        new[file.stem] = digest(canonical(description))
        file.unlink()
        (folder / "cells" / f"{new[file.stem]}.json").write_text(canonical(description) + "\n", "utf-8")
    names.update(new)
    for kind in ("rows", "curves", "kept", "timings"):
        for file in sorted((folder / kind).glob("*.jsonl")):
            lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
            for line in lines:
                line.pop("checksum", None)
                line["cell"] = new[line["cell"]]
                line |= {"schema": SCHEMA, "policy": label(line["policy"])} if "schema" in line else {}
            file.write_text("".join(with_checksum(json.dumps(line)) + "\n" for line in lines), "utf-8")
    for file in (folder / "finished").glob("*.json"):
        file.unlink()


def main(arguments: Sequence[str]) -> int:
    """Convert what is named; returns the exit code."""
    names: dict[str, str] = {}
    if TABLE.is_file():
        names |= {line["earlier"]: line["now"] for line in csv.DictReader(TABLE.open(encoding="utf-8"))}
    for path in map(Path, arguments):
        (convert_folder if path.is_dir() else convert_file)(path, names)
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("earlier", "now"), *sorted(names.items())])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
