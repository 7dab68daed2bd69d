"""LongBench's tasks and those of LongBench-E: https://github.com/THUDM/LongBench, LongBench/{pred,eval,metrics}.py.

    input        "What is Saltram's living situation?"
    context      "... \\n I had met him at the house of ..."
    answers      ["He is a guest in the home of the Mulvilles."]
    length       22692       words in English and code, characters in Chinese
    all_classes  null        trec, lsht: ["Food", "Date", ...]
    dataset, language, _id   are not read

Prompts are the row's `context` and `input` in the task's template of dataset2prompt.json. The whole prompt is cut in
the middle to `max_prompt_tokens`, special tokens counted, or to what the model reads where that is less; then a chat
template goes around it, except for trec, triviaqa, samsum, lsht, lcc and repobench-p, which are sent raw (`chat`). An
answer has as many tokens as dataset2maxlen.json says; one to samsum has at least one and ends at a line break.

With schedule.evict_after=context the cache is cut after the context, and what the template has behind it is read
afterwards: the question, the instruction, for tasks with examples the case to solve, for code the lines before the one
to write. What it has before the context tells of the task, never of the question. Each task's file says it.

Stated difference: no sequence begins twice, where pred.py puts a first token before a chat template that has one.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles, folder
from kvbench.tasks.filling import filled
from kvbench.tasks.longbench import rows
from kvbench.tasks.longbench.config import LENGTHS, PROMPTS, new_tokens, template
from kvbench.tasks.longbench.scoring import EXTENDED, MEMBERS, METRICS, check_packages, score
from kvbench.tasks.prompting import Prompting
from kvbench.tasks.sample import InvalidSample, Sample, Tokens


@dataclass(frozen=True, kw_only=True)
class LongBenchTask(FromFiles, Prompting):
    """One task, `member`. Sample i is row i; `samples` above the number of rows asks for all of them.

    extended: rows of LongBench-E. bucket: of those only the ones of a range of lengths, as LongBench-E reports them;
    sample i is then row i of the range. max_new_tokens: null is what the benchmark's own table says. stop_replaces:
    what ends an answer is `stop` and the end of sequence that the tokenizer names, and none of the model's other stop
    tokens, as pred.py has it in samsum; false adds `stop` to all of them, as LAVa does for Llama 3.

    Raises:
        ValueError: a field is outside its legal set, or the table of lengths lacks the task.
    """

    name: str
    member: str
    extended: bool = False
    bucket: rows.Bucket | None = None
    max_new_tokens: int | None = None
    samples: int = 50
    seed: int = 42
    stop_replaces: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop_replaces and not self.stop:
            raise UserError(f"task.stop_replaces=true of {self.name}: task.stop lists nothing to replace by")
        legal = EXTENDED if self.extended else MEMBERS
        if self.member not in legal:
            raise UserError(f"task.member={self.member} of {self.name}: choose one of {', '.join(legal)}")
        if self.bucket is not None and (not self.extended or self.bucket not in rows.BUCKETS):
            raise UserError(
                f"task.bucket={self.bucket} of {self.name}: null, or in LongBench-E one of {', '.join(rows.BUCKETS)}"
            )
        for setting in ("samples", "max_new_tokens"):
            value = getattr(self, setting)
            if value is not None and value < 1:
                raise UserError(f"task.{setting}={value} of {self.name}: give a whole number above 0")
        if self.max_new_tokens is None and (folder(self.root) / LENGTHS).is_file():
            object.__setattr__(self, "max_new_tokens", new_tokens(self.root, self.member))
        if (folder(self.root) / self._file).is_file():
            object.__setattr__(self, "samples", min(self.samples, max(1, self._rows)))

    @property
    def version(self) -> str:
        """Names the protocol; bytes of rows, templates and lengths are named by `data_sha256`."""
        return "longbench-e.2" if self.extended else "longbench.2"

    @property
    def metric(self) -> str:
        """The metric's official name."""
        return METRICS[self.member]

    @property
    def context_length(self) -> None:
        """Rows have lengths of their own."""
        return None

    @property
    def files(self) -> tuple[str, ...]:
        """Rows, templates and lengths."""
        return self._file, PROMPTS, LENGTHS

    def score(self, prediction: str, sample: Sample) -> float:
        """By the metric of the task, 0..1. Raises ValueError for a reference that it cannot read."""
        return score(self.member, prediction, sample.references, sample.choices)

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        """Yield the samples of `indices` in ascending order; nothing is counted. A row that is none is unreadable.

        Raises:
            ValueError: a template cannot be filled, no row has classes, or a package that scores is missing.
            FileNotFoundError: the files are not under `data.root`.
        """
        check_packages(self.member)
        text = template(self.root, self.member)
        tokens = new_tokens(self.root, self.member) if self.max_new_tokens is None else self.max_new_tokens
        choices = rows.classes(self.root, self._file) if self.metric == "classification_score" else ()
        sample_of = self._numbers(indices)
        for line in jsonl.rows(self.root, self._file, sample_of):
            number = sample_of[line.number]
            try:
                row = line.read()
                found, references = rows.fields(row), rows.answers(row)
                if self.bucket is not None:
                    rows.length(row)
            except ValueError as error:
                yield InvalidSample(number, self.name, f"{line.place}: {error}")
                continue
            context, question = filled(text, found, PROMPTS)
            yield Sample(number, self.name, context, question, "", references, tokens, choices)

    def _numbers(self, indices: Collection[int]) -> Mapping[int, int]:
        """Samples by the number of their row."""
        if self.bucket is None:
            return {index: index for index in indices}
        inside = rows.within(self.root, self._file, self.bucket)
        for index in indices:
            if not 0 <= index < len(inside):
                raise UserError(f"{self.name} has {len(inside)} rows of task.bucket={self.bucket}, none is {index}")
        return {inside[index]: index for index in indices}

    @property
    def _rows(self) -> int:
        """Rows that the samples are taken from."""
        if self.bucket is None:
            return jsonl.count(self.root, self._file)
        return len(rows.within(self.root, self._file, self.bucket))

    @property
    def _file(self) -> str:
        return f"longbench/{self.member}{'_e' if self.extended else ''}.jsonl"
