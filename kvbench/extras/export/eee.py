"""Means as records of Every Eval Ever, the open schema for results of evaluations, one file per model.

Follows version 0.3.0 of https://github.com/evaleval/every_eval_ever: every_eval_ever/schemas/eval.schema.json and the
checks of every_eval_ever/validator (paths, and scores within their bounds), as of commit 9bce413. Files lie as its data
store has them, data/COLLECTION/DEVELOPER/MODEL/UUID.json. A record's id and name come from the hashes of its cells: the
same cells give the same file.

What rows do not say is ``unknown``: who evaluates, and whether the weights are open.
"""

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from kvbench.records import ResultsFolder
from kvbench.records.lines import Warn
from kvbench.records.rows import Describe
from kvbench.report.report_file import text_to
from kvbench.report.rows import answered_elsewhere, describer, load_table
from kvbench.report.selection import NothingSelected, Where, flat, task_settings
from kvbench.report.stats.paired import TIMED
from kvbench.report.tables.summary import NEEDED, Summary, summaries
from kvbench.support import __version__
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.support.quantity import count_noun

SCHEMA_VERSION = "0.3.0"
COLLECTION = "kvbench"
UNKNOWN = "unknown"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_SETTINGS = ("policy", "score", "budget", "variant", "layout", "schedule", "context_length", "seed", "task_version")
_MEASURED = (
    *("kept_fraction", "kept_tokens", "cache_bytes", "full_cache_bytes", "prefill_seconds", "evict_seconds"),
    *("decode_seconds", "new_tokens", "prompt_tokens", "acted", "errors", "blanks", "contexts"),
)
_PACKAGES = ("torch", "transformers")

Record = dict[str, Any]
Versions = Callable[[str], str]
"""From a package to its versions in the environments of a record; ``unknown`` if none was recorded."""


def write_eee(folder: str | os.PathLike[str], out: TextIO | Path, warn: Warn, where: Where | None = None) -> None:
    """Write a record for each model into the folder ``out``; scores and intervals equal `kvbench report table`'s.

    A cell without a mean has no result there and goes to ``warn``. Raises UserError for a stream and for a folder that
    cannot be made, NothingSelected if no cell has a mean.
    """
    if not isinstance(out, Path):
        raise UserError("--format eee writes a file for each model: name a folder with --out FOLDER")
    table, describe = load_table(folder, (*NEEDED, "environment"), warn, where), describer(folder)
    cells = summaries(table)
    valued = [cell for cell in cells if cell.mean is not None]
    if not valued:
        raise NothingSelected(f"none of {count_noun(len(cells), 'selected cell')} has a value")
    if blank := len(cells) - len(valued):
        warn(
            f"{count_noun(blank, 'cell')} left out: no sample has a value, and a result of Every Eval Ever has a score"
        )
    environments = dict[str, set[str | None]]()
    for model, name in zip(table["model"].to_pylist(), table["environment"].to_pylist(), strict=True):
        environments.setdefault(model, set()).add(name)
    for model, members in grouped(valued, lambda cell: cell.model).items():
        recorded = [ResultsFolder(folder).read_environment(name) for name in environments[model] if name]
        record = _record(model, members, describe, _versions(recorded))
        path = out / "data" / COLLECTION / _place(model) / f"{_uuid(record['evaluation_id'])}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = f"{error.strerror}; name another folder with --out"
            raise UserError(f"cannot write {os.fspath(path)!r}: {reason}") from error
        with text_to(path) as stream:
            stream.write(json.dumps(record, indent=2, allow_nan=False) + "\n")


def _record(model: str, cells: Sequence[Summary], describe: Describe, versions: Versions) -> Record:
    elsewhere = any(answered_elsewhere(describe(cell.cell)) for cell in cells)
    hashes = hashlib.sha256("".join(sorted(cell.cell for cell in cells)).encode()).hexdigest()[:16]
    developer = {"developer": model.partition("/")[0]} if _HUB_ID.fullmatch(model) else {}
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": f"{COLLECTION}/{model}/{hashes}",
        "retrieved_timestamp": str(int(time.time())),
        "source_metadata": {
            "source_name": "kvbench",
            "source_type": "evaluation_run",
            "source_organization_name": UNKNOWN,
            "evaluator_relationship": "other",
            "additional_details": {"exported_by": f"kvbench {__version__}"},
        },
        "eval_library": {
            "name": "kvbench",
            "version": versions("kvbench"),
            "additional_details": {name: versions(name) for name in _PACKAGES},
        },
        "model_info": {
            "name": model,
            "id": model,
            **developer,
            "additional_details": {
                "deployment_type": UNKNOWN if elsewhere else "self_deployed",
                "model_availability": UNKNOWN,
            },
        },
        "evaluation_results": [_result(cell, describe(cell.cell)) for cell in cells],
    }


def _result(cell: Summary, description: Mapping[str, Any] | None) -> Record:
    """Return the result of one cell: its mean and interval, what was measured, and all its settings as text."""
    task, metric = task_settings(description), cell.metric or "value"
    has_steps = cell.metric == TIMED  # other cells share their decoding steps
    measured = {name: getattr(cell, name) for name in _MEASURED if name != "decode_seconds" or has_steps}
    uncertainty: Record = {"num_samples": cell.n}
    if cell.low is not None and cell.high is not None:
        uncertainty["confidence_interval"] = {"lower": cell.low, "upper": cell.high, "confidence_level": 0.95}
    data = {"task_version": cell.task_version, "data_sha256": task.get("data_sha256")}
    settings = {name: getattr(cell, name) for name in _SETTINGS}
    lowest, highest = _bounds(cell)
    return {
        "evaluation_result_id": cell.cell,
        "evaluation_name": cell.task,
        "source_data": {
            "dataset_name": cell.task.partition("/")[0],
            "source_type": "other",
            "additional_details": _texts(data),
        },
        "metric_config": {
            "metric_id": f"kvbench.{metric}",
            "metric_name": metric,
            **({"metric_unit": "proportion"} if cell.rate else {}),
            "lower_is_better": not cell.higher,
            "score_type": "continuous",
            "min_score": lowest,
            "max_score": highest,
        },
        "score_details": {"score": cell.mean, "details": _texts(measured), "uncertainty": uncertainty},
        "generation_config": {
            "generation_args": _generation(task) if cell.higher else {},
            "additional_details": _texts(flat(description) | settings),
        },
    }


def _bounds(cell: Summary) -> tuple[float | str, float | str]:
    """Return the smallest and the largest score that a metric can have; the schema writes what has no bound as a
    text.
    """
    if cell.rate:
        return 0.0, 1.0
    if cell.higher:
        return "-Infinity", "Infinity"
    return 1.0 if cell.metric == "perplexity" else 0.0, "Infinity"


def _generation(task: Mapping[str, Any]) -> Record:
    """Return how answers were drawn; empty if the settings of the task were not kept."""
    if not task:
        return {}
    temperature, longest = task.get("temperature", 0.0), task.get("max_new_tokens")
    drawn = {"temperature": temperature} | ({"top_p": task.get("top_p", 1.0)} if temperature else {})
    return drawn | ({"max_tokens": longest} if longest else {})


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Details as texts, as the schema asks: numbers, lists and truth values as JSON; missing ones are left out."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
        if value is not None
    }


def _versions(environments: Sequence[Mapping[str, Any] | None]) -> Versions:
    recorded = [(content or {}).get("packages") for content in environments]
    installed = [packages for packages in recorded if isinstance(packages, Mapping)]
    return lambda name: (
        ", ".join(sorted({str(packages[name]) for packages in installed if packages.get(name)})) or UNKNOWN
    )


def _place(model: str) -> Path:
    """DEVELOPER/MODEL in characters that every file system takes, whatever a model is called."""
    developer, name = model.split("/") if _HUB_ID.fullmatch(model) else (UNKNOWN, model)
    return Path(*(re.sub(r"[^0-9A-Za-z._-]", "_", part)[-100:].strip(".") or UNKNOWN for part in (developer, name)))


def _uuid(evaluation: str) -> uuid.UUID:
    """Return a UUID of version 4, as names of files must be, with the bits of a hash in place of random ones."""
    return uuid.UUID(bytes=hashlib.sha256(evaluation.encode("utf-8", "backslashreplace")).digest()[:16], version=4)
