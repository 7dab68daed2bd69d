"""A results folder of one evaluation of kvpress (https://github.com/NVIDIA/kvpress, evaluation/evaluate.py).

`predictions.csv` has question, answer and predicted_answer, without contexts; `config.yaml` has press_name and
compression_ratio. The right answers of a row are a list as Python or numpy prints it, or one text.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.records.lines import small_file
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.whole_file import sha256_of
from kvbench.support.yaml_file import yaml_of
from kvbench.tasks.csv_rows import csv_rows

PREDICTIONS, CONFIG = "predictions.csv", "config.yaml"
CONFIGURED = (
    "dataset",
    "data_dir",
    "model",
    "press_name",
    "compression_ratio",
    "key_channel_compression_ratio",
    "head_compression_ratio",
    "threshold",
    "target_size",
    "compression_interval",
    "max_context_length",
    "query_aware",
    "fraction",
)
"""What is recorded of the configuration."""
SHARES = ("compression_ratio", "key_channel_compression_ratio", "head_compression_ratio", "fraction")
"""Numbers of the configuration that are shares."""
OTHER_BUDGETS = ("think", "decoding_", "prefill_decoding_")
"""How names of presses begin whose compression_ratio is no share of the KV pairs of a prompt."""
PRINTED = re.compile(r"""\[\s*(?:(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?:\s+|\s*(?=\])))*\]""", re.DOTALL)
"""An array of texts as numpy prints it: blanks and line breaks between texts, which are quoted as Python's are."""
QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
LARGEST = 2**63 - 1
Prediction = tuple[str, Sequence[str], str]
"""A question, its right answers, and what was answered."""


@dataclass(frozen=True)
class KvpressFolder:
    """Content of a folder: its predictions in their order, and the method and budget as settings of an endpoint."""

    name: str
    sha256: str
    predictions: tuple[Prediction, ...]
    labels: Mapping[str, str]
    config: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "KvpressFolder":
        """Raise MissingFile where there are no predictions, UserError for files that cannot be read or paired."""
        file = folder / PREDICTIONS
        if not file.is_file():
            raise MissingFile(f"{folder} holds no {PREDICTIONS}: give the folder of one evaluation of kvpress")
        config = read_config(folder / CONFIG)
        if config.get("query_aware") is True:
            raise UserError(
                f"{folder}: query_aware: true: kvpress puts the questions into the contexts, which it leaves out of "
                f"{PREDICTIONS}, so no answer can be paired; run its evaluation with query_aware: false"
            )
        return cls(folder.name, sha256_of(file), tuple(_predictions(file)), _labels(config), config)


def _predictions(file: Path) -> Iterator[Prediction]:
    try:
        for number, row in enumerate(csv_rows(file), 1):
            question, right, text = (
                row.get("question"),
                row.get("answer") or row.get("answers"),
                row.get("predicted_answer"),
            )
            if text is None or right is None or question is None:
                raise UserError("it lacks one of the columns question, answer and predicted_answer")
            yield question, right_answers(right, f"row {number}"), text
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def right_answers(cell: str, where: str) -> Sequence[str]:
    """Return the right answers in a cell of a table: a list as Python or numpy writes it, or one text.

    Python would join the texts of numpy, which have no commas between them, so these are read first. Raises UserError
    for an array that numpy has shortened, and for a list of other things than texts and numbers.
    """
    if PRINTED.fullmatch(cell.strip()):
        return [ast.literal_eval(text) for text in QUOTED.findall(cell)]
    if re.search(r"\s\.\.\.\s.*\]$", cell.strip(), re.DOTALL) and cell.startswith(("['", '["')):
        raise UserError(
            f"{where}: numpy has left out texts of the answers, in place of which is ...: write all of them"
        )
    try:
        content = ast.literal_eval(cell)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return (cell,)
    if not isinstance(content, (list, tuple)):
        return (cell,)
    if wrong := [item for item in content if not isinstance(item, (str, int, float)) or _is_large(item)]:
        kind = "number of too many digits" if _is_large(wrong[0]) else type(wrong[0]).__name__
        raise UserError(f"{where}: one of its right answers is a {kind}: allowed: texts and numbers")
    return [str(item) for item in content]


def _is_large(value: object) -> bool:
    return isinstance(value, int) and abs(value) > LARGEST


def read_config(path: Path) -> dict[str, Any]:
    """Return the configuration that is recorded; empty without a file. Raises UserError for one that cannot be read,
    and for a value that is no single text, number or truth value, or outside its range.
    """
    if not path.is_file():
        return {}
    content = yaml_of(small_file(path), path)
    if not isinstance(content := {} if content is None else content, dict):
        raise UserError(f"{path}: allowed: names with values, such as press_name: snapkv")
    config = {name: content[name] for name in CONFIGURED if name in content}
    for name, value in config.items():
        _check(name, value, str(path))
    return config


def _check(name: str, value: object, where: str) -> None:
    """Raise UserError for a value of the configuration that cannot be recorded, or a share outside 0 to 1."""
    single = value is None or isinstance(value, (str, int, float))
    if not single or _is_large(value) or not str(value).isprintable():
        raise UserError(f"{where}: {name} is a {type(value).__name__}: allowed: one short text, number or truth value")
    if name in SHARES and value is not None and (type(value) not in (int, float) or not 0 <= value <= 1):  # type: ignore[operator]
        raise UserError(f"{where}: {name} is {value!r}: allowed: a share from 0 to 1")


def _labels(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the method, and its budget where the press evicts a share of the KV pairs of a prompt."""
    press, ratio = config.get("press_name"), config.get("compression_ratio")
    if not isinstance(press, str):
        return {}
    if press == "no_press":
        return {"method": "full"}
    of_pairs = not press.startswith(OTHER_BUDGETS) and config.get("key_channel_compression_ratio") is None
    budget = {"budget": f"{1 - ratio:.6g}"} if of_pairs and ratio is not None and ratio < 1 else {}
    return {"method": press, **budget}
