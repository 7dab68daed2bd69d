"""Which metric judges which kind of question: results/metric.py of https://github.com/snu-mllab/KVzip."""

from collections.abc import Callable

from kvbench.tasks.metrics import kvzip
from kvbench.tasks.metrics.repoqa import pass_at_1
from kvbench.tasks.sample import Sample

Metric = Callable[[str, str], float]

KINDS: dict[str, Metric] = {
    "kv": kvzip.inclusion,
    "prefix_suffix": kvzip.inclusion,
    "passkey": kvzip.inclusion,
    "vt": kvzip.share,
    "mf": kvzip.exact,
    "many_shot": kvzip.option,
    "summary": kvzip.summary,
    "qa_eng": kvzip.f1_or_inclusion,
    "choice_eng": kvzip.first_line,
}
"""All kinds of question but repoqa, whose metric reads more than one reference."""
MIXED = {"summary_with_needles": ("summary", "passkey"), "repoqa_and_kv": ("repoqa", "kv")}
"""The mixed tasks, and the kinds of their questions."""
MEMBERS = (
    *("kv", "prefix_suffix", "vt", "repoqa", "qa_eng", "choice_eng", "many_shot", "mf", "summary"),
    *MIXED,
)


def metric_name(member: str) -> str:
    """The metric of a task as rows and reports name it: kvzip_exact, repoqa_pass_at_1; kvzip_<task> of a mixed one."""
    if member == "repoqa":
        return "repoqa_pass_at_1"
    return f"kvzip_{member if member in MIXED else KINDS[member].__name__}"


def score(prediction: str, sample: Sample) -> float:
    """Worth of an answer by the metric of its kind, 0..1. Raises ValueError as the metrics do."""
    if sample.kind == "repoqa":
        language, *functions = sample.choices
        return pass_at_1(prediction, sample.references, functions, language)
    (reference,) = sample.references
    return KINDS[sample.kind](prediction, reference)
