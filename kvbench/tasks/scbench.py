"""SCBench as KVzip evaluates it: data/load.py and results/{metric,parse}.py of https://github.com/snu-mllab/KVzip.

    prompts        ["Extract the value ... {\\"a1f3\\": ...", "Key: \\"a1f3...\\" ...", ...]   context, then questions
    ground_truth   ["9c02...", ...]       one per question: a text, a list of texts (vt), a number (mf)
    task           ["scbench_summary", "scbench_passkey", ...]    mixed tasks: the kind of each question
    lang, repo, func_name                 repoqa: "python", the repository, the name of each function

Rows of Jang-Hyun/SCBench-preprocessed, a parquet file per task there (scbench_kv.parquet), here the same rows as lines
of scbench/kv.jsonl. They are those of microsoft/SCBench with its prompts for the mode of one context and separate
requests (`same_context_different_query`); qa_eng and choice_eng lack the rows above 125K tokens of Llama 3.1.
`turns=gold` asks the same questions in one conversation with right answers, as the other mode of SCBench does with its
own prompts.

Difference besides those of `shared_context` and of the metrics: the mean of a mixed task is over all its questions;
KVzip's repoqa_and_kv is the mean of the two kinds in each context. `Row.question_number` tells them apart if they
alternate.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, get_args

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import remembered
from kvbench.tasks.metrics import kvzip
from kvbench.tasks.metrics.longbench import rouge_package
from kvbench.tasks.metrics.repoqa import FUNCTIONS, pass_at_1
from kvbench.tasks.shared_context import ContextWithQuestions, Question, SharedContext
from kvbench.tasks.task import Sample, require_choice

KINDS: dict[str, Callable[[str, str], float]] = {
    "kv": kvzip.inclusion,
    "prefix_suffix": kvzip.inclusion,
    "passkey": kvzip.inclusion,
    "vt": kvzip.share,
    "mf": kvzip.exact,
    "many_shot": kvzip.option,
    "summary": kvzip.summary,
    "qa_eng": kvzip.f1_or_inclusion,
    "choice_eng": kvzip.first_line,
}
"""The metric of each kind of question; repoqa's takes other arguments (`pass_at_1`)."""
MIXED = {"summary_with_needles": ("summary", "passkey"), "repoqa_and_kv": ("repoqa", "kv")}
"""The mixed tasks, and the kinds of their questions."""
MEMBERS = ("kv", "prefix_suffix", "vt", "repoqa", "qa_eng", "choice_eng", "many_shot", "mf", "summary", *MIXED)
Length = Literal["full", "tiny", "short", "mid"]
FULL_ONLY = ("qa_eng", "choice_eng", "vt")
"""Tasks that KVzip did not shorten."""


@dataclass(frozen=True, kw_only=True)
class SCBenchTask(SharedContext):
    """One task, `member`. length: full contexts, or those that KVzip shortened to about 8K (tiny), 20K (short) or 60K
    (mid) tokens, in separate files (scbench/kv_tiny.jsonl)."""

    member: str
    length: Length = "full"
    version = "scbench-kvzip.1"  # names the protocol; `data_sha256` names the rows

    def __post_init__(self) -> None:
        require_choice(self, "member", MEMBERS)
        if self.length not in get_args(Length) or (self.member in FULL_ONLY and self.length != "full"):
            allowed = "full" if self.member in FULL_ONLY else ", ".join(get_args(Length))
            raise UserError(f"task.length={self.length} of {self.name}: allowed: {allowed}")
        super().__post_init__()

    @property
    def metric(self) -> str:
        if self.member == "repoqa":
            return "repoqa_pass_at_1"
        return f"kvzip_{self.member if self.member in MIXED else KINDS[self.member].__name__}"

    @property
    def files(self) -> tuple[str, ...]:
        suffix = "" if self.length == "full" else f"_{self.length}"
        return (f"scbench/{self.member}{suffix}.jsonl",)

    def counts(self) -> Sequence[int]:
        return _counts(self.root, self.files[0])

    def read_contexts(self, contexts: Collection[int]) -> Iterator[tuple[int, ContextWithQuestions]]:
        if self.member.startswith("summary"):
            rouge_package()  # before the first sample, if summaries cannot be scored
        for line in jsonl.rows(self.root, self.files[0], contexts):
            questions = 1
            try:
                row = line.read()
                questions = len(_prompts(row)) - 1
                content = _content(self.member, row)
            except ValueError as error:
                content = ContextWithQuestions("", [f"{line.place}: {error}"] * questions)
            yield line.number, content

    def score(self, prediction: str, sample: Sample) -> float:
        """By the metric of the question's kind, 0..1. Raises UserError for a package that is not installed."""
        if sample.kind == "repoqa":
            language, *functions = sample.choices
            return pass_at_1(prediction, sample.references, functions, language)
        (reference,) = sample.references
        return KINDS[sample.kind](prediction, reference)


@remembered
def _counts(root: str | None, file: str) -> tuple[int, ...]:
    """The number of questions of each row, 1 for an invalid row."""
    return tuple(number or 1 for number in jsonl.values(root, file, lambda row: len(_prompts(row)) - 1))


def _content(member: str, row: Mapping[str, Any]) -> ContextWithQuestions:
    """The context and the questions of a row.

    Raises UserError for a missing field, a wrong type, an empty context, or questions without answers.
    """
    context, *questions = _prompts(row)
    if not context.strip():
        raise UserError("its context is empty")
    answers = [_answer(value) for value in _list(row, "ground_truth", len(questions))]
    kinds = [member] * len(questions)
    if member in MIXED:
        kinds = [_kind(member, value) for value in _list(row, "task", len(questions))]
    names, functions, language = [], answers, ""
    if "repoqa" in kinds:
        names, language = jsonl.field(row, "func_name"), jsonl.text(row, "lang")
        last = len(kinds) - kinds[::-1].index("repoqa")
        if not isinstance(names, list) or len(names) < last:
            raise UserError(f"its func_name is {str(names)[:80]}: a list with a name for question {last}")
        if language not in FUNCTIONS:
            raise UserError(f"its lang is {language!r}: one of {', '.join(FUNCTIONS)}")
        functions = answers[: len(names)]

    def question(text: str, kind: str, answer: str, number: int) -> Question:
        if kind == "repoqa":
            same = [function for function, name in zip(functions, names, strict=False) if name == names[number]]
            return Question(text, tuple(same), kind, (language, *functions))
        if kind == "many_shot":  # the first line that holds "(letter)", as results/parse.py finds it
            options = [line.strip() for line in text.split("\n") if f"({answer})" in line]
            if not options:
                raise UserError(f"its question has no option ({answer}): {text[-80:]!r}")
            answer = options[0]
        return Question(text, (answer,), kind)

    return ContextWithQuestions(context, list(map(question, questions, kinds, answers, count())))


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


def _answer(value: Any) -> str:
    """A text: items of a list joined by ", ", a number as it is written. Raises UserError for others."""
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
