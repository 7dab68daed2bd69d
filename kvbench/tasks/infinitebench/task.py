"""The tasks of InfiniteBench: templates, where a prompt is split, scorers, and the published rows.

    context    The pass key is 71432. Remember it. 71432 is the pass key. The grass is green. The sky is blue. ...
    input      What is the pass key?
    answer     ["71432"]
    options    []

Rows: https://huggingface.co/datasets/xinrongzhang2022/InfiniteBench, a file per task. Rows and average tokens: passkey
590 / 122k, number_string 590 / 122k, kv_retrieval 500 / 90k, longbook_sum_eng 103 / 172k, longbook_qa_eng 351 / 193k,
longbook_choice_eng 229 / 184k, longdialogue_qa_eng 200 / 104k, longbook_qa_chn 175 / 2069k, code_debug 394 / 115k,
code_run 400 / 75k, math_calc 50 / 44k, math_find 350 / 88k.

Follows src/prompt.py, src/eval_utils.py and src/compute_scores.py of https://github.com/OpenBMB/InfiniteBench at
88b3daa. Prompts are sent without a chat template, truncated in the middle to `max_prompt_tokens` with special tokens
counted and both ends decoded together (131072 for the models of YaRN, 128000 in LAVa, 127000 for GPT-4), or to the
model's own limit if that is less.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles, find, limit_samples
from kvbench.tasks.infinitebench.rows import CHOICES, fields, options, references
from kvbench.tasks.metrics import infinitebench as metrics
from kvbench.tasks.task import InvalidSample, Sample, Task, Tokens, require_choice, require_positive
from kvbench.tasks.templates import fill, table

PROMPTS = "infinitebench/prompts.json"
"""A table of templates for each kind of model (`yarn_mistral_templates`, ...): the literals of src/prompt.py."""
Scorer = Literal["official", "loose"]
SCORERS = get_args(Scorer)
OFFICIAL: dict[str, metrics.Metric] = {
    "passkey": metrics.passkey,
    "number_string": metrics.passkey,
    "kv_retrieval": metrics.kv_retrieval,
    "longdialogue_qa_eng": metrics.longdialogue,
    "longbook_sum_eng": metrics.summary,
    "longbook_choice_eng": metrics.choice,
    "longbook_qa_eng": metrics.qa_english,
    "longbook_qa_chn": metrics.qa_chinese,
    "math_find": metrics.math_find,
    "math_calc": metrics.math_calc,
    "code_run": metrics.code_run,
    "code_debug": metrics.code_debug,
}
LOOSE: dict[str, metrics.Metric] = {
    "longdialogue_qa_eng": metrics.loose_longdialogue,
    "longbook_choice_eng": metrics.loose_choice,
    "code_debug": metrics.loose_code_debug,
}
"""The tasks that the loose scorer scores differently."""
MEMBERS = tuple(OFFICIAL)


def metric_of(member: str, scorer: str, skip_first: bool = False) -> metrics.Metric:
    """The metric of a task. `skip_first` applies to math_calc."""
    if member == "math_calc":
        return partial(metrics.math_calc, skip_first=skip_first)
    return (OFFICIAL | (LOOSE if scorer == "loose" else {}))[member]


@dataclass(frozen=True, kw_only=True)
class InfiniteBenchTask(FromFiles, Task):
    """One task, `member`.

    templates: a table of infinitebench/prompts.json. scorer: the benchmark's own, or LAVa's `loose` one, which differs
    in longdialogue_qa_eng, longbook_choice_eng and code_debug. label_fix: take the label of kv_retrieval out of its
    list; false scores 0 on the rows as published today, like the official scorer.
    """

    name: str
    member: str
    max_new_tokens: int
    templates: str = "yarn_mistral"
    scorer: Scorer = "official"
    label_fix: bool = True
    samples: int = 50
    seed: int = 42
    decodes_joined = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "member", MEMBERS)
        require_choice(self, "scorer", SCORERS)
        require_positive(self, "samples", "max_new_tokens")
        if not self.label_fix and (self.member != "kv_retrieval" or self.scorer != "official"):
            raise UserError(f"task.label_fix=false of {self.name}: of the official scorer of kv_retrieval only")

    @property
    def metric(self) -> str:
        fixed = "_label_fix" if self.member == "kv_retrieval" and self.label_fix else ""
        return f"infinitebench_{self.scorer}{fixed}"

    def score(self, prediction: str, sample: Sample) -> float:
        return metric_of(self.member, self.scorer, self.templates == "gpt4")(prediction, sample.references)

    @abstractmethod
    def rows(
        self, count_tokens: Tokens, indices: Collection[int]
    ) -> Iterator[tuple[int, jsonl.Line | Mapping[str, Any]]]:
        """Samples by number, in ascending order: rows in the benchmark's schema, or unparsed lines."""

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        if self.member == "longbook_sum_eng":
            metrics.summary_scorer()  # before the first sample, if it is missing
        template = self._template()
        for index, line in self.rows(count_tokens, indices):
            try:
                row = line.read() if isinstance(line, jsonl.Line) else line
                filled, answer = fields(self.member, row), jsonl.field(row, "answer")
                choices = options(row) if self.member in CHOICES else ()
                labels = references(self.member, answer, choices) if self.label_fix else (str(answer),)
            except ValueError as error:
                place = line.place if isinstance(line, jsonl.Line) else f"row {index}"
                yield InvalidSample(index, self.name, f"{place}: {error}")
                continue
            context, question = fill(template, filled, PROMPTS)
            yield Sample(index, self.name, context, question, "", labels, self.max_new_tokens)

    def _template(self) -> str:
        """Of the table `templates`; GPT-4's prompt of math_calc is the bare expression."""
        tables, name = table(self.root, PROMPTS), f"{self.templates}_templates"
        texts = tables.get(name)
        if not isinstance(texts, dict) or not isinstance(texts.get(self.member), str):
            allowed = ", ".join(sorted(key.removesuffix("_templates") for key in tables if key.endswith("_templates")))
            path = find(self.root, PROMPTS)
            raise UserError(f"{path} has no {name} with {self.member}: task.templates is one of {allowed or 'none'}")
        return "{context}" if (self.templates, self.member) == ("gpt4", "math_calc") else texts[self.member]


@dataclass(frozen=True, kw_only=True)
class PublishedInfiniteBench(InfiniteBenchTask):
    """The published rows of one task. Sample i is row i."""

    context_length = None  # rows have their own lengths

    def __post_init__(self) -> None:
        super().__post_init__()
        limit_samples(self, lambda: jsonl.count(self.root, self.files[0]))

    @property
    def version(self) -> str:
        return f"infinitebench-88b3daa-{self.templates}.2"

    @property
    def files(self) -> tuple[str, ...]:
        return f"infinitebench/{self.member}.jsonl", PROMPTS

    def rows(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[tuple[int, jsonl.Line]]:
        return ((line.number, line) for line in jsonl.rows(self.root, self.files[0], indices))
