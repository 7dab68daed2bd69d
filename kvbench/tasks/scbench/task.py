"""SCBench as KVzip evaluates it: data/load.py and results/{metric,parse}.py of https://github.com/snu-mllab/KVzip.

    prompts        ["Extract the value ... {\\"a1f3\\": ...", "Key: \\"a1f3...\\" ...", ...]   context, then questions
    ground_truth   ["9c02...", ...]       one a question: a text, a list of texts (vt), a number (mf)
    task           ["scbench_summary", "scbench_passkey", ...]    mixed tasks: the kind of each question
    lang, repo, func_name                 repoqa: "python", the repository, the name of each function

Rows of Jang-Hyun/SCBench-preprocessed, a parquet file a task there (scbench_kv.parquet), here the same rows as lines of
scbench/kv.jsonl. They are those of microsoft/SCBench with its prompts for the mode of one context and separate requests
(`same_context_different_query`); qa_eng and choice_eng lack the rows above 125K tokens of Llama 3.1. The mode of turns
that go on from golden answers is not KVzip's and is not built.

With schedule.evict_after=context, which is KVzip's setting, the cache is cut after the context of the row, the
benchmark's own instruction included, and every question is read from the cut cache.

Stated difference besides those of `shared_context` and of the metrics: a mixed task's mean is over all its questions,
KVzip's repoqa_and_kv the mean of the two kinds in each context; `Row.question_number` tells them apart where they
alternate.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.metrics.longbench_rouge import scorer
from kvbench.tasks.sample import InvalidSample, Sample, Tokens
from kvbench.tasks.scbench import rows
from kvbench.tasks.scbench.scoring import MEMBERS, metric_name, score
from kvbench.tasks.shared_context import Asked, SharedContext

Length = Literal["full", "tiny", "short", "mid"]
WHOLE = ("qa_eng", "choice_eng", "vt")
"""Tasks that KVzip did not shorten."""


@dataclass(frozen=True, kw_only=True)
class SCBenchTask(SharedContext):
    """One task, `member`. length: full contexts, or those that KVzip shortened to about 8K (tiny), 20K (short) or 60K
    (mid) tokens, in files of their own (scbench/kv_tiny.jsonl).

    Raises:
        ValueError: a field is outside its legal set.
    """

    member: str
    length: Length = "full"

    def __post_init__(self) -> None:
        if self.member not in MEMBERS:
            raise UserError(f"task.member={self.member} of {self.name}: choose one of {', '.join(MEMBERS)}")
        if self.length not in get_args(Length) or (self.member in WHOLE and self.length != "full"):
            legal = "full" if self.member in WHOLE else ", ".join(get_args(Length))
            raise UserError(f"task.length={self.length} of {self.name}: legal: {legal}")
        super().__post_init__()

    @property
    def version(self) -> str:
        """Names the protocol; the rows' bytes are named by `data_sha256`."""
        return "scbench-kvzip.1"

    @property
    def metric(self) -> str:
        """KVzip's metric of the task."""
        return metric_name(self.member)

    @property
    def files(self) -> tuple[str, ...]:
        """The rows."""
        short = "" if self.length == "full" else f"_{self.length}"
        return (f"scbench/{self.member}{short}.jsonl",)

    def counts(self) -> Sequence[int]:
        """Questions of each row."""
        return rows.counts(self.root, self.files[0])

    def asked(self, contexts: Collection[int]) -> Iterator[tuple[int, Asked]]:
        """Rows."""
        for line in jsonl.rows(self.root, self.files[0], contexts):
            yield line.number, rows.asked(self.member, line)

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        """As `SharedContext.generate`. Raises ValueError, before a sample, where a summary cannot be scored."""
        if self.member.startswith("summary"):
            scorer()
        return super().generate(count_tokens, indices)

    def score(self, prediction: str, sample: Sample) -> float:
        """By the metric of the question's kind, 0..1. Raises ValueError for a package that is not installed."""
        return score(prediction, sample)
