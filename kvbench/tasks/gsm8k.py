"""GSM8K with its facts as the context and its question after it, as KVzip evaluates it: load_gsm in data/load.py of
https://github.com/snu-mllab/KVzip.

    question   A baker fills 12 trays with 6 rolls each. She sells half of them. How many rolls are left?
    answer     There were 12*6 = <<12*6=72>>72 rolls. ... #### 36

Rows of openai/gsm8k (main, split test), as lines of gsm8k/test.jsonl. The context is all sentences but the last, split
at ". ", with a full stop behind; the question is the last one. Problems whose context has fewer than `least_tokens`
tokens of the model are left out (72 in KVzip, for SnapKV's window of 16); the first 100 others are used.

The differences in prompts that `shared_context` states hold here too; every context has one question.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles
from kvbench.tasks.metrics.kvzip import solution
from kvbench.tasks.shared_context import GAP, phrased, require_question_field
from kvbench.tasks.task import InvalidSample, Sample, Task, Tokens, require_positive


@dataclass(frozen=True, kw_only=True)
class GSM8K(FromFiles, Task):
    """One sample per problem whose context is long enough."""

    name: str
    instruction: str
    ask: str
    max_new_tokens: int = 512
    least_tokens: int = 72
    split: str = "test"
    samples: int = 50
    seed: int = 42
    version = "gsm8k-kvzip.1"  # names the protocol; `data_sha256` names the rows
    metric = "kvzip_solution"
    context_length = None  # problems have their own lengths

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "samples", "max_new_tokens")
        require_question_field(self.name, self.ask)

    @property
    def files(self) -> tuple[str, ...]:
        return (f"gsm8k/{self.split}.jsonl",)

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
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
                yield Sample(index, self.name, *prompt, (answer,), self.max_new_tokens, opening=opening)
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
