"""A golden file of scores or prompts, told by what is in it: a line a case, and one that fails stops no other."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kvbench.conformance import prompts
from kvbench.conformance.golden import answers
from kvbench.conformance.golden.checked import Checked
from kvbench.support.errors import UserError

PREDICTIONS = "infinitebench_predictions"
"""The folder of answers, beside that of the golden file."""


def verdicts(path: Path, beside: prompts.Beside) -> Iterator[Checked]:
    """Check every case of a file. What cannot be read or run is a failure, and so is a file of no case."""
    seen = 0
    try:
        found = prompts.read(path)
        kinds = _rows(path, found, beside) if isinstance(found, list) else _object(path, found, beside)
        for name, check in kinds:
            for checked in _guarded(f"{path.name} {name}", check):
                seen += not checked.absent
                yield checked
    except ValueError as error:
        yield Checked(path.name, str(error))
        return
    if not seen:
        yield Checked(path.name, "holds no case that can be checked here")


Check = Callable[[], Iterable[Checked]]


def _rows(path: Path, found: list[Any], beside: prompts.Beside) -> Iterator[tuple[str, Check]]:
    """The checks of a file of rows; those of RULER are made in sequence and so are checked together."""
    if found and all(isinstance(row, Mapping) and row.keys() >= {"input", "outputs"} for row in found):
        yield "", lambda: prompts.ruler_rows(path, found, beside)
        return
    for number, row in enumerate(found, start=1):
        name = f"line {number}"
        if not isinstance(row, Mapping):
            raise UserError(f"{path} is no golden case: {name} is a {type(row).__name__}")
        if row.keys() >= answers.PREDICTIONS:
            folder = path.parent.parent / PREDICTIONS
            yield name, lambda row=row, folder=folder: answers.of_predictions(row, folder)
            continue
        check = next((check for fields, check in answers.ROWS.items() if row.keys() >= fields), None)
        if check is None:
            raise UserError(f"{path} is no golden case: {name} has {', '.join(map(str, row)) or 'nothing'}")
        yield name, lambda row=row, check=check: check(row)


def _object(path: Path, found: Any, beside: prompts.Beside) -> Iterator[tuple[str, Check]]:
    """The checks of a file of one object."""
    if not isinstance(found, Mapping) or not found:
        raise UserError(f"{path} is no golden case: a {type(found).__name__}")
    if "contexts" in found or "hand_scores" in found:
        yield "contexts", lambda: prompts.needle_contexts(path, found.get("contexts", []), beside)
        for key in ("hand_scores", "real_claude_answers"):
            for number, row in enumerate(found.get(key, [])):
                yield f"{key} {number}", lambda row=row: answers.of_needle(row)
    elif isinstance(found.get("rows"), list):
        yield "rows", lambda: prompts.truncation(path, found["rows"], beside)
    elif isinstance(found.get("generation"), Mapping):
        yield "generation", lambda: prompts.ruler_generation(path, found["generation"], beside)
    else:
        for name, expected in found.items():
            yield "", lambda name=name, expected=expected: [answers.of_odd(name, expected)]


def _guarded(name: str, check: Check) -> Iterator[Checked]:
    """What a check finds, up to where it cannot go on."""
    try:
        yield from check()
    except FileNotFoundError as error:
        yield Checked(name.strip(), str(error), absent=True)
    except ValueError as error:
        yield Checked(name.strip(), str(error))
    except Exception as error:
        yield Checked(name.strip(), f"cannot be read: {type(error).__name__}: {error}")
