"""RULER's rows as kvpress reads them: https://huggingface.co/datasets/simonjegou/ruler, 500 per task and length.

    context          Some special magic numbers are hidden within the following text. ...
    question         What are all the special magic numbers for ... mentioned in the provided text?
    answer_prefix    The special magic numbers for ... mentioned in the provided text are
    answer           ["5443951", "8698256", "5408072", "5137722"]
    task             niah_multiquery
    max_new_tokens   128

Made by the generators of 2024 with the tokenizer of Llama 3.1, split at the answer prefix, in lengths of 4096, 8192 and
16384 tokens. The example is no row of the data set: it has its columns, and the values that the official generator of
2024 (e40fae1, seed 42) draws first at 4096 tokens with the tokenizer in tests/golden/ruler. A parquet file holds all
thirteen tasks; sample i is the i-th row of the task. The rows' `max_new_tokens` equals the task's YAML.

Prompts follow kvpress/pipeline.py of https://github.com/NVIDIA/kvpress at 8bb29b9: a chat template wraps the context,
the question keeps its white space and is tokenised with all that follows it; without a template a line break follows
the question.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.files import FromFiles, find, listing
from kvbench.tasks.jsonl import nonempty_text, text, texts
from kvbench.tasks.ruler.task import CountTokens, string_match
from kvbench.tasks.task import InvalidSample, Sample, Task, require_positive, require_samples

COLUMNS = ("context", "question", "answer_prefix", "answer")
LENGTHS = (4096, 8192, 16384)


@dataclass(frozen=True, kw_only=True)
class PublishedRuler(FromFiles, Task):
    """The rows of one RULER task, `member`. `context_length` is the data set's label.

    - Protocol: the rows of `simonjegou/ruler` that kvpress reads: era 2024, Llama 3.1's tokenizer, 4096, 8192 and 16384
      tokens. kvpress wraps them in a chat template and adds the answer prefix after it, as `model.chat=auto` does here.
    - Split: after the column `context`. With `schedule.evict_after=context` the question keeps its white space, which
      Llama's template would trim, and is tokenised with what follows it; without a template a line break follows the
      question.
    - Metric: RULER's.
    - Source: simonjegou/ruler.
    - Traps: `task.context_length` counts tokens of Llama 3.1; other tokenizers count others.
    """

    member: str
    max_new_tokens: int
    context_length: int = 4096
    version = "ruler-simonjegou.2"  # names the protocol; `data_sha256` names the rows
    wraps_context = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context_length not in LENGTHS:
            allowed = ", ".join(map(str, LENGTHS))
            raise UserError(f"task.context_length={self.context_length} of {self.name}: published are {allowed}")
        require_positive(self, "samples", "max_new_tokens")

    @property
    def metric(self) -> str:
        return "string_match_part" if self.member.startswith("qa_") else "string_match_all"

    @property
    def files(self) -> tuple[str, ...]:
        return listing(self.root, f"ruler/simonjegou/{self.context_length}/*.parquet")

    def score(self, prediction: str, sample: Sample) -> float:
        return string_match(self.metric, prediction, sample.references)

    def generate(self, count_tokens: CountTokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        rows = [
            (f"{name}: row {number} of {self.member}", row) for name in self.files for number, row in self._rows(name)
        ]
        require_samples(self, indices, len(rows))
        end = "" if getattr(count_tokens, "template", 0) else "\n"
        for index in sorted(indices):
            place, row = rows[index]
            try:
                prompt = nonempty_text(row, "context"), text(row, "question") + end, text(row, "answer_prefix")
                answers = texts(row, "answer")
            except ValueError as error:
                yield InvalidSample(index, self.name, f"{place}: {error}")
                continue
            yield Sample(index, self.name, *prompt, answers, self.max_new_tokens)

    def _rows(self, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        import pyarrow.parquet as parquet
        from pyarrow import ArrowException

        path = find(self.root, name)
        try:
            rows = parquet.read_table(path, columns=list(COLUMNS), filters=[("task", "=", self.member)]).to_pylist()
        except (ArrowException, KeyError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not a file of simonjegou/ruler: {str(error).splitlines()[0]}") from None
        return enumerate(rows)
