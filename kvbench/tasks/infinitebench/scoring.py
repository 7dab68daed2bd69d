"""Which metric scores which task, by scorer."""

from functools import partial
from typing import Literal, get_args

from kvbench.tasks.metrics import infinitebench as official
from kvbench.tasks.metrics import infinitebench_loose as loose
from kvbench.tasks.metrics import infinitebench_text as text
from kvbench.tasks.metrics.infinitebench import Metric

Scorer = Literal["official", "loose"]
SCORERS = get_args(Scorer)
OFFICIAL: dict[str, Metric] = {
    "passkey": official.passkey,
    "number_string": official.passkey,
    "kv_retrieval": official.kv_retrieval,
    "longdialogue_qa_eng": official.longdialogue,
    "longbook_sum_eng": text.summary,
    "longbook_choice_eng": official.choice,
    "longbook_qa_eng": text.qa_english,
    "longbook_qa_chn": text.qa_chinese,
    "math_find": official.math_find,
    "math_calc": official.math_calc,
    "code_run": official.code_run,
    "code_debug": official.code_debug,
}
LOOSE: dict[str, Metric] = {
    "longdialogue_qa_eng": loose.longdialogue,
    "longbook_choice_eng": loose.choice,
    "code_debug": loose.code_debug,
}
"""What is scored otherwise; the other nine tasks are scored alike."""
MEMBERS = tuple(OFFICIAL)


def metric_of(member: str, scorer: str, skip_first: bool = False) -> Metric:
    """The metric of a task. `skip_first` is that of math_calc."""
    if member == "math_calc":
        return partial(official.math_calc, skip_first=skip_first)
    return (OFFICIAL | (LOOSE if scorer == "loose" else {}))[member]
