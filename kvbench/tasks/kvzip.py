"""SQuAD and GSM8K as KVzip evaluates them, and its metrics of short answers: https://github.com/snu-mllab/KVzip.

SQuAD, load_squad in data/load.py: paragraphs with all their questions.

    context    The tower was finished in 1889, after two years of work. ...
    question   When was the tower finished?
    answers    {"text": ["1889"], "answer_start": [26]}
    id, title  not read

Rows of rajpurkar/squad (version 1.1), split train, as lines of squad/train.jsonl. Rows with the same paragraph are one
context, in the order in which paragraphs first appear. KVzip means to take 100 and stops at the first row of
the 101st: of that paragraph it asks only the first question (`cut_last`).
The reference is the first answer; the score is 1 if the answer of the model contains it, both normalised.

GSM8K, load_gsm there: the facts of a problem are the context, and its question follows.

    question   A baker fills 12 trays with 6 rolls each. She sells half of them. How many rolls are left?
    answer     There were 12*6 = <<12*6=72>>72 rolls. ... #### 36

Rows of openai/gsm8k (main, split test), as lines of gsm8k/test.jsonl. The context is all sentences but the last, split
at ". ", with a full stop behind; the question is the last one. Problems whose context has fewer than `least_tokens`
tokens of the model are left out (72 in KVzip, for SnapKV's window of 16); the first 100 others are used.

The differences in prompts that `shared_context` states hold here too.

Metrics follow results/metric.py. Each function scores one answer against one reference in 0..1. An answer of white
space scores 0. Official aggregation: the mean over the questions of a context, then over contexts, x 100. Namesakes
that differ: SCBench's own scorer takes a choice by its letter, a number by the first one in the answer, and F1 alone
for questions about books.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles
from kvbench.tasks.longbench import rouge
from kvbench.tasks.metrics import english
from kvbench.tasks.shared_context import ContextWithQuestions, Question, SharedContext, phrased, require_question_field
from kvbench.tasks.task import GAP, InvalidSample, Sample, Task, TokenCounter, require_positive

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS = {word: str(digit) for digit, word in enumerate(WORDS)}
NUMBER_WORDS = re.compile(rf"\b({'|'.join(DIGITS)})\b")


@dataclass(frozen=True, kw_only=True)
class Squad(SharedContext):
    """One sample per question of `split`. cut_last: of the last of `contexts`, ask only the first question."""

    split: str = "train"
    cut_last: bool = False
    version = "squad-kvzip.3"  # names the protocol; `data_sha256` names the rows
    metric = "kvzip_inclusion"

    @property
    def files(self) -> tuple[str, ...]:
        return (f"squad/{self.split}.jsonl",)

    def counts(self) -> Sequence[int]:
        counts = [len(numbers) for numbers in self._paragraphs]
        if self.cut_last and self.contexts is not None and self.contexts <= len(counts):
            counts[self.contexts - 1] = 1
        return counts

    def read_contexts(self, contexts: Collection[int]) -> Iterator[tuple[int, ContextWithQuestions]]:
        paragraphs = {number: self._paragraphs[number] for number in sorted(contexts)}
        line_numbers = [row for numbers in paragraphs.values() for row in numbers]
        lines = {line.number: line for line in jsonl.rows(self.root, self.files[0], line_numbers)}
        for number, numbers in paragraphs.items():
            rows = [_question(lines[row]) for row in numbers]
            yield number, ContextWithQuestions(rows[0][0], [question for _, question in rows])

    def score(self, prediction: str, sample: Sample) -> float:
        (reference,) = sample.references
        return inclusion(prediction, reference)

    @property
    def _paragraphs(self) -> Sequence[Sequence[int]]:
        return _rows_by_paragraph(self.root, self.files[0])


_rows_by_paragraph = jsonl.rows_by(lambda row: jsonl.nonempty_text(row, "context"))


def _question(line: jsonl.Line) -> tuple[str, Question | str]:
    """Return the paragraph and the question of a row, or the error in it."""
    context = ""
    try:
        row = line.read()
        context = jsonl.nonempty_text(row, "context")
        question, answers = jsonl.text(row, "question"), jsonl.field(row, "answers")
        texts = answers.get("text") if isinstance(answers, dict) else None
        if not isinstance(texts, list) or not texts or not isinstance(texts[0], str):
            raise UserError(f"its answers are {str(answers)[:80]}: a list of texts under text")
    except ValueError as error:
        return context, f"{line.place}: {error}"
    return context, Question(question, (texts[0],))


@dataclass(frozen=True, kw_only=True)
class GSM8K(FromFiles, Task):
    """One sample per problem whose context is long enough."""

    instruction: str
    ask: str
    max_new_tokens: int = 512
    least_tokens: int = 72
    split: str = "test"
    version = "gsm8k-kvzip.2"  # names the protocol; `data_sha256` names the rows
    metric = "kvzip_solution"
    wraps_context = True
    context_length = None  # problems have their own lengths

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "samples", "max_new_tokens")
        require_question_field(self.name, self.ask)

    @property
    def files(self) -> tuple[str, ...]:
        return (f"gsm8k/{self.split}.jsonl",)

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        """As `Task.generate`; `indices` count the problems that are long enough, and invalid rows."""
        opening, index, last = self.instruction + GAP, -1, max(indices, default=-1)
        for line in jsonl.rows(self.root, self.files[0]):
            if index == last:
                return
            try:
                row = line.read()
                context, question = split(jsonl.text(row, "question"))
                answer = jsonl.text(row, "answer")
            except ValueError as error:
                index += 1
                if index in indices:
                    yield InvalidSample(index, self.name, f"{line.place}: {error}")
                continue
            if count_tokens(context) < self.least_tokens:
                continue
            index += 1
            if index in indices:
                prompt = opening + context, phrased(self.ask, question), ""
                yield Sample(index, self.name, *prompt, (answer,), self.max_new_tokens, context_prefix=opening)
        if index < last:
            raise UserError(
                f"task.samples={last + 1}: {index + 1} problems of {self.files[0]} have a context of "
                f"task.least_tokens={self.least_tokens} tokens"
            )

    def score(self, prediction: str, sample: Sample) -> float:
        (reference,) = sample.references
        return solution(prediction, reference)


def split(problem: str) -> tuple[str, str]:
    """Context and question of a problem. A problem of a single sentence has the context "." as in KVzip."""
    *facts, question = problem.split(". ")
    return ". ".join(facts).strip() + ".", question.strip()


def normalized(text: str) -> str:
    """Lower case, no ASCII punctuation, none of the words a, an, the, single blanks, and "zero" to "nine" as digits."""
    return NUMBER_WORDS.sub(lambda word: DIGITS[word[0]], " ".join(english(text)))


def inclusion(prediction: str, reference: str) -> float:
    """1 if the normalised answer contains the normalised reference, which may be empty."""
    return float(_has_text(prediction) and normalized(reference) in normalized(prediction))


def first_line(prediction: str, reference: str) -> float:
    """`inclusion` in the first line of the answer, blank or not."""
    if not _has_text(prediction):
        return 0.0
    return float(normalized(reference) in normalized(prediction.split("\n")[0]))


def share(prediction: str, reference: str) -> float:
    """Share of the items of the reference, separated by ", ", that the answer contains verbatim."""
    items = reference.split(", ")
    return sum(item in prediction for item in items) / len(items) if _has_text(prediction) else 0.0


def exact(prediction: str, reference: str) -> float:
    """1 if the answer equals the reference, character by character."""
    return float(_has_text(prediction) and prediction == reference)


def option(prediction: str, reference: str) -> float:
    """1 for the right option; the reference is "(A) text".

    If the answer begins with a bracket too, the contents of the brackets must be equal. Otherwise the answer must
    include the text after the first bracket of the reference, up to the next closing one, as in `inclusion`.

    Raises UserError for a reference that begins with a bracket which does not close.
    """
    if not _has_text(prediction):
        return 0.0
    if reference.startswith("("):
        if ")" not in reference:
            raise UserError(f"the reference {reference[:80]!r} is not an option: its closing bracket is missing")
        if prediction.startswith("("):
            bracketed, expected = (text.split("(")[1].split(")")[0] for text in (prediction, reference))
            return float(bracketed == expected)
        reference = reference.split(")")[1].strip()
    return float(normalized(reference) in normalized(prediction))


def f1_or_inclusion(prediction: str, reference: str) -> float:
    """Return the larger of `inclusion` and the F1 `2 P R / (P + R)` of the multisets of normalised words."""
    words, expected = normalized(prediction).split(), normalized(reference).split()
    shared = sum((Counter(words) & Counter(expected)).values())
    f1 = 2 * shared / (len(words) + len(expected)) if shared else 0.0
    return max(f1, inclusion(prediction, reference))


def solution(prediction: str, reference: str) -> float:
    """1 if the answer contains the result of the solution, else 0.

    The answer is in lower case and begins after its last "the answer is ", if any. The result follows the last
    "#### " of the reference. Nothing else is normalised: 1,000 is not 1000, and 180 contains 18.
    """
    answer = prediction.strip().lower().split("the answer is ")[-1]
    return float(_has_text(prediction) and reference.strip().split("#### ")[-1] in answer)


def summary(prediction: str, reference: str) -> float:
    """F of ROUGE-L by rouge 1.0.1, as in LongBench. Raises UserError if it is not installed."""
    return rouge(prediction, reference) if _has_text(prediction) else 0.0


def _has_text(prediction: str) -> bool:
    return bool(prediction.strip())
