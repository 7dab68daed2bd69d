"""A difference to a published number: there for the paper's model and protocol, blank for anything else."""

import csv
import io
from contextlib import redirect_stderr
from dataclasses import replace
from typing import Any

import pytest

from kvbench.cli.main import main
from kvbench.config.overrides import parse
from kvbench.papers.cells import cells_of_item
from kvbench.papers.item import item_of
from kvbench.records import Row
from kvbench.support import paths

ASKED = ["policy=h2o_obcache", "policy.layout=query_heads", "score=attn", "budget=80", "task.context_length=4096"]


@pytest.fixture(scope="module")
def published():
    place = {"table": "table 1", "policy": "h2o_obcache", "score": "attn", "budget": "80", "context_length": "4096"}
    with (paths.papers() / "obcache.csv").open(newline="") as file:
        (line,) = [line for line in csv.DictReader(file) if place.items() <= line.items()]
    return float(line["value"])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Files of another model under the name of the paper's."""
    folder = tmp_path_factory.mktemp("models") / "Llama-3.1-8B-Instruct"
    folder.symlink_to(paths.assets() / "reference")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """An essay, so that the task has what its haystack is made of."""
    root = tmp_path_factory.mktemp("data")
    (root / "paul_graham_essays").mkdir()
    (root / "paul_graham_essays" / "hay.txt").write_text("A field of grass was cut and left to dry. " * 9)
    return root


def planted(folder, model, data, *words):
    """Rows of all samples that a command asks for, half of them right."""
    settings = parse([*ASKED, f"model.path={model}", f"data.root={data}", f"results.dir={folder}", *words])
    (entry,) = cells_of_item(item_of("obcache/table1"), settings).with_data
    cell, task = entry.cell, entry.cell.task
    requested: dict[str, Any] = {"cell": cell.id, "model": cell.model.label, "code": cell.code.id, "seed": 42}
    requested |= {name: getattr(task, name) for name in ("context_length", "metric")}
    requested |= {"task": task.name, "task_version": task.version}
    requested |= {"policy": "h2o_obcache", "score": "attn", "budget": "80"}
    requested |= {"variant": cell.policy.variant, "layout": cell.policy.layout, "schedule": str(cell.schedule)}
    rows = [
        Row(**requested, sample=sample, value=float(sample % 2), prompt_sha256=f"{sample}")
        for sample in range(task.samples)
    ]
    (folder / "rows").mkdir(parents=True)
    (folder / "rows" / "planted.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    return [setting.text for setting in settings]


def rendered(words, out):
    said = io.StringIO()
    with redirect_stderr(said):
        assert main(["paper", "obcache/table1", *words, "--format", "csv", "--out", str(out)]) == 0
    assert f"wrote {out}" in said.getvalue()
    with out.open(newline="") as file:
        (line,) = [line for line in csv.DictReader(file) if line["ours"] and line["budget"] == "80"]
    return line


def test_the_papers_model_and_protocol_have_a_difference(tmp_path, model, data, published, capsys):
    words = planted(tmp_path / "runs", model, data)
    assert main(["paper", "obcache/table1", *words]) == 0
    out = capsys.readouterr().out
    assert "ours - published" in out and f"{50 - published:+.2f}" in out
    assert "n = 250" in out and "SMOKE" not in out and "Llama-3.1-8B-Instruct" in out


@pytest.mark.parametrize("other", ["task.samples=40", "policy.window=8", "model.dtype=float32"])
def test_another_setting_has_none(tmp_path, model, data, other):
    line = rendered(planted(tmp_path / "runs", model, data, other), tmp_path / "page.csv")
    assert line["difference"] == "" and other in line["differs"]


def test_a_failed_sample_takes_the_difference_away(tmp_path, model, data):
    words = planted(tmp_path / "runs", model, data)
    file = tmp_path / "runs" / "rows" / "planted.jsonl"
    first, *others = file.read_text().splitlines()
    failed = replace(Row.from_json(first), value=None, error="out of memory")
    file.write_text("\n".join([failed.to_json(), *others]) + "\n")
    out = tmp_path / "page.csv"
    assert main(["paper", "obcache/table1", *words, "--format", "csv", "--out", str(out)]) == 4
    with out.open(newline="") as lines:
        assert all(line["difference"] == "" for line in csv.DictReader(lines))
