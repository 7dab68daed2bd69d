"""What the tasks of InfiniteBench have in common: templates, the split of a prompt, scorers.

Follows src/prompt.py, src/eval_utils.py and src/compute_scores.py of https://github.com/OpenBMB/InfiniteBench at
88b3daa.
Prompts are sent raw, cut in the middle to `max_prompt_tokens` with special tokens counted (131072 for the models of
YaRN, 128000 in LAVa, 127000 for GPT-4), or to what the model reads where that is less.

With schedule.evict_after=context the cache is cut after the context, and what the template has behind it is read
afterwards: question, options, instruction. Two templates tell more before the context: math_find names the number that
is looked for, code_run the function.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.files import FromFiles
from kvbench.tasks.filling import filled
from kvbench.tasks.infinitebench.fields import fields, options
from kvbench.tasks.infinitebench.labels import CHOICES, references
from kvbench.tasks.infinitebench.scoring import MEMBERS, SCORERS, Scorer, metric_of
from kvbench.tasks.infinitebench.template import FILE, template
from kvbench.tasks.jsonl import Line, field
from kvbench.tasks.metrics.infinitebench_text import rouge
from kvbench.tasks.prompting import Prompting
from kvbench.tasks.sample import InvalidSample, Sample, Tokens


@dataclass(frozen=True, kw_only=True)
class InfiniteBenchTask(FromFiles, Prompting, ABC):
    """One task, `member`.

    templates: whose prompts, a table of infinitebench/prompts.json. scorer: the benchmark's own, or LAVa's `loose` one,
    which differs in longdialogue_qa_eng, longbook_choice_eng and code_debug. label_fix: take the label of kv_retrieval
    out of its list; false scores 0 on the rows as published today, like the official scorer.

    Raises:
        ValueError: a field is outside its legal set.
    """

    name: str
    member: str
    max_new_tokens: int
    templates: str = "yarn_mistral"
    scorer: Scorer = "official"
    label_fix: bool = True
    samples: int = 50
    seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting, legal in (("member", MEMBERS), ("scorer", SCORERS)):
            if getattr(self, setting) not in legal:
                raise UserError(
                    f"task.{setting}={getattr(self, setting)} of {self.name}: choose one of {', '.join(legal)}"
                )
        for setting in ("samples", "max_new_tokens"):
            if getattr(self, setting) < 1:
                raise UserError(f"task.{setting}={getattr(self, setting)} of {self.name}: give a whole number above 0")
        if not self.label_fix and (self.member != "kv_retrieval" or self.scorer != "official"):
            raise UserError(f"task.label_fix=false of {self.name}: of the official scorer of kv_retrieval only")

    @property
    def metric(self) -> str:
        """The metric's name in rows and reports."""
        fixed = "_label_fix" if self.member == "kv_retrieval" and self.label_fix else ""
        return f"infinitebench_{self.scorer}{fixed}"

    def score(self, prediction: str, sample: Sample) -> float:
        """By the metric of the task, 0..1. Raises ValueError where the official scorer ends with an error."""
        return metric_of(self.member, self.scorer, self.templates == "gpt4")(prediction, sample.references)

    @abstractmethod
    def rows(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[tuple[int, Line | Mapping[str, Any]]]:
        """Rows in the benchmark's schema or lines that should hold one, in ascending order."""

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        """Yield the samples of `indices` in ascending order; rows that are not the benchmark's are unreadable.

        Raises:
            ValueError: a template cannot be filled, or the scorer of summaries is not installed.
            FileNotFoundError: the files are not under `data.root`.
        """
        if self.member == "longbook_sum_eng":
            rouge()
        text = self._template()
        for index, found in self.rows(count_tokens, indices):
            try:
                row = found.read() if isinstance(found, Line) else found
                given, wanted = fields(self.member, row), self._references(row)
            except ValueError as error:
                place = found.place if isinstance(found, Line) else f"row {index}"
                yield InvalidSample(index, self.name, f"{place}: {error}")
                continue
            context, question = filled(text, given, FILE)
            yield Sample(index, self.name, context, question, "", wanted, self.max_new_tokens)

    def _template(self) -> str:
        """GPT-4 is asked math_calc with the bare expression."""
        text = template(self.root, self.templates, self.member)
        return "{context}" if (self.templates, self.member) == ("gpt4", "math_calc") else text

    def _references(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        answer = field(row, "answer")
        if not self.label_fix:
            return (str(answer),)
        return references(self.member, answer, options(row) if self.member in CHOICES else ())

    @property
    def _prompts(self) -> str:
        return FILE
