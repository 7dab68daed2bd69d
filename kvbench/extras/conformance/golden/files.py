"""Golden files of evictions, scores and prompts: every case of a file is checked, and one that fails stops no other."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kvbench.extras.conformance.golden import answers, prompts
from kvbench.extras.conformance.golden.case import load
from kvbench.extras.conformance.golden.compare import check as check_eviction
from kvbench.extras.conformance.golden.verdict import Verdict
from kvbench.support.errors import UserError
from kvbench.support.whole_file import read_whole

PREDICTIONS = "infinitebench_predictions"
"""The folder of answers, beside the folder of the golden file."""
SHAPES = " | ".join(" ".join(sorted(names)) for names in (*answers.ROWS, answers.PREDICTIONS, {"input", "outputs"}))
"""The fields that rows have, by which their check is chosen."""
Check = tuple[str, Callable[[], Iterable[Verdict]]]
"""The name of a case or of a group of them, and its check."""


def verdicts(path: Path, sources: prompts.Sources) -> Iterator[Verdict]:
    """Check every case of a file. A case that cannot be read or run is a failure, and so is a file without cases."""
    checked = 0
    try:
        if path.suffix not in (".json", ".jsonl"):
            yield check_eviction(load(path))
            return
        content = _read(path)
        checks = _row_checks if isinstance(content, list) else _object_checks
        for name, check in checks(path, content, sources):
            for verdict in _until_error(f"{path.name} {name}".strip(), check):
                checked += not verdict.absent
                yield verdict
    except ValueError as error:
        yield Verdict(path.name, str(error))
        return
    if not checked:
        yield Verdict(path.name, "holds no case that can be checked here")


def _read(path: Path) -> Any:
    """Return the content of a .json, or of the lines of a .jsonl. Raises ValueError for a file that is neither."""
    try:
        content = read_whole(path).decode("utf-8")
        if path.suffix == ".json":
            return json.loads(content)
        return [json.loads(line) for line in content.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a golden case: not JSON in UTF-8: {error}") from None


def _row_checks(path: Path, rows: list[Any], sources: prompts.Sources) -> Iterator[Check]:
    """Yield the checks of a file of rows; one of unknown shape fails by itself.

    RULER makes its samples in sequence, each at the place of its row, so its rows are checked together.
    """
    of_ruler: dict[int, Mapping[str, Any]] = {}
    for number, row in enumerate(rows, start=1):
        fields = row.keys() if isinstance(row, Mapping) else set()
        check = next((check for names, check in answers.ROWS.items() if fields >= names), None)
        if fields >= {"input", "outputs"}:
            of_ruler[number - 1] = row
        elif fields >= answers.PREDICTIONS:
            yield f"line {number}", lambda row=row: answers.check_predictions(row, path.parent.parent / PREDICTIONS)
        elif check:
            yield f"line {number}", lambda row=row, check=check: check(row)
        else:
            content = (
                f"has {', '.join(fields) or 'nothing'}" if isinstance(row, Mapping) else f"is a {type(row).__name__}"
            )
            problem = f"line {number} {content}: cannot be checked; allowed: the fields {SHAPES}"
            yield "", lambda problem=problem: [Verdict(path.name, problem)]
    if of_ruler:
        yield "", lambda: prompts.check_ruler_rows(path, of_ruler, sources)


def _object_checks(path: Path, content: Any, sources: prompts.Sources) -> Iterator[Check]:
    if not isinstance(content, Mapping) or not content:
        raise UserError(f"{path} is not a golden case: it holds no JSON object, or an empty one")
    if "contexts" in content or "hand_scores" in content:
        yield "contexts", lambda: prompts.check_needle_contexts(path, content.get("contexts", []), sources)
        for key in ("hand_scores", "real_claude_answers"):
            for number, row in enumerate(content.get(key, [])):
                yield f"{key} {number}", lambda row=row: answers.check_needle(row)
    elif isinstance(content.get("rows"), list):
        yield "rows", lambda: prompts.check_truncation(path, content["rows"], sources)
    elif isinstance(content.get("generation"), Mapping):
        yield "generation", lambda: prompts.check_ruler_generation(path, content["generation"], sources)
    else:
        for name, expected in content.items():
            yield "", lambda name=name, expected=expected: [answers.check_odd_answer(name, expected)]


def _until_error(name: str, check: Callable[[], Iterable[Verdict]]) -> Iterator[Verdict]:
    """Yield the verdicts of a check, up to the case that cannot be read or run."""
    try:
        yield from check()
    except FileNotFoundError as error:
        yield Verdict(name, str(error), absent=True)
    except ValueError as error:
        yield Verdict(name, str(error))
    except Exception as error:
        yield Verdict(name, f"cannot be read: {type(error).__name__}: {error}")
