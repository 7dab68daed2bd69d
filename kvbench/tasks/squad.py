"""SQuAD paragraphs with all their questions, as KVzip evaluates them: load_squad in data/load.py of
https://github.com/snu-mllab/KVzip.

    context    The tower was finished in 1889, after two years of work. ...
    question   When was the tower finished?
    answers    {"text": ["1889"], "answer_start": [26]}
    id, title  not read

Rows of rajpurkar/squad (version 1.1), split train, as lines of squad/train.jsonl. Rows with the same paragraph are one
context, in the order in which paragraphs first appear. KVzip means to take 100 and stops at the first row of
the 101st: of that paragraph it asks only the first question (`cut_last`).
The reference is the first answer; the score is 1 if the answer of the model contains it, both normalised.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import remembered
from kvbench.tasks.metrics.kvzip import inclusion
from kvbench.tasks.shared_context import ContextWithQuestions, Question, SharedContext
from kvbench.tasks.task import Sample


@dataclass(frozen=True, kw_only=True)
class Squad(SharedContext):
    """One sample per question of `split`. cut_last: of the last of `contexts`, ask only the first question."""

    split: str = "train"
    cut_last: bool = False
    version = "squad-kvzip.2"  # names the protocol; `data_sha256` names the rows
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
        wanted = [row for numbers in paragraphs.values() for row in numbers]
        lines = {line.number: line for line in jsonl.rows(self.root, self.files[0], wanted)}
        for number, numbers in paragraphs.items():
            rows = [_question(lines[row]) for row in numbers]
            yield number, ContextWithQuestions(rows[0][0], [question for _, question in rows])

    def score(self, prediction: str, sample: Sample) -> float:
        (reference,) = sample.references
        return inclusion(prediction, reference)

    @property
    def _paragraphs(self) -> tuple[tuple[int, ...], ...]:
        return _rows_by_paragraph(self.root, self.files[0])


@remembered
def _rows_by_paragraph(root: str | None, file: str) -> tuple[tuple[int, ...], ...]:
    """Numbers of the rows of each paragraph, in the order of their first rows; a row without a paragraph is alone."""
    paragraphs: dict[str | int, list[int]] = {}
    for number, context in enumerate(jsonl.values(root, file, lambda row: jsonl.nonempty_text(row, "context"))):
        paragraphs.setdefault(number if context is None else context, []).append(number)
    return tuple(map(tuple, paragraphs.values()))


def _question(line: jsonl.Line) -> tuple[str, Question | str]:
    """The paragraph and the question of a row, or the error in it."""
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
