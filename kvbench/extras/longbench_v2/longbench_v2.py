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
from kvbench.tasks.task import Sample, TokenCounter

ROWS = "longbench_v2/data.jsonl"
PROMPTS = "longbench_v2/prompts"
DOCUMENT, REASONING = "$DOC$", "$COT$"
LETTERS = ("A", "B", "C", "D")
Length = Literal["short", "medium", "long"]
Difficulty = Literal["easy", "hard"]


def chosen_letter(answer: str) -> str | None:
    """Return the letter that an answer states, in parentheses if any is, None without one: `extract_answer` of
    pred.py.
    """
    text = answer.replace("*", "")
    match = re.search(r"The correct answer is \(([A-D])\)", text) or re.search(r"The correct answer is ([A-D])", text)
    return match and match[1]


@dataclass(frozen=True, kw_only=True)
class LongBenchV2(jsonl.RowTask):
    """The rows that `length` and `difficulty` select; null selects all.

    - Protocol: THUDM/LongBench 2e00731, `pred.py` and `prompts/0shot.txt`, read at run time and with its placeholders
      replaced one after the other; the prompt is truncated in the middle to 120000 tokens (both ends decoded together;
      of an odd limit the second end has one more, `-max_len//2` there), then a chat template wraps it.
    - Split: after the text; the question, its four choices and the form of the answer are read after eviction.
    - Metric: 1 if the letter of "The correct answer is (C)" is right, as `extract_answer` finds it; an answer of
      another form is 0 (`result.py` has an option `compensated` that gives 0.25 instead; it is off by default).
    - `task.length=short|medium|long` and `task.difficulty=easy|hard` select the rows of one reported column; together
      they are 503.
    - Source: `data.json` of THUDM/LongBench-v2, as lines.
    - Reasoning (`--cot` of `pred.py`) takes two requests. `prompts/0shot_cot.txt` has the text and the question, and
      the model reasons in 1024 tokens. `prompts/0shot_cot_ans.txt` has the question and the reasoning, but not the
      text, and its answer of 128 tokens (`task.answer_tokens`) is scored. The second request is a prompt of its own:
      each cell reads it with nothing left of the first cache, and evicts from it by the same policy, budget and
      schedule; with `schedule.evict_after=context` that is before the last sentence, after the reasoning. In rows
      `prediction` is the reasoning, a blank line and the answer; `new_tokens` counts both; `decode_seconds` holds the
      whole second request; `peak_bytes` is the larger; columns of the prompt and of kept pairs describe the first.
    - Differences: greedy answers, where `pred.py` samples at temperature 0.1 (`task.temperature=0.1`); an empty answer
      is 0, or empty reasoning, where `pred.py` leaves the row out.
    - Traps: kvpress allows 16 new tokens and drops a quotation mark of the prompt.
    """

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

    def row_reader(self, tokens: TokenCounter) -> Callable[[int, jsonl.Row], Sample]:
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
        """Return the request that follows the first, if the task has two."""
        return None

    def _prompt(self, file: int, mark: str, fields: Mapping[str, str]) -> tuple[str, str]:
        """Return the filled template of one of `files`, divided after what `mark` stands for."""
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
