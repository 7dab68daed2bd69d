"""LongBench v2: 503 multiple choices on long texts, https://github.com/THUDM/LongBench, pred.py and result.py.

    context                    "... The committee met again in ..."
    question                   "Which of the following describes ...?"
    choice_A ... choice_D      "A man who ..."
    answer                     "C"
    length, difficulty         short | medium | long; easy | hard
    _id, domain, sub_domain    not read

With reasoning (--cot) there are two requests: 0shot_cot.txt lets the model think step by step, and 0shot_cot_ans.txt
asks for the letter, with the question and the reasoning but without the text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import TaskError, find
from kvbench.tasks.task import Sample, Tokens

ROWS = "longbench_v2/data.jsonl"
PROMPTS = "longbench_v2/prompts"
DOCUMENT, REASONING = "$DOC$", "$COT$"
LETTERS = ("A", "B", "C", "D")
Length = Literal["short", "medium", "long"]
Difficulty = Literal["easy", "hard"]


def chosen_letter(answer: str) -> str | None:
    """The letter that an answer states, in parentheses if any is, None without one: `extract_answer` of pred.py."""
    text = answer.replace("*", "")
    match = re.search(r"The correct answer is \(([A-D])\)", text) or re.search(r"The correct answer is ([A-D])", text)
    return match and match[1]


@dataclass(frozen=True, kw_only=True)
class LongBenchV2(jsonl.RowTask):
    """The rows that `length` and `difficulty` select; null selects all."""

    length: Length | None = None
    difficulty: Difficulty | None = None
    max_new_tokens: int = 128
    version = "longbench-v2.2"
    metric = "longbench_v2_letter"
    context_length = None  # rows have their own lengths
    decodes_joined = True
    keeps_odd = True

    @property
    def files(self) -> tuple[str, ...]:
        return ROWS, f"{PROMPTS}/0shot.txt"

    def score(self, prediction: str, sample: Sample) -> float:
        return float((chosen_letter(prediction.strip()),) == sample.references)

    def row_reader(self, tokens: Tokens) -> Callable[[int, jsonl.Row], Sample]:
        return self._sample

    def _sample(self, index: int, row: jsonl.Row) -> Sample:
        fields = {DOCUMENT: jsonl.nonempty_text(row, "context"), "$Q$": jsonl.text(row, "question")}
        fields |= {f"$C_{letter}$": jsonl.text(row, f"choice_{letter}") for letter in LETTERS}
        answer = jsonl.text(row, "answer")
        if answer not in LETTERS:
            raise UserError(f"its answer is {answer[:80]!r}: one of {', '.join(LETTERS)}")
        context, question = self._prompt(1, DOCUMENT, fields)
        sample = Sample(index, self.name, context, question, "", (answer,), self.max_new_tokens, LETTERS)
        return replace(sample, second=self._second(sample, fields))

    def _second(self, first: Sample, fields: Mapping[str, str]) -> Sample | None:
        """The request that follows the first, if the task has two."""
        return None

    def _prompt(self, file: int, mark: str, fields: Mapping[str, str]) -> tuple[str, str]:
        """The filled template of one of `files`, divided after what `mark` stands for."""
        path = find(self.root, self.files[file])
        template = path.read_text(encoding="utf-8")
        if template.count(mark) != 1:
            raise TaskError(f"{path} holds {mark} {template.count(mark)} times: a prompt of LongBench v2 has it once")
        context, question = template.split(mark)
        context += mark
        for place, text in fields.items():  # one after the other, also inside what is filled in, as in pred.py
            context, question = context.replace(place, text.strip()), question.replace(place, text.strip())
        return context, question

    @property
    def row_numbers(self) -> Sequence[int]:
        """A row without a length or a difficulty is always selected."""
        if self.length is None and self.difficulty is None:
            return super().row_numbers
        return [
            number
            for number, kind in enumerate(_kinds(self.root, ROWS))
            if kind is None or (self.length in (None, kind[0]) and self.difficulty in (None, kind[1]))
        ]


@dataclass(frozen=True, kw_only=True)
class LongBenchV2Reasoning(LongBenchV2):
    """The model reasons in at most `max_new_tokens` and states the letter in a second answer of `answer_tokens`."""

    max_new_tokens: int = 1024
    answer_tokens: int = 128
    version = "longbench-v2-cot.2"

    positive = ("samples", "max_new_tokens", "answer_tokens")

    @property
    def files(self) -> tuple[str, ...]:
        return ROWS, f"{PROMPTS}/0shot_cot.txt", f"{PROMPTS}/0shot_cot_ans.txt"

    def _second(self, first: Sample, fields: Mapping[str, str]) -> Sample:
        context, question = self._prompt(2, REASONING, fields)
        tokens, drawn = self.answer_tokens, self.max_new_tokens
        return replace(first, context=context, question=question, max_new_tokens=tokens, drawn=drawn)

    def follow_up(self, sample: Sample, answer: str) -> Sample | None:
        if (second := sample.second) is None:
            return None
        context, question = (text.replace(REASONING, answer.strip()) for text in (second.context, second.question))
        return replace(second, context=context, question=question)


_kinds = jsonl.column(lambda row: (jsonl.text(row, "length"), jsonl.text(row, "difficulty")))
