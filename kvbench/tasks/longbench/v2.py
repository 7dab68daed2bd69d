"""LongBench v2: 503 multiple choices on long texts, https://github.com/THUDM/LongBench, pred.py and result.py.

    context                    "... The committee met again in ..."
    question                   "Which of the following describes ...?"
    choice_A ... choice_D      "A man who ..."
    answer                     "C"
    length, difficulty         short | medium | long; easy | hard
    _id, domain, sub_domain    not read

Rows of THUDM/LongBench-v2. Prompts are prompts/0shot.txt, filled as pred.py fills it and truncated in the middle to
`max_prompt_tokens`, both ends decoded together; then a chat template wraps them. result.py reports the mean over all
rows, and by `difficulty` and by `length`.

Differences: answers are decoded greedily, where pred.py samples at temperature 0.1. Its answers in two requests (--cot)
are not implemented.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles, find, limit_samples, remembered
from kvbench.tasks.task import InvalidSample, Sample, Task, Tokens, require_positive

ROWS = "longbench_v2/data.jsonl"
PROMPT = "longbench_v2/prompts/0shot.txt"
LETTERS = ("A", "B", "C", "D")
Length = Literal["short", "medium", "long"]
Difficulty = Literal["easy", "hard"]


def chosen_letter(answer: str) -> str | None:
    """The letter that an answer states, in parentheses if any is, None without one: `extract_answer` of pred.py."""
    text = answer.replace("*", "")
    match = re.search(r"The correct answer is \(([A-D])\)", text) or re.search(r"The correct answer is ([A-D])", text)
    return match and match[1]


@dataclass(frozen=True, kw_only=True)
class LongBenchV2(FromFiles, Task):
    """Sample i is row i of the rows that `length` and `difficulty` select; null selects all."""

    name: str
    length: Length | None = None
    difficulty: Difficulty | None = None
    max_new_tokens: int = 128
    samples: int = 50
    seed: int = 42
    version = "longbench-v2.1"
    metric = "longbench_v2_letter"
    context_length = None  # rows have their own lengths
    decodes_joined = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "samples", "max_new_tokens")
        limit_samples(self, lambda: len(self._rows))

    @property
    def files(self) -> tuple[str, ...]:
        return ROWS, PROMPT

    def score(self, prediction: str, sample: Sample) -> float:
        return float((chosen_letter(prediction.strip()),) == sample.references)

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        path = find(self.root, PROMPT)
        template = path.read_text(encoding="utf-8")
        if template.count("$DOC$") != 1:
            raise UserError(f"{path} holds $DOC$ {template.count('$DOC$')} times: a prompt of LongBench v2 has it once")
        for index, line in jsonl.samples(self, self._rows, indices):
            try:
                row = line.read()
                fields = {"$DOC$": jsonl.nonempty_text(row, "context"), "$Q$": jsonl.text(row, "question")}
                fields |= {f"$C_{letter}$": jsonl.text(row, f"choice_{letter}") for letter in LETTERS}
                answer = jsonl.text(row, "answer")
                if answer not in LETTERS:
                    raise UserError(f"its answer is {answer[:80]!r}: one of {', '.join(LETTERS)}")
            except ValueError as error:
                yield InvalidSample(index, self.name, f"{line.place}: {error}")
                continue
            context, question = template.split("$DOC$")
            context += "$DOC$"
            for mark, text in fields.items():  # one after the other, also inside what is filled in, as in pred.py
                context, question = context.replace(mark, text.strip()), question.replace(mark, text.strip())
            yield Sample(index, self.name, context, question, "", (answer,), self.max_new_tokens, LETTERS)

    @property
    def _rows(self) -> Sequence[int]:
        """The rows that become samples. A row without a length or a difficulty is always selected."""
        if self.length is None and self.difficulty is None:
            return range(jsonl.count(self.root, ROWS))
        return [
            number
            for number, kind in enumerate(_kinds(self.root, ROWS))
            if kind is None or (self.length in (None, kind[0]) and self.difficulty in (None, kind[1]))
        ]


@remembered
def _kinds(root: str | None, file: str) -> tuple[tuple[Any, Any] | None, ...]:
    return tuple(jsonl.values(root, file, _kind))


def _kind(row: Mapping[str, Any]) -> tuple[str, str]:
    return jsonl.text(row, "length"), jsonl.text(row, "difficulty")
