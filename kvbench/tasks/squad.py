"""SQuAD paragraphs with all their questions, as KVzip evaluates them: load_squad in data/load.py of
https://github.com/snu-mllab/KVzip.

    context    The tower was finished in 1889, after two years of work. ...
    question   When was the tower finished?
    answers    {"text": ["1889"], "answer_start": [26]}
    id, title  are not read

Rows of rajpurkar/squad (version 1.1), split train, as lines of squad/train.jsonl. Rows with the same paragraph are one
context, in the order in which paragraphs first appear. KVzip means to take 100 and ends with the row that brings the
101st: of that paragraph it asks the first question alone (`cut_last`).
The reference is the first answer; it is looked for in what the model says, both normalised.

With schedule.evict_after=context, KVzip's setting, the cache is cut after the paragraph.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import remembered
from kvbench.tasks.metrics.kvzip import inclusion
from kvbench.tasks.sample import Sample
from kvbench.tasks.shared_context import Asked, Question, SharedContext


@dataclass(frozen=True, kw_only=True)
class Squad(SharedContext):
    """One sample a question. split: the file of rows under squad/. cut_last: the last of `contexts` is asked its first
    question alone.

    Raises ValueError for fields that are not legal.
    """

    split: str = "train"
    cut_last: bool = False

    @property
    def version(self) -> str:
        """Names the protocol; the rows' bytes are named by `data_sha256`."""
        return "squad-kvzip.2"

    @property
    def metric(self) -> str:
        """KVzip's."""
        return f"kvzip_{inclusion.__name__}"

    @property
    def files(self) -> tuple[str, ...]:
        """The rows."""
        return (f"squad/{self.split}.jsonl",)

    def counts(self) -> Sequence[int]:
        """Questions of each paragraph."""
        found = [len(numbers) for numbers in self._paragraphs]
        if self.cut_last and self.contexts is not None and self.contexts <= len(found):
            found[self.contexts - 1] = 1
        return found

    def asked(self, contexts: Collection[int]) -> Iterator[tuple[int, Asked]]:
        """Paragraphs."""
        paragraphs = {number: self._paragraphs[number] for number in sorted(contexts)}
        wanted = [row for numbers in paragraphs.values() for row in numbers]
        lines = {line.number: line for line in jsonl.rows(self.root, self.files[0], wanted)}
        for number, numbers in paragraphs.items():
            found = [_question(lines[row]) for row in numbers]
            yield number, Asked(found[0][0], [question for _, question in found])

    def score(self, prediction: str, sample: Sample) -> float:
        """1 if the answer includes the reference."""
        (reference,) = sample.references
        return inclusion(prediction, reference)

    @property
    def _paragraphs(self) -> tuple[tuple[int, ...], ...]:
        return _rows_by_paragraph(self.root, self.files[0])


@remembered
def _rows_by_paragraph(root: str | None, file: str) -> tuple[tuple[int, ...], ...]:
    """Numbers of the rows of each paragraph, paragraphs by first row; one without is by itself."""
    found: dict[str | int, list[int]] = {}
    for line in jsonl.rows(root, file, range(jsonl.count(root, file))):
        try:
            paragraph: str | int = _context(line.read())
        except ValueError:
            paragraph = line.number
        found.setdefault(paragraph, []).append(line.number)
    return tuple(map(tuple, found.values()))


def _context(row: dict[str, Any]) -> str:
    context = jsonl.text(row, "context")
    if not context.strip():
        raise UserError("its context is empty")
    return context


def _question(line: jsonl.Line) -> tuple[str, Question | str]:
    """The paragraph and the question of a row, or what is wrong with it."""
    context = ""
    try:
        row = line.read()
        context = _context(row)
        text, answers = jsonl.text(row, "question"), jsonl.field(row, "answers")
        texts = answers.get("text") if isinstance(answers, dict) else None
        if not isinstance(texts, list) or not texts or not isinstance(texts[0], str):
            raise UserError(f"its answers are {str(answers)[:80]}: a list of texts under text")
    except ValueError as error:
        return context, f"{line.place}: {error}"
    return context, Question(text, (texts[0],))
