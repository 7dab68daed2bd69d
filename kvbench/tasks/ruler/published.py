"""RULER's rows as kvpress reads them: https://huggingface.co/datasets/simonjegou/ruler, 500 a task and length.

    context          Some special magic numbers are hidden within the following text. ...
    question         What are all the special magic numbers for ... mentioned in the provided text?
    answer_prefix    The special magic numbers for ... mentioned in the provided text are
    answer           ["7700828", "3342608", "8187926", "5408072"]
    task             niah_multiquery
    max_new_tokens   128

Made by the generators of 2024 with the tokenizer of Llama 3.1, cut at the answer prefix, in lengths of 4096, 8192 and
16384 tokens. A parquet file holds all thirteen tasks; sample i is the i-th row of its own. `max_new_tokens` of the rows
is that of the task's file.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.files import FromFiles, find, listing
from kvbench.tasks.jsonl import text
from kvbench.tasks.metrics.ruler import string_match_all, string_match_part
from kvbench.tasks.prompting import Prompting
from kvbench.tasks.ruler.task import CountTokens
from kvbench.tasks.sample import InvalidSample, Sample

COLUMNS = ("context", "question", "answer_prefix", "answer")
LENGTHS = (4096, 8192, 16384)


@dataclass(frozen=True, kw_only=True)
class Published(FromFiles, Prompting):
    """The rows of one RULER task, `member`. `context_length` is the data set's label.

    Raises:
        ValueError: a field is outside its legal set.
    """

    name: str
    member: str
    max_new_tokens: int
    context_length: int = 4096
    samples: int = 50
    seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context_length not in LENGTHS:
            legal = ", ".join(map(str, LENGTHS))
            raise UserError(f"task.context_length={self.context_length} of {self.name}: published are {legal}")
        for field in ("samples", "max_new_tokens"):
            if getattr(self, field) < 1:
                raise UserError(f"task.{field}={getattr(self, field)} of {self.name}: give a whole number above 0")

    @property
    def version(self) -> str:
        """Names the protocol; the rows' bytes are named by `data_sha256`."""
        return "ruler-simonjegou.1"

    @property
    def metric(self) -> str:
        """The metric's name in rows and reports."""
        return "string_match_part" if self.member.startswith("qa_") else "string_match_all"

    @property
    def files(self) -> tuple[str, ...]:
        """The parquet files of the length."""
        return listing(self.root, f"ruler/simonjegou/{self.context_length}/*.parquet")

    def score(self, prediction: str, sample: Sample) -> float:
        """By RULER's metric of the task, 0..1."""
        metric = string_match_part if self.metric == "string_match_part" else string_match_all
        return metric(prediction, sample.references)

    def generate(self, count_tokens: CountTokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        """Yield the rows of `indices` in ascending order; nothing is counted. A row that lacks a text is unreadable.

        Raises:
            ValueError: there are fewer rows, or they are not the data set's.
            FileNotFoundError: the files are not under `data.root`.
        """
        rows = [
            (f"{name}: row {number} of {self.member}", row) for name in self.files for number, row in self._rows(name)
        ]
        for index in sorted(indices):
            if not 0 <= index < len(rows):
                raise UserError(f"task.samples={self.samples}: {len(rows)} rows of {self.member} are published")
            place, row = rows[index]
            try:
                context, question, prefix = (text(row, column) for column in COLUMNS[:-1])
                if not context.strip():
                    raise UserError("its context is empty")
                answers = row["answer"]
                if not isinstance(answers, list) or not answers or not all(isinstance(one, str) for one in answers):
                    raise UserError(f"its answer is {str(answers)[:80]}: a list of at least one text")
            except ValueError as error:
                yield InvalidSample(index, self.name, f"{place}: {error}")
                continue
            yield Sample(index, self.name, context, question, prefix, tuple(answers), self.max_new_tokens)

    def _rows(self, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        import pyarrow.parquet as parquet
        from pyarrow import ArrowException

        path = find(self.root, name)
        try:
            rows = parquet.read_table(path, columns=list(COLUMNS), filters=[("task", "=", self.member)]).to_pylist()
        except (ArrowException, KeyError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is no file of simonjegou/ruler: {str(error).splitlines()[0]}") from None
        return enumerate(rows)
