"""Golden files of scores: answers of models, made up or real, with what the official scorer gave for each.

A file is told by what its rows have, not by its name:

fn pred ground_truth official           one metric of LongBench on one answer
task pred answers score                 a row of LongBench, scored as its task is
preds refs metric official              RULER's metric over several answers, in percent
model task n official_88b3daa lava      InfiniteBench over a file of answers, by the official and the loose scorer
hand_scores                             the needle's three scores of an answer
'choice "B or A" vs A': 0.0             what InfiniteBench's official scorer does on odd answers, in words
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from kvbench.conformance.golden.checked import Checked, number, text
from kvbench.support.errors import UserError
from kvbench.tasks.infinitebench.labels import references
from kvbench.tasks.infinitebench.scoring import metric_of
from kvbench.tasks.longbench import scoring as longbench
from kvbench.tasks.metrics.longbench_choice import classification
from kvbench.tasks.metrics.needle import overlap, overlap_without_dots, rouge1
from kvbench.tasks.metrics.ruler import postprocessed, string_match_all, string_match_part
from kvbench.tasks.needle import NEEDLE

Row = Mapping[str, Any]
RULER = {"string_match_all": string_match_all, "string_match_part": string_match_part}
ODD = re.compile(r'(?P<task>\w+) "(?P<answer>.*?)"(?: vs (?P<label>.+?))?(?: \(.*\))?')
TASKS = {"choice": "longbook_choice_eng", "longdialogue": "longdialogue_qa_eng"}
SCORERS = {"official_88b3daa": "official", "lava": "loose"}


def of_function(row: Row) -> Iterator[Checked]:
    """One metric of LongBench on one answer."""
    name = f"{row['fn']} {row.get('note') or repr(row['pred'][:40])}"
    if row["fn"] == "classification_score":
        got = classification(row["pred"], row["ground_truth"], row["kwargs"]["all_classes"])
    elif row["fn"] in longbench.FUNCTIONS:
        got = longbench.FUNCTIONS[row["fn"]](row["pred"], row["ground_truth"])
    else:
        raise UserError(f"there is no metric {row['fn']} of LongBench")
    yield number(name, got, row["official"])


def of_longbench(row: Row) -> Iterator[Checked]:
    """A row of LongBench: the metric of its task, over all of its answers."""
    name = f"longbench/{row['task']} {str(row.get('_id', ''))[:8]} {row['pred'][:40]!r}"
    if row["task"] not in longbench.METRICS:
        raise UserError(f"LongBench has no task {row['task']}")
    if row.get("metric", longbench.METRICS[row["task"]]) != longbench.METRICS[row["task"]]:
        yield text(name, "metric", longbench.METRICS[row["task"]], row["metric"])
    yield number(
        name, longbench.score(row["task"], row["pred"], row["answers"], row["all_classes"] or ()), row["score"]
    )


def of_ruler(row: Row) -> Iterator[Checked]:
    """RULER's mean over several answers, in percent of two digits, and what the metric reads of each."""
    name = f"{row['metric']} {row.get('name', '')}"
    scores = [RULER[row["metric"]](answer, right) for answer, right in zip(row["preds"], row["refs"], strict=True)]
    yield number(name, round(100 * fmean(scores), 2), row["official"])
    if "postprocessed" in row:
        yield text(
            f"{name}, postprocessed", "answers", [postprocessed(one) for one in row["preds"]], row["postprocessed"]
        )


def of_needle(row: Row) -> Iterator[Checked]:
    """The needle's three scores of an answer."""
    name = f"needle {row.get('note') or row.get('file', '').rpartition('/')[2]}"
    if "response" not in row:
        yield Checked(name, "the answer's text is not in the file", absent=True)
        return
    answer = row["response"].strip()
    yield number(f"{name}, rouge1", 10 * rouge1(answer, NEEDLE), row["rouge1_f_x10"])
    yield number(f"{name}, words", overlap(answer), row["overlap_kvcache_factory"])
    yield number(f"{name}, words_without_dots", overlap_without_dots(answer), row["overlap_lava"])


def of_predictions(row: Row, folder: Path) -> Iterator[Checked]:
    """InfiniteBench's mean over the answers in `folder`/MODEL/preds_TASK.jsonl, by both scorers."""
    name, path = f"infinitebench/{row['task']} {row['model']}", folder / row["model"] / f"preds_{row['task']}.jsonl"
    if not path.is_file():
        yield Checked(name, f"no answers at {path}", absent=True)
        return
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != row["sha256"]:
        raise UserError(f"{path} holds other answers than those that were scored (SHA-256)")
    answers = [json.loads(line) for line in content.decode("utf-8").splitlines()]
    for column, scorer in SCORERS.items():
        metric = metric_of(row["task"], scorer)
        scores = [metric(one["prediction"], references(row["task"], one["ground_truth"], ())) for one in answers]
        yield number(f"{name}, {scorer}, n={len(scores)}", fmean(scores), row[column])


def of_odd(name: str, expected: Any) -> Checked:
    """What the official scorer of InfiniteBench gives an odd answer; "ValueError" where it ends with one."""
    if name.startswith("kv_retrieval"):
        task, answer, label = "kv_retrieval", "5e6b", [str(["5e6b"])] if "list label" in name else ["5e6b"]
    else:
        said = ODD.fullmatch(name)
        if said is None:
            raise UserError(f'cannot read {name!r}: TASK "ANSWER" vs LABEL')
        task = TASKS.get(said["task"], said["task"])
        answer, label = said["answer"], _labels(task, said["label"] or "A")
    try:
        got = metric_of(task, "official")(answer, label)
    except ValueError:
        return text(name, "raises", "ValueError", expected)
    return number(name, got, expected)


def _labels(task: str, said: str) -> list[str]:
    """The labels of a description: a list in JSON, or the letter of a choice."""
    if task == "longbook_choice_eng":
        return ["some option", said]
    return [str(one) for one in json.loads(said)]


ROWS: dict[frozenset[str], Callable[[Row], Iterator[Checked]]] = {
    frozenset({"fn", "pred", "ground_truth", "official"}): of_function,
    frozenset({"task", "pred", "answers", "score"}): of_longbench,
    frozenset({"preds", "refs", "metric", "official"}): of_ruler,
}
"""What checks a row, by the fields that tell it."""
PREDICTIONS = frozenset({"model", "task", "official_88b3daa", "sha256"})
"""Fields of a row about a file of answers."""
