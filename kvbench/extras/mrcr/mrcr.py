"""MRCR: a long conversation asks for the n-th of several texts that were asked for alike.

https://hf.co/datasets/openai/mrcr

    prompt                      the messages as a JSON text; the last one asks, and says how the answer begins
    answer                      "aYooSG8CQg..." and the wanted text
    random_string_to_prepend    "aYooSG8CQg"
    n_chars                     characters of all messages
    others                      not read

The metric is `grade` of the data card.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from kvbench.tasks import jsonl
from kvbench.tasks.own_file import conversation
from kvbench.tasks.task import GAP, Sample, TokenCounter

PARTS = 2
"""Files of each number of needles, one after the other."""


def grade(response: str, answer: str, prefix: str) -> float:
    """Return how similar an answer is after the random string that both begin with, 0..1; 0 if the answer does not."""
    if not response.startswith(prefix):
        return 0.0
    return SequenceMatcher(None, response.removeprefix(prefix), answer.removeprefix(prefix)).ratio()


@dataclass(frozen=True, kw_only=True)
class MRCR(jsonl.RowTask):
    """The rows of one number of `needles`. max_chars: only those with at most so many characters; null: all 800.

    - Protocol: the messages of a row as they are, the last one is the question: it asks for the n-th of 2, 4 or 8 texts
      that the conversation asked for in the same words, after a random string. A model without a chat template reads
      the texts of the messages alone.
    - Split: before the last message.
    - Source: openai/mrcr, 800 rows for each number of needles, from 4K to 1M tokens of o200k; `task.max_chars=100000`
      takes the rows with at most so many characters.
    - Metric: `grade` of the data card: 0 unless the answer begins with the random string, else the ratio of
      `difflib.SequenceMatcher` over the rest.
    - Traps: half of the rows are longer than 128K tokens; those that the model does not read become rows with an error.
    - Differences: answers end after `task.max_new_tokens`, 2048 by default; the card has no limit, and reports by bins
      of o200k tokens.
    """

    needles: Literal[2, 4, 8]
    max_new_tokens: int
    max_chars: int | None = None
    version = "mrcr.1"  # names the protocol; `data_sha256` names the rows
    metric = "mrcr_ratio"
    context_length = None  # conversations have their own lengths
    positive = ("samples", "max_new_tokens", "max_chars")

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(f"mrcr/{self.needles}needle_{part}.jsonl" for part in range(PARTS))

    @property
    def row_places(self) -> Sequence[tuple[str, int]]:
        """Those of all files; rows without a size become samples."""
        most = self.max_chars or float("inf")
        sizes = ((name, _sizes(self.root, name)) for name in self.files)
        return [(name, row) for name, each in sizes for row, size in enumerate(each) if size is None or size <= most]

    def score(self, prediction: str, sample: Sample) -> float:
        return grade(prediction, *sample.references, *sample.choices)

    def row_reader(self, tokens: TokenCounter) -> Callable[[int, jsonl.Row], Sample]:
        return self._sample

    def _sample(self, index: int, row: jsonl.Row) -> Sample:
        turns, question = conversation(json.loads(jsonl.text(row, "prompt")))
        answer, prefix = jsonl.nonempty_text(row, "answer"), jsonl.nonempty_text(row, "random_string_to_prepend")
        context = "".join(content + GAP for _, content in turns)
        new_tokens = self.max_new_tokens
        return Sample(index, self.name, context, question, "", (answer,), new_tokens, (prefix,), messages=turns)


_sizes = jsonl.column(lambda row: jsonl.integer(row, "n_chars"))
