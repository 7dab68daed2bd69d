"""GSM8K with its facts as the context and its question after it, as KVzip evaluates it: load_gsm in data/load.py of
https://github.com/snu-mllab/KVzip.

    question   A baker fills 12 trays with 6 rolls each. She sells half of them. How many rolls are left?
    answer     There were 12*6 = <<12*6=72>>72 rolls. ... #### 36

Rows of openai/gsm8k (main, split test), as lines of gsm8k/test.jsonl. The context is all sentences but the last, cut at
". ", with a full stop behind; the question is the last one. Problems whose context has fewer than `least_tokens` tokens
of the model are left out (72 in KVzip, for SnapKV's window of 16), and the first 100 others are asked.

With schedule.evict_after=context, KVzip's setting, the cache is cut after the context. What is stated of prompts in
`shared_context` holds here too; every context has one question.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles
from kvbench.tasks.metrics.kvzip import solution
from kvbench.tasks.prompting import Prompting
from kvbench.tasks.sample import InvalidSample, Sample, Tokens
from kvbench.tasks.shared_context import GAP

STOP = ". "
"""Between sentences."""


@dataclass(frozen=True, kw_only=True)
class GSM8K(FromFiles, Prompting):
    """One sample a problem that is long enough. Raises ValueError for fields that are not legal."""

    name: str
    instruction: str
    ask: str
    max_new_tokens: int = 512
    least_tokens: int = 72
    split: str = "test"
    samples: int = 50
    seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in ("samples", "max_new_tokens"):
            if getattr(self, setting) < 1:
                raise UserError(f"task.{setting}={getattr(self, setting)} of {self.name}: give a whole number above 0")
        if self.ask.count("{question}") != 1:
            raise UserError(f"task.ask={self.ask!r} of {self.name}: it names {{question}} once")

    @property
    def version(self) -> str:
        """Names the protocol; the rows' bytes are named by `data_sha256`."""
        return "gsm8k-kvzip.1"

    @property
    def metric(self) -> str:
        """KVzip's."""
        return f"kvzip_{solution.__name__}"

    @property
    def context_length(self) -> None:
        """Problems have lengths of their own."""
        return None

    @property
    def files(self) -> tuple[str, ...]:
        """The rows."""
        return (f"gsm8k/{self.split}.jsonl",)

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        """Yield the problems of `indices`, counted among those that are long enough, in ascending order.

        A row that is none is unreadable and counts as long enough.

        Raises:
            ValueError: there are fewer.
            FileNotFoundError: the file is not under `data.root`.
        """
        opening, found, last = self.instruction + GAP, -1, max(indices, default=-1)
        for line in jsonl.rows(self.root, self.files[0], range(jsonl.count(self.root, self.files[0]))):
            if found == last:
                return
            try:
                row = line.read()
                context, question = split(jsonl.text(row, "question"))
                answer = jsonl.text(row, "answer")
            except ValueError as error:
                found += 1
                if found in indices:
                    yield InvalidSample(found, self.name, f"{line.place}: {error}")
                continue
            if count_tokens(context) < self.least_tokens:
                continue
            found += 1
            if found in indices:
                asked = GAP + self.ask.replace("{question}", question).strip()
                whole, tokens = opening + context, self.max_new_tokens
                yield Sample(found, self.name, whole, asked, "", (answer,), tokens, opening=opening)
        if found < last:
            raise UserError(
                f"task.samples={last + 1}: {found + 1} problems of {self.files[0]} have a context of "
                f"task.least_tokens={self.least_tokens} tokens"
            )

    def score(self, prediction: str, sample: Sample) -> float:
        """1 if the answer ends with the number of the solution."""
        (reference,) = sample.references
        return solution(prediction, reference)


def split(problem: str) -> tuple[str, str]:
    """Context and question of a problem. One of a single sentence has the context "." as in KVzip."""
    *facts, question = problem.split(STOP)
    return STOP.join(facts).strip() + ".", question.strip()
