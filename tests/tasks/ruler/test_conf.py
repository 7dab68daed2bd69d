"""Every RULER file of conf/task describes a task that yields prompts of its length."""

import json
from pathlib import Path

from omegaconf import OmegaConf

from kvbench.config.entries import options
from tests.tasks.ruler.conftest import make

NAMES = [name.removeprefix("ruler/") for name in options("task") if name.startswith("ruler/")]
FIELDS = {
    "num_needle_k": "num_keys",
    "num_needle_v": "num_values",
    "num_needle_q": "num_queries",
    "type_haystack": "haystack",
    "type_needle_k": "keys",
    "type_needle_v": "values",
    "dataset": "dataset",
}
"""Official names of what a file sets, and ours."""


def test_all_thirteen_have_a_file_and_the_official_counts(shared: Path):
    """scripts/synthetic.yaml and constants.py of the benchmark, as data."""
    table = OmegaConf.load(shared / "data" / "protocols" / "ruler_synthetic.yaml")
    kinds = json.loads((shared / "data" / "protocols" / "ruler_tasks.json").read_text("utf-8"))["TASKS"]
    assert set(table) == set(NAMES) and len(NAMES) == 13
    for name, row in table.items():
        task = make(name)
        assert task.max_new_tokens == kinds[row["task"]]["tokens_to_generate"]
        fields = {FIELDS[key]: value for key, value in row["args"].items() if key in FIELDS}
        fields = fields if row["task"] in ("niah", "qa") else {}
        assert {key: getattr(task, key) for key in fields} == fields
