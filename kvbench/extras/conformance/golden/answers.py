"""Golden files of scores: answers of models, made up or real, with the score that the official scorer gave each.

The fields of a row, not the name of its file, say what it checks:

fn pred ground_truth official           one metric of LongBench on one answer
task pred answers score                 a row of LongBench, scored as its task is
preds refs metric official              RULER's metric over several answers, in percent
model task n official_88b3daa lava      InfiniteBench over a file of answers, by the official and the loose scorer
hand_scores                             the needle's three scores of an answer
'choice "B or A" vs A': 0.0             InfiniteBench's official scorer on an odd answer, in words
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from kvbench.extras.conformance.golden.verdict import Verdict, compare_number, compare_text
from kvbench.support.errors import UserError
from kvbench.tasks import longbench
from kvbench.tasks.infinitebench import metric_of, references
from kvbench.tasks.longbench import classification
from kvbench.tasks.needle import NEEDLE, overlap, overlap_without_dots, rouge1
from kvbench.tasks.ruler.task import postprocessed, string_match_all, string_match_part

Row = Mapping[str, Any]
RULER = {"string_match_all": string_match_all, "string_match_part": string_match_part}
ODD = re.compile(r'(?P<task>\w+) "(?P<answer>.*?)"(?: vs (?P<label>.+?))?(?: \(.*\))?')
TASKS = {"choice": "longbook_choice_eng", "longdialogue": "longdialogue_qa_eng"}
SCORERS = {"official_88b3daa": "official_88b3daa", "lava": "loose"}


def check_function(row: Row) -> Iterator[Verdict]:
    """Yield one metric of LongBench on one answer."""
    name = f"{row['fn']} {row.get('note') or repr(row['pred'][:40])}"
    if row["fn"] == "classification_score":
        actual = classification(row["pred"], row["ground_truth"], row["kwargs"]["all_classes"])
    elif row["fn"] in longbench.FUNCTIONS:
        actual = longbench.FUNCTIONS[row["fn"]](row["pred"], row["ground_truth"])
    else:
        raise UserError(f"there is no metric {row['fn']} of LongBench")
    yield compare_number(name, actual, row["official"])


def check_longbench(row: Row) -> Iterator[Verdict]:
    """Yield a row of LongBench: the metric of its task, over all of its answers."""
    task = row["task"]
    name = f"longbench/{task} {str(row.get('_id', ''))[:8]} {row['pred'][:40]!r}"
    if task not in longbench.METRICS:
        raise UserError(f"LongBench has no task {task}")
    if row.get("metric", longbench.METRICS[task]) != longbench.METRICS[task]:
        yield compare_text(name, "metric", longbench.METRICS[task], row["metric"])
    score = longbench.score(task, row["pred"], row["answers"], row["all_classes"] or ())
    yield compare_number(name, score, row["score"])


def check_ruler(row: Row) -> Iterator[Verdict]:
    """RULER's mean over several answers, in percent of two digits, and the part of each that the metric reads."""
    name = f"{row['metric']} {row.get('name', '')}"
    answers = zip(row["preds"], row["refs"], strict=True)
    scores = [RULER[row["metric"]](answer, references) for answer, references in answers]
    yield compare_number(name, round(100 * fmean(scores), 2), row["official"])
    if "postprocessed" in row:
        read = [postprocessed(answer) for answer in row["preds"]]
        yield compare_text(f"{name}, postprocessed", "answers", read, row["postprocessed"])


def check_needle(row: Row) -> Iterator[Verdict]:
    """Yield the needle's three scores of an answer."""
    name = f"needle {row.get('note') or row.get('file', '').rpartition('/')[2]}"
    if "response" not in row:
        yield Verdict(name, "the answer's text is not in the file", absent=True)
        return
    answer = row["response"].strip()
    yield compare_number(f"{name}, rouge1", 10 * rouge1(answer, NEEDLE), row["rouge1_f_x10"])
    yield compare_number(f"{name}, words", overlap(answer), row["overlap_kvcache_factory"])
    yield compare_number(f"{name}, words_without_dots", overlap_without_dots(answer), row["overlap_lava"])


def check_predictions(row: Row, folder: Path) -> Iterator[Verdict]:
    """InfiniteBench's mean over the answers in `folder`/MODEL/preds_TASK.jsonl, by both scorers.

    As in src/compute_scores.py of OpenBMB/InfiniteBench: an answer is `prediction`, else `pred`; its label is
    `ground_truth` or `label`, whichever the first line has; the first number of gpt4's answers to math_calc is dropped.
    """
    name, path = f"infinitebench/{row['task']} {row['model']}", folder / row["model"] / f"preds_{row['task']}.jsonl"
    if not path.is_file():
        yield Verdict(name, f"no answers at {path}", absent=True)
        return
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != row["sha256"]:
        raise UserError(f"{path} is not the file of answers that was scored (its SHA-256 differs)")
    lines = [json.loads(line) for line in content.decode("utf-8").split("\n") if line.strip()]
    label = "ground_truth" if "ground_truth" in lines[0] else "label"
    for number, line in enumerate(lines, start=1):
        if label not in line or not ("prediction" in line or "pred" in line):
            raise UserError(
                f"{path} line {number} has {', '.join(line) or 'nothing'}: it needs prediction or pred, and {label}"
            )
    answers = [(line.get("prediction", line.get("pred")), references(row["task"], line[label], ())) for line in lines]
    for column, scorer in SCORERS.items():
        metric = metric_of(row["task"], scorer, skip_first=row["model"] == "gpt4")
        scores = [metric(answer, labels) for answer, labels in answers]
        yield compare_number(f"{name}, {scorer}, n={len(scores)}", fmean(scores), row[column])


def check_odd_answer(description: str, expected: Any) -> Verdict:
    """Return the score of InfiniteBench's official scorer for an odd answer; "ValueError" if it raises one."""
    if description.startswith("kv_retrieval"):
        task, answer = "kv_retrieval", "5e6b"
        labels = [str(["5e6b"])] if "list label" in description else ["5e6b"]
    else:
        match = ODD.fullmatch(description)
        if match is None:
            raise UserError(f'cannot read {description!r}: TASK "ANSWER" vs LABEL')
        task, answer, label = TASKS.get(match["task"], match["task"]), match["answer"], match["label"] or "A"
        is_choice = task == "longbook_choice_eng"
        labels = ["some option", label] if is_choice else [str(value) for value in json.loads(label)]
    try:
        actual = metric_of(task, "official_88b3daa")(answer, labels)
    except ValueError:
        return compare_text(description, "raises", "ValueError", expected)
    return compare_number(description, actual, expected)


ROWS: dict[frozenset[str], Callable[[Row], Iterator[Verdict]]] = {
    frozenset({"fn", "pred", "ground_truth", "official"}): check_function,
    frozenset({"task", "pred", "answers", "score"}): check_longbench,
    frozenset({"preds", "refs", "metric", "official"}): check_ruler,
}
"""The check of a row, by the fields that it has."""
PREDICTIONS = frozenset({"model", "task", "official_88b3daa", "sha256"})
"""The fields of a row about a file of answers."""
