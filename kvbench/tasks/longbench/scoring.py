"""Which metric scores which task, and what of an answer it reads: LongBench/eval.py of THUDM/LongBench."""

from collections.abc import Callable, Sequence

from kvbench.support.errors import UserError
from kvbench.tasks.metrics import chinese, longbench_rouge
from kvbench.tasks.metrics.longbench_choice import classification, count, retrieval, retrieval_zh
from kvbench.tasks.metrics.longbench_code import code_sim, fuzz
from kvbench.tasks.metrics.longbench_qa import qa_f1, qa_f1_zh
from kvbench.tasks.metrics.longbench_rouge import rouge, rouge_zh

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
EXTENDED = (
    "qasper",
    "multifieldqa_en",
    "hotpotqa",
    "2wikimqa",
    "gov_report",
    "multi_news",
    "trec",
    "triviaqa",
    "samsum",
    "passage_count",
    "passage_retrieval_en",
    "lcc",
    "repobench-p",
)
"""The tasks of LongBench-E."""
FIRST_LINE = ("trec", "triviaqa", "samsum", "lsht")
"""Tasks of whose answers only the first line counts."""
FUNCTIONS: dict[str, Callable[[str, str], float]] = {
    "qa_f1_score": qa_f1,
    "qa_f1_zh_score": qa_f1_zh,
    "rouge_score": rouge,
    "rouge_zh_score": rouge_zh,
    "retrieval_score": retrieval,
    "retrieval_zh_score": retrieval_zh,
    "count_score": count,
    "code_sim_score": code_sim,
}
"""The metrics that need no classes."""
PACKAGES: dict[str, tuple[Callable[[], object], ...]] = {
    "qa_f1_zh_score": (chinese.cutter,),
    "rouge_score": (longbench_rouge.scorer,),
    "rouge_zh_score": (longbench_rouge.scorer, chinese.cutter),
    "code_sim_score": (fuzz,),
}
"""What loads the packages that a metric is defined by."""


def check_packages(member: str) -> None:
    """Raise ValueError, with the command that mends it, for a package that a task's metric needs and has not."""
    for load in PACKAGES.get(METRICS[member], ()):
        load()


def score(member: str, prediction: str, references: Sequence[str], classes: Sequence[str] = ()) -> float:
    """Worth of an answer to a task, 0..1: the best over its references.

    Of an answer to a task with examples (`FIRST_LINE`) the first line counts, after leading line breaks.

    Raises:
        ValueError: no references, no classes where the metric needs them, a package that is missing.
    """
    if not references:
        raise UserError(f"{member}: an answer is scored against at least one reference, got none")
    if member in FIRST_LINE:
        prediction = prediction.lstrip("\n").split("\n")[0]
    name = METRICS[member]
    if name == "classification_score":
        if not classes:
            raise UserError(f"{member}: an answer is scored among classes, got none")
        return max(classification(prediction, reference, classes) for reference in references)
    return max(FUNCTIONS[name](prediction, reference) for reference in references)
