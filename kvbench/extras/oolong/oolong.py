"""Questions about all lines of a long context: how many, which most, when.

https://github.com/abertsch72/oolong at adbf1cb

    context_window_text      the texts, one a line
    question                 what is asked of all of them, and the form of the answer
    answer                   "['spam']", "[7]" or "[datetime.date(2024, 5, 1)]"
    answer_type              ANSWER_TYPE.NUMERIC, ANSWER_TYPE.LABEL, ANSWER_TYPE.DATE ...
    context_len              tokens of the context, as the authors count them

oolongbench/oolong-synth has the rows, here lines of JSON. `synth_process_response` of eval_helpers.py has the score.
"""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.task import Sample, TokenCounter

FILE = "oolong/synth_test.jsonl"
FREQUENCIES = ("more common", "less common", "same frequency")
SHORT = 20
"""Characters from which on an answer is searched for one of `FREQUENCIES`, or its last word is taken."""
CREDIT = 0.75
"""Of a number that is wrong by one; its square by two, and so on."""
DATE = re.compile(r"\[datetime\.date\((\d+), (\d+), (\d+)\)\]")


@dataclass(frozen=True, kw_only=True)
class Oolong(jsonl.RowTask):
    """The rows of OOLONG-synth. max_context_len: only those whose contexts have at most so many tokens; null: all.

    - Protocol: `eval_script_batched.py`: the context is a system turn there, after "You are a helpful assistant.", and
      the question a user's turn. Its limits are 1024 tokens, exclusive, to 131072.
    - Split: after the context.
    - Source: oolongbench/oolong-synth, split test, as lines of JSON. The code that makes the rows is not public.
    - Metric: `synth_process_response`: what follows the last colon equals the answer; a number that is wrong by d has
      the credit 0.75 to the power of d; a date is read as dateutil reads it.
    - Differences: context and question are one user's turn here.
    - Traps: a number that is nearly right has most of the credit, so a model that guesses small numbers is above 0.
    """

    max_new_tokens: int
    max_context_len: int | None = None
    version = "oolong.1"  # names the protocol; `data_sha256` names the rows
    metric = "oolong_score"
    context_length = None  # contexts have their own lengths
    positive = ("samples", "max_new_tokens", "max_context_len")

    @property
    def files(self) -> tuple[str, ...]:
        return (FILE,)

    @property
    def row_numbers(self) -> Sequence[int]:
        """Rows that are short enough; rows without a length become samples."""
        most = self.max_context_len or float("inf")
        return [row for row, size in enumerate(_sizes(self.root, FILE)) if size is None or size <= most]

    def score(self, prediction: str, sample: Sample) -> float:
        (answer,), (kind,) = sample.references, sample.choices
        return synth_score(prediction, answer, kind)

    def row_reader(self, tokens: TokenCounter) -> Callable[[int, jsonl.Row], Sample]:
        return self._sample

    def _sample(self, index: int, row: jsonl.Row) -> Sample:
        context, question = jsonl.nonempty_text(row, "context_window_text"), jsonl.nonempty_text(row, "question")
        answer, kind = gold(jsonl.text(row, "answer")), jsonl.text(row, "answer_type")
        return Sample(
            index, self.name, context, "\n\n" + question, "", (answer,), self.max_new_tokens, (kind,), kind=kind
        )


_sizes = jsonl.column(lambda row: jsonl.integer(row, "context_len"))


def gold(answer: str) -> str:
    """Return the right answer as text, of the list that a row holds. Raises UserError for anything else."""
    if date := DATE.fullmatch(answer):
        year, month, day = map(int, date.groups())
        return str(datetime(year, month, day))
    try:
        return str(ast.literal_eval(answer)[0])
    except (ValueError, SyntaxError, TypeError, IndexError, KeyError, MemoryError, RecursionError):
        raise UserError(f"its answer is {answer[:80]!r}: a list of one value") from None


def final(response: str) -> str:
    """Return the last thing that an answer says."""
    if ":" not in response:
        return response if len(response) < SHORT else (response.split() or [""])[-1]
    found = re.sub(r"[*\[\]]", "", response.split(":")[-1].strip())
    if len(found) >= SHORT:
        return next((frequency for frequency in FREQUENCIES if frequency in found), found)
    return found


def synth_score(response: str, right: str, kind: str) -> float:
    """Return the score of an answer in 0..1."""
    answer = final(response)
    if answer == right:
        return 1.0
    if answer in FREQUENCIES:
        return float(answer in right)
    try:
        if kind == "ANSWER_TYPE.NUMERIC":
            return CREDIT ** abs(int(right) - int(answer))
        if kind == "ANSWER_TYPE.DATE":
            from dateutil import parser

            return float(parser.parse(answer) == datetime.fromisoformat(right))
    except (ValueError, TypeError, OverflowError):
        pass
    return 0.0
