"""LongProc against its own longproc_data.py and evaluators, run on rows and templates made up here.

tests/golden/prompts/longproc.json: for each data set and row the hash of the prompt and the scores of `answers`.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.extras.longproc import longproc as metrics
from kvbench.extras.longproc.countdown import countdown
from kvbench.extras.longproc.longproc import LongProc
from kvbench.extras.longproc.tests import rows as longproc_rows
from kvbench.support.errors import MissingFile
from kvbench.tasks.task import InvalidSample, Sample
from tests.tasks.versions import GOLDEN

OFFICIAL = json.loads((GOLDEN / "prompts" / "longproc.json").read_text("utf-8"))


def load_task(name: str, root: Path, **fields: Any) -> tuple[LongProc, list[Sample | InvalidSample]]:
    task = task_of(f"longproc/{name}", str(root), **fields)
    assert isinstance(task, LongProc)
    return task, list(task.generate(len, range(task.samples)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OFFICIAL["tasks"])
def test_prompts_and_scores_are_those_of_its_own_code(name: str, root: Path) -> None:
    task, samples = load_task(name, root)
    answers = OFFICIAL["answers"][task.kind]
    entries = [
        [hashlib.sha256(sample.prompt.encode()).hexdigest(), [task.score(answer, sample) for answer in answers]]
        for sample in samples
        if isinstance(sample, Sample)
    ]
    assert [entry[0] for entry in entries] == [entry[0] for entry in OFFICIAL["tasks"][name]]
    for (_, scores), (_, wanted) in zip(entries, OFFICIAL["tasks"][name], strict=True):
        assert scores == pytest.approx(wanted, abs=1e-9)
    assert task.max_new_tokens == {"0.5k": 1024, "2k": 3072, "8k": 10240}[name.rpartition("_")[2]]


def test_equations_are_computed_and_never_evaluated() -> None:
    """The official script calls eval() on the left side, and ends with an error on the last three."""
    for line in ("open('/tmp/x', 'w') + 1 = 1", "5 / 0 = 1", "05 + x = 3", "() = 3"):
        assert metrics.equations(f"<Solution>{line}\n1 + 1 = 2\n1 + 1 = 2</Solution>", [1, 1, 5, 0], 2) == 0.0
    with pytest.raises(ValueError, match=r"the target 1999 cannot be reached with \[1, 1, 1, 1\]"):
        countdown([1, 1, 1, 1], 1999)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("path_traversal_0.5k", {"question_repr": []}, "its question_repr is []: a list of at least one text"),
        ("countdown_0.5k", {"target": "24"}, "its target '24': whole numbers"),
        ("tom_tracking_0.5k", {"solution": None}, "its solution is null, not a text"),
    ],
)
def test_an_invalid_row_is_named(name: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    longproc_rows.write(tmp_path)
    kind = name.rpartition("_")[0]
    file = tmp_path / "longproc" / kind / f"{name}.jsonl"
    file.write_text(json.dumps(longproc_rows.ROWS[kind][0] | change))
    _, (sample,) = load_task(name, tmp_path)
    assert isinstance(sample, InvalidSample)
    assert sample.error.startswith(f"longproc/{kind}/{name}.jsonl:1: ") and message in sample.error


def test_what_cannot_be_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"dataset=pseudo_to_code_2k .*: allowed: html_to_tsv_0\.5k, .*compiles and runs"
    ):
        load_task("countdown_2k", root, dataset="pseudo_to_code_2k")
    with pytest.raises(ValueError, match=r"dataset=travel_planning_0\.5k .*: allowed: .*travel_planning_2k"):
        load_task("travel_planning_2k", root, dataset="travel_planning_0.5k")
    with pytest.raises(MissingFile, match=r"kvbench data pull longproc"):
        load_task("tom_tracking_8k", tmp_path)
    longproc_rows.write(tmp_path)
    (tmp_path / "longproc" / "countdown" / "prompts.yaml").write_text("USER_PROMPT: none")
    with pytest.raises(ValueError, match=r"prompts\.yaml is no prompt of LongProc: .* one \{demonstration\}"):
        load_task("countdown_0.5k", tmp_path)
    trips = tmp_path / "longproc" / "travel_planning" / "examples.jsonl"
    trips.write_text(json.dumps({"disambig_question_text": "a"}))
    with pytest.raises(ValueError, match=r"examples\.jsonl:1: it is no problem with a plan"):
        load_task("travel_planning_2k", tmp_path)
