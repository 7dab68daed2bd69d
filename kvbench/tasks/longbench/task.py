"""LongBench's tasks and those of LongBench-E: https://github.com/THUDM/LongBench, LongBench/{pred,eval,metrics}.py.

    input        "What is Saltram's living situation?"
    context      "... \\n I had met him at the house of ..."
    answers      ["He is a guest in the home of the Mulvilles."]
    length       22692       words in English and code, characters in Chinese
    all_classes  null        trec, lsht: ["Food", "Date", ...]
    dataset, language, _id   not read

Prompts are the row's `context` and `input` in the task's template of dataset2prompt.json. The whole prompt is truncated
in the middle to `max_prompt_tokens`, special tokens counted, or to the model's own limit if that is less; then a chat
template wraps it, except for trec, triviaqa, samsum, lsht, lcc and repobench-p (`chat`). An answer has at most as many
tokens as dataset2maxlen.json says; one to samsum has at least one and ends at a line break.

Difference: no sequence begins twice; pred.py adds a first token before a chat template that has one.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles, find, folder, limit_samples, remembered
from kvbench.tasks.metrics import longbench as metrics
from kvbench.tasks.task import InvalidSample, Sample, Task, Tokens, require_choice, require_positive
from kvbench.tasks.templates import fill, table

PROMPTS = "longbench/config/dataset2prompt.json"
LENGTHS = "longbench/config/dataset2maxlen.json"
METRICS = {
    "narrativeqa": "qa_f1_score",
    "qasper": "qa_f1_score",
    "multifieldqa_en": "qa_f1_score",
    "multifieldqa_zh": "qa_f1_zh_score",
    "hotpotqa": "qa_f1_score",
    "2wikimqa": "qa_f1_score",
    "musique": "qa_f1_score",
    "dureader": "rouge_zh_score",
    "gov_report": "rouge_score",
    "qmsum": "rouge_score",
    "multi_news": "rouge_score",
    "vcsum": "rouge_zh_score",
    "trec": "classification_score",
    "triviaqa": "qa_f1_score",
    "samsum": "rouge_score",
    "lsht": "classification_score",
    "passage_count": "count_score",
    "passage_retrieval_en": "retrieval_score",
    "passage_retrieval_zh": "retrieval_zh_score",
    "lcc": "code_sim_score",
    "repobench-p": "code_sim_score",
}
"""The official name of each task's metric."""
MEMBERS = tuple(METRICS)
V1_ONLY = ("narrativeqa", "multifieldqa_zh", "musique", "dureader", "qmsum", "vcsum", "lsht", "passage_retrieval_zh")
EXTENDED = tuple(member for member in MEMBERS if member not in V1_ONLY)
"""The tasks of LongBench-E."""
FIRST_LINE = ("trec", "triviaqa", "samsum", "lsht")
"""Tasks whose answers are scored by their first line, after leading line breaks."""
FUNCTIONS: dict[str, Callable[[str, str], float]] = {
    "qa_f1_score": metrics.qa_f1,
    "qa_f1_zh_score": metrics.qa_f1_zh,
    "rouge_score": metrics.rouge,
    "rouge_zh_score": metrics.rouge_zh,
    "retrieval_score": metrics.retrieval,
    "retrieval_zh_score": metrics.retrieval_zh,
    "count_score": metrics.count,
    "code_sim_score": metrics.code_sim,
}
"""The metrics that need no classes."""
Bucket = Literal["0-4k", "4-8k", "8k+"]
BUCKETS = get_args(Bucket)
"""The ranges of `length` that LongBench-E reports: below 4000, below 8000, and the rest."""


def check_packages(member: str) -> None:
    """Raise UserError with the fix if a package that the metric of a task needs is missing."""
    score(member, "1", ("Paragraph 1, 段落1",), ("1",))  # whatever is scored loads them


def score(member: str, prediction: str, references: Sequence[str], classes: Sequence[str] = ()) -> float:
    """Score of an answer to a task, 0..1: the best over its references; of some tasks only its `FIRST_LINE` counts.

    Raises UserError: no references, no classes although the metric needs them, or a package is missing.
    """
    if not references:
        raise UserError(f"{member}: an answer is scored against at least one reference, got none")
    if member in FIRST_LINE:
        prediction = prediction.lstrip("\n").split("\n")[0]
    name = METRICS[member]
    if name == "classification_score":
        if not classes:
            raise UserError(f"{member}: an answer is scored among classes, got none")
        return max(metrics.classification(prediction, reference, classes) for reference in references)
    return max(FUNCTIONS[name](prediction, reference) for reference in references)


@dataclass(frozen=True, kw_only=True)
class LongBenchTask(FromFiles, Task):
    """One task, `member`. Sample i is row i.

    extended: rows of LongBench-E. bucket: only the LongBench-E rows of one range of lengths; sample i is then row i of
    the range. max_new_tokens: null for the benchmark's own table. stop_replaces: an answer ends only at `stop` and the
    tokenizer's end of sequence, not at the model's other stop tokens, as pred.py does for samsum; false adds `stop` to
    all of them, as LAVa does for Llama 3.
    """

    name: str
    member: str
    extended: bool = False
    bucket: Bucket | None = None
    max_new_tokens: int | None = None
    samples: int = 50
    seed: int = 42
    stop_replaces: bool = False
    context_length = None  # rows have their own lengths

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop_replaces and not self.stop:
            raise UserError(
                f"task.stop_replaces=true of {self.name}: task.stop is empty: list the texts that end an answer, or "
                "use task.stop_replaces=false"
            )
        require_choice(self, "member", EXTENDED if self.extended else MEMBERS)
        if self.bucket is not None and (not self.extended or self.bucket not in BUCKETS):
            raise UserError(
                f"task.bucket={self.bucket} of {self.name}: allowed: null, or in LongBench-E one of "
                f"{', '.join(BUCKETS)}"
            )
        require_positive(self, "samples", "max_new_tokens")
        if (folder(self.root) / LENGTHS).is_file():
            object.__setattr__(self, "max_new_tokens", self._new_tokens())
        limit_samples(self, lambda: len(self._rows))

    @property
    def version(self) -> str:
        return "longbench-e.2" if self.extended else "longbench.2"

    @property
    def metric(self) -> str:
        return METRICS[self.member]

    @property
    def files(self) -> tuple[str, ...]:
        rows = f"longbench/{self.member}{'_e' if self.extended else ''}.jsonl"
        return rows, PROMPTS, LENGTHS

    def score(self, prediction: str, sample: Sample) -> float:
        return score(self.member, prediction, sample.references, sample.choices)

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        check_packages(self.member)
        template, tokens = self._entry(PROMPTS, str, "template"), self._new_tokens()
        choices = classes(self.root, self.files[0]) if self.metric == "classification_score" else ()
        for index, line in jsonl.samples(self, self._rows, indices):
            try:
                row = line.read()
                fields = {"context": jsonl.nonempty_text(row, "context"), "input": jsonl.text(row, "input")}
                references = jsonl.texts(row, "answers")
                if self.bucket is not None:
                    bucket_of(row)
            except ValueError as error:
                yield InvalidSample(index, self.name, f"{line.place}: {error}")
                continue
            context, question = fill(template, fields, PROMPTS)
            yield Sample(index, self.name, context, question, "", references, tokens, choices)

    def _new_tokens(self) -> int:
        tokens = self._entry(LENGTHS, int, "length") if self.max_new_tokens is None else self.max_new_tokens
        if tokens < 1:
            raise UserError(f"{find(self.root, LENGTHS)} has the length {tokens} for {self.member}: at least 1")
        return tokens

    def _entry(self, file: str, kind: type, label: str) -> Any:
        """The value of this task in one of the benchmark's two tables."""
        value = table(self.root, file).get(self.member)
        if type(value) is not kind:
            raise UserError(f"{find(self.root, file)} has no {label} for {self.member}")
        return value

    @property
    def _rows(self) -> Sequence[int]:
        """The rows that become samples. A row without a length is in every range."""
        if self.bucket is None:
            return range(jsonl.count(self.root, self.files[0]))
        buckets = _buckets(self.root, self.files[0])
        return [number for number, name in enumerate(buckets) if name in (self.bucket, None)]


def classes(root: str | None, file: str) -> tuple[str, ...]:
    """The possible answers: `all_classes` of the last row that has any, as in eval.py; it is the same in all rows.

    Raises UserError if no row has a list of at least one text.
    """
    for line in reversed(list(jsonl.rows(root, file))):
        try:
            return jsonl.texts(line.read(), "all_classes")
        except ValueError:
            continue
    raise UserError(f"{find(root, file)} has no row with all_classes: a list of at least one text")


def bucket_of(row: Mapping[str, Any]) -> Bucket:
    """The range of a row's `length`. Raises UserError unless that is a whole number."""
    length = jsonl.field(row, "length")
    if type(length) is not int:
        raise UserError(f"its length is {str(length)[:80]!r}: a whole number")
    return "0-4k" if length < 4000 else "4-8k" if length < 8000 else "8k+"


@remembered
def _buckets(root: str | None, file: str) -> tuple[Bucket | None, ...]:
    return tuple(jsonl.values(root, file, bucket_of))
