"""One number for all of LongBench: three averages that differ in which tasks count and how.

official    the mean of six categories, each the mean of its tasks: README of THUDM/LongBench
lava        the mean of 20 tasks, passage_count left out: the tables of LAVa
caote       the mean of the 16 tasks in English and code: the tables of CAOTE, OBCache and KVCache-Factory
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from kvbench.support.errors import UserError

CATEGORIES = {
    "single-document QA": ("narrativeqa", "qasper", "multifieldqa_en", "multifieldqa_zh"),
    "multi-document QA": ("hotpotqa", "2wikimqa", "musique", "dureader"),
    "summarization": ("gov_report", "qmsum", "multi_news", "vcsum"),
    "few-shot learning": ("trec", "triviaqa", "samsum", "lsht"),
    "synthetic": ("passage_count", "passage_retrieval_en", "passage_retrieval_zh"),
    "code": ("lcc", "repobench-p"),
}
ALL = tuple(member for members in CATEGORIES.values() for member in members)
CHINESE = ("multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh")
GROUPS: Mapping[str, Sequence[Sequence[str]]] = {
    "official": tuple(CATEGORIES.values()),
    "lava": ([member for member in ALL if member != "passage_count"],),
    "caote": ([member for member in ALL if member not in CHINESE],),
}
"""The groups of tasks whose means an average is the mean of."""


def check(name: str) -> None:
    """Raise UserError for a name that no average has."""
    if name not in GROUPS:
        raise UserError(f"average {name}: allowed: {', '.join(GROUPS)}")


def weights(name: str) -> dict[str, float]:
    """Return the weight of each task in an average; they sum to 1. Raises UserError as `check` does."""
    check(name)
    groups = GROUPS[name]
    return {member: 1 / len(groups) / len(members) for members in groups for member in members}


def average(means: Mapping[str, float], name: str) -> float:
    """Return the average of that name over task means, in their unit: `mean over groups of (mean over the group's
    tasks)`.

    `means` is by task, "qasper" or "longbench/qasper"; tasks that the average leaves out may be there.

    Raises UserError: another name, or a task that counts is not there.
    """
    check(name)
    by_member = {task.removeprefix("longbench/"): mean for task, mean in means.items()}
    missing = [member for members in GROUPS[name] for member in members if member not in by_member]
    if missing:
        raise UserError(f"the average {name} of LongBench lacks {', '.join(missing)}")
    return fmean(fmean(by_member[member] for member in members) for members in GROUPS[name])
