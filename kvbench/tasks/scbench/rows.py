"""Rows of SCBench as KVzip preprocessed them: what a task needs of them, checked."""

from collections.abc import Mapping
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import remembered
from kvbench.tasks.jsonl import Line
from kvbench.tasks.metrics.repoqa import FUNCTIONS
from kvbench.tasks.scbench.scoring import MIXED
from kvbench.tasks.shared_context import Asked, Question


@remembered
def counts(root: str | None, file: str) -> tuple[int, ...]:
    """How many questions each row asks, one for a row that is none of SCBench's."""
    return tuple(map(_questions, jsonl.rows(root, file, range(jsonl.count(root, file)))))


def asked(member: str, line: Line) -> Asked:
    """What a row asks, or what is wrong with it, once for each of its questions."""
    questions = 1
    try:
        row = line.read()
        questions = len(_prompts(row)) - 1
        return read(member, row)
    except ValueError as error:
        return Asked("", [f"{line.place}: {error}"] * questions)


def read(member: str, row: Mapping[str, Any]) -> Asked:
    """The context and the questions of a row.

    Raises ValueError for a field that is not there or not of its type, an empty context, or questions without answers.
    """
    context, *questions = _prompts(row)
    if not context.strip():
        raise UserError("its context is empty")
    answers = [_answer(value) for value in _list(row, "ground_truth", len(questions))]
    kinds = [member] * len(questions)
    if member in MIXED:
        kinds = [_kind(member, value) for value in _list(row, "task", len(questions))]
    names = _names(row, [number for number, kind in enumerate(kinds) if kind == "repoqa"])
    language = jsonl.text(row, "lang") if "repoqa" in kinds else ""
    if language and language not in FUNCTIONS:
        raise UserError(f"its lang is {language!r}: one of {', '.join(FUNCTIONS)}")

    def question(number: int, text: str) -> Question:
        kind, answer = kinds[number], answers[number]
        if kind == "repoqa":
            functions = answers[: len(names)]
            same = [one for one, name in zip(functions, names, strict=False) if name == names[number]]
            return Question(text, tuple(same), kind, (language, *functions))
        if kind == "many_shot":
            answer = _option(text, answer)
        return Question(text, (answer,), kind)

    return Asked(context, [question(number, text) for number, text in enumerate(questions)])


def _questions(line: Line) -> int:
    try:
        return len(_prompts(line.read())) - 1
    except ValueError:
        return 1


def _prompts(row: Mapping[str, Any]) -> list[str]:
    prompts = jsonl.field(row, "prompts")
    if not isinstance(prompts, list) or len(prompts) < 2 or not all(isinstance(text, str) for text in prompts):
        raise UserError(f"its prompts are {str(prompts)[:80]}: a context and at least one question")
    return prompts


def _list(row: Mapping[str, Any], name: str, length: int) -> list[Any]:
    values = jsonl.field(row, name)
    if not isinstance(values, list) or len(values) != length:
        raise UserError(f"its {name} is {str(values)[:80]}: a list, one for each of {length} questions")
    return values


def _names(row: Mapping[str, Any], wanted: list[int]) -> list[Any]:
    """The names of functions, by the number of their question. Raises ValueError where one of `wanted` has none."""
    names = jsonl.field(row, "func_name") if wanted else []
    if not isinstance(names, list) or (wanted and len(names) <= wanted[-1]):
        raise UserError(f"its func_name is {str(names)[:80]}: a list with a name for question {wanted[-1] + 1}")
    return names


def _answer(value: Any) -> str:
    """One text: items of a list with ", " between them, a number as it is written. Raises ValueError for others."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise UserError(f"its ground_truth holds {str(value)[:80]!r}: texts, lists of texts or numbers")


def _kind(member: str, value: Any) -> str:
    kind = value.removeprefix("scbench_") if isinstance(value, str) else value
    if kind not in MIXED[member]:
        raise UserError(f"its task holds {value!r}: of {member}, {' or '.join(f'scbench_{k}' for k in MIXED[member])}")
    return kind


def _option(question: str, letter: str) -> str:
    """The line of a question that holds "(letter)", as results/parse.py finds it: the first, if several do."""
    lines = [line.strip() for line in question.split("\n") if f"({letter})" in line]
    if not lines:
        raise UserError(f"its question has no option ({letter}): {question[-80:]!r}")
    return lines[0]
