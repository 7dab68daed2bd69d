"""SCBench as KVzip evaluates it: data/load.py and results/{metric,parse}.py of https://github.com/snu-mllab/KVzip.

    prompts        ["Extract the value ... {\\"a1f3\\": ...", "Key: \\"a1f3...\\" ...", ...]   context, then questions
    ground_truth   ["9c02...", ...]       one per question: a text, a list of texts (vt), a number (mf)
    task           ["scbench_summary", "scbench_passkey", ...]    mixed tasks: the kind of each question
    lang, repo, func_name                 repoqa: "python", the repository, the name of each function

Rows of Jang-Hyun/SCBench-preprocessed, a parquet file per task there (scbench_kv.parquet), here the same rows as lines
of scbench/kv.jsonl. They come from microsoft/SCBench with its prompts for the mode of one context and separate
requests (`same_context_different_query`); qa_eng and choice_eng lack the rows above 125K tokens of Llama 3.1.
`turns=gold` asks the same questions in one conversation with right answers, as the other mode of SCBench does with its
own prompts.

Difference besides the ones of `shared_context` and of the metrics: the mean of a mixed task is over all its questions;
KVzip's repoqa_and_kv is the mean of the two kinds in each context. `Row.question_number` tells them apart if they
alternate.

RepoQA's score of a function that the answer repeats from a repository follows scbench/repo_qa_utils.py of
https://github.com/microsoft/MInference, after https://github.com/evalplus/repoqa, and repoqa_score in
results/metric.py of KVzip: pass@1 at similarity 0.8, comments kept. Differences: an answer of white space scores 0,
where KVzip leaves it out of the mean; the grammars come from tree-sitter-language-pack, the maintained successor of
tree_sitter_languages. They are used only for answers with blocks of code.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, Literal

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl, kvzip
from kvbench.tasks.longbench import rouge_package
from kvbench.tasks.metrics import FIX
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
FUNCTIONS = {
    "python": "(function_definition name: (_)) @found",
    "java": "(method_declaration name: (_)) @found",
    "typescript": "(function_declaration name: (_)) @found",
    "rust": "(function_item name: (_)) @found",
    "cpp": "(function_definition declarator: (function_declarator declarator: (identifier))) @found",
    "go": "(function_declaration name: (_)) @found",
}
"""The tree-sitter query that finds functions, by language."""
THRESHOLD = 0.8
BLOCKS = re.compile(r"^```(?:\w+)?\s*\n(.*?)(?=^```)```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class SCBench(SharedContext):
    """Base class of SCBench's tasks in both protocols: one task, `member`, whose rows hold a context and questions.

    family: begins the metric's name. metrics: by kind of question; repoqa's is `pass_at_1`. mixed: the mixed tasks,
    with the kinds of their questions. check_summary: raises UserError if summaries cannot be scored.
    """

    member: str
    family: ClassVar[str]
    metrics: ClassVar[Mapping[str, Callable[[str, Any], float]]]
    mixed: ClassVar[Mapping[str, Collection[str]]]
    check_summary: ClassVar[Callable[[], Any]]

    @property
    def metric(self) -> str:
        if self.member == "repoqa":
            return "repoqa_pass_at_1"
        return f"{self.family}_{self.member if self.member in self.mixed else self.metrics[self.member].__name__}"

    @abstractmethod
    def _count(self, row: jsonl.Row) -> int:
        """Return the number of questions of a row. Raises UserError for an invalid row."""

    @abstractmethod
    def _content(self, row: jsonl.Row) -> ContextWithQuestions:
        """Raise UserError for a missing field, a wrong type, an empty context, or questions without answers."""

    def read_contexts(self, contexts: Collection[int]) -> Iterator[tuple[int, ContextWithQuestions]]:
        if self.member.startswith("summary"):
            self.check_summary()
        for line in jsonl.rows(self.root, self.files[0], contexts):
            questions = 1
            try:
                row = line.read()
                questions = self._count(row)
                content = self._content(row)
            except ValueError as error:
                content = ContextWithQuestions("", [f"{line.place}: {error}"] * questions)
            yield line.number, content

    def score(self, prediction: str, sample: Sample) -> float:
        """By the metric of the question's kind, 0..1. Raises UserError for a package that is not installed."""
        if sample.kind == "repoqa":
            language, *functions = sample.choices
            return pass_at_1(prediction, sample.references, functions, language)
        return self.metrics[sample.kind](prediction, sample.references)


@dataclass(frozen=True, kw_only=True)
class SCBenchTask(SCBench):
    """A task as KVzip evaluates it. length: full contexts, or those that KVzip shortened to about 8K (tiny), 20K
    (short) or 60K (mid) tokens, in separate files (scbench/kv_tiny.jsonl)."""

    length: Length = "full"
    version = "scbench-kvzip.2"  # names the protocol; `data_sha256` names the rows
    family = "kvzip"
    metrics = KINDS
    mixed = MIXED
    check_summary = staticmethod(rouge_package)

    def __post_init__(self) -> None:
        require_choice(self, "member", MEMBERS)
        if self.member in FULL_ONLY and self.length != "full":
            raise UserError(f"task.length={self.length} of {self.name}: allowed: full")
        super().__post_init__()

    @property
    def files(self) -> tuple[str, ...]:
        suffix = "" if self.length == "full" else f"_{self.length}"
        return (f"scbench/{self.member}{suffix}.jsonl",)

    def counts(self) -> Sequence[int]:
        return [questions or 1 for questions in _counts(self.root, self.files[0])]

    def _count(self, row: jsonl.Row) -> int:
        return _count(row)

    def _content(self, row: jsonl.Row) -> ContextWithQuestions:
        context, *questions = _prompts(row)
        if not context.strip():
            raise UserError("its context is empty")
        answers = [_answer(value) for value in _list(row, "ground_truth", len(questions))]
        kinds = [self.member] * len(questions)
        if self.member in MIXED:
            kinds = [_kind(self.member, value) for value in _list(row, "task", len(questions))]
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

    def score(self, prediction: str, sample: Sample) -> float:
        if sample.kind == "repoqa":
            return super().score(prediction, sample)
        (reference,) = sample.references
        return self.metrics[sample.kind](prediction, reference)


def _count(row: jsonl.Row) -> int:
    return len(_prompts(row)) - 1


_counts = jsonl.column(_count)


def _prompts(row: jsonl.Row) -> list[str]:
    prompts = jsonl.field(row, "prompts")
    if not isinstance(prompts, list) or len(prompts) < 2 or not all(isinstance(text, str) for text in prompts):
        raise UserError(f"its prompts are {str(prompts)[:80]}: a context and at least one question")
    return prompts


def _list(row: jsonl.Row, name: str, length: int) -> list[Any]:
    values = jsonl.field(row, name)
    if not isinstance(values, list) or len(values) != length:
        raise UserError(f"its {name} is {str(values)[:80]}: a list, one for each of {length} questions")
    return values


def _answer(value: Any) -> str:
    """Return a text: items of a list joined by ", ", a number as it is written. Raises UserError for others."""
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


def pass_at_1(prediction: str, references: Sequence[str], functions: Sequence[str], language: str) -> float:
    """1 if the function in the answer is most similar to one of `references`, and at least 0.8.

    functions: the repository's functions that the task asks for, including the references; of equally similar ones the
    first counts. The answer's function is the first one in its blocks of code, or the first block if no block has a
    function, or the whole answer if it has no block.

    Raises UserError: the language is none of RepoQA's, or nltk or the grammars are not installed.
    """
    if language not in FUNCTIONS:
        raise UserError(f"language {language!r}: allowed: {', '.join(FUNCTIONS)}")
    if not prediction.strip():
        return 0.0
    answer = function_in(prediction, language)
    similarities = [similarity(answer, function) for function in functions]
    best = max(similarities, default=0.0)
    return float(best >= THRESHOLD and functions[similarities.index(best)] in references)


def similarity(candidate: str, reference: str) -> float:
    """BLEU-4 of two functions, words between white space, smoothed by method 4 of Chen and Cherry (2014)."""
    try:
        from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
    except ModuleNotFoundError:
        raise UserError(f"repoqa is scored by the BLEU of nltk, which is not installed; run: {FIX}") from None
    words = [re.split(r"\s+", text.strip()) for text in (reference, candidate)]
    return float(sentence_bleu([words[0]], words[1], smoothing_function=SmoothingFunction().method4))  # type: ignore[arg-type]


def function_in(prediction: str, language: str) -> str:
    """Return the part of an answer that is compared; see `pass_at_1`."""
    blocks = BLOCKS.findall(prediction.strip())
    if not blocks:
        return prediction.strip()
    try:
        from tree_sitter import Query, QueryCursor
        from tree_sitter_language_pack import get_language, get_parser
    except ModuleNotFoundError:
        raise UserError(f"repoqa needs tree-sitter-language-pack, which is not installed; run: {FIX}") from None
    functions = Query(get_language(language), FUNCTIONS[language])  # type: ignore[arg-type]
    for block in blocks:
        source = block.encode()
        tree = get_parser(language).parse(source)  # type: ignore[arg-type]
        if nodes := QueryCursor(functions).captures(tree.root_node).get("found", []):
            first = min(nodes, key=lambda node: (node.start_byte, -node.end_byte))
            return source[first.start_byte : first.end_byte].decode()
    return blocks[0]
