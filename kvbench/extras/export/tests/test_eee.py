"""Records of Every Eval Ever: they hold the numbers of the table, and what its schema requires.

Facts of the schema are those of every_eval_ever/schemas/eval.schema.json, version 0.3.0, at commit 9bce413 of
https://github.com/evaleval/every_eval_ever.
"""

import json
import os
import re
import uuid
from pathlib import Path

import pytest

from kvbench.cli.main import main
from kvbench.records import ResultsFolder
from kvbench.records.environment import content_hash

VERSION_4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\.json"
REQUIRED = {
    "": {
        *("schema_version", "evaluation_id", "retrieved_timestamp", "source_metadata", "model_info", "eval_library"),
        "evaluation_results",
    },
    "source_metadata": {"source_type", "source_organization_name", "evaluator_relationship"},
    "eval_library": {"name", "version"},
    "model_info": {"name", "id", "additional_details"},
    "evaluation_results": {"evaluation_name", "source_data", "metric_config", "score_details"},
}
TOP_LEVEL = {*REQUIRED[""], "evaluation_timestamp", "detailed_evaluation_results"}
"""The top level takes no other keys."""


def records(results: Path, out: Path, *words: str) -> dict[Path, dict]:
    """The exported records, by their paths below ``out``."""
    assert main(["export", "--format", "eee", "--results", str(results), "--out", str(out), *words]) == 0
    return {path.relative_to(out): json.loads(path.read_text()) for path in out.rglob("*") if path.is_file()}


def described_in(folder: ResultsFolder, description: dict) -> str:
    """The name of a cell whose description is kept."""
    folder.write_cell(name := content_hash(description)[:16], description)
    return name


def texts(details: dict) -> bool:
    return all(type(value) is str for value in details.values())


@pytest.fixture
def several(cell, results, tmp_path: Path) -> Path:
    """Rates of a model of the hub with all that a run writes, and of another a perplexity, points and seconds."""
    folder = ResultsFolder(tmp_path / "runs")
    environment = folder.write_environment({"packages": {"kvbench": "0.0.7", "torch": "2.9", "triton": None}})
    drawn = {"temperature": 0.6, "max_new_tokens": 12, "stop": ["a"]}
    task = {"name": "ruler/niah_single_1", "data_sha256": "da7a"} | drawn
    described = described_in(folder, {"policy": {"name": "snapkv", "window": 16, "pool": None}, "task": task})
    measured = {"kept_fraction": 0.125, "cache_bytes": 2**20, "environment": environment}
    rates = cell([1.0, 0.5, 0.25, "too long"], model="org/model-1B", cell=described, **measured)
    return results(
        rates,
        cell([2.0, 3.0], metric="nll", task="pg19", new_tokens=8),
        cell([5.0, -7.5], metric="points", task="plugin"),
        cell([0.001, 0.002], metric="seconds_per_token", task="efficiency", decode_seconds=0.5),
    )


def test_scores_are_those_of_the_table(several: Path, tmp_path: Path, capsys) -> None:
    assert main(["report", "table", "--results", str(several), "--format", "json"]) == 0
    cells = {line["cell"]: line for line in json.loads(capsys.readouterr().out)}
    exported = records(several, tmp_path / "out").values()
    results = [result for record in exported for result in record["evaluation_results"]]
    assert {result["evaluation_result_id"] for result in results} == {*cells} and len(results) == len(cells) == 4
    for result in results:
        line, score = cells[result["evaluation_result_id"]], result["score_details"]
        assert (result["evaluation_name"], score["score"]) == (line["task"], line["mean"])
        interval = score["uncertainty"]["confidence_interval"]
        assert (interval["lower"], interval["upper"], interval["confidence_level"]) == (line["low"], line["high"], 0.95)
        assert (
            score["uncertainty"]["num_samples"] == line["n"]
            and result["metric_config"]["metric_name"] == line["metric"]
        )
        measured = {name: json.loads(text) for name, text in score["details"].items() if name != "contexts"}
        assert measured == {name: line[name] for name in measured} and {"errors", "blanks"} <= {*measured}
        assert ("decode_seconds" in measured) == (line["metric"] == "seconds_per_token")


def test_a_record_has_what_the_schema_requires(several: Path, tmp_path: Path) -> None:
    for path, record in records(several, tmp_path / "out").items():
        assert {*record} <= TOP_LEVEL
        assert record["schema_version"] == "0.3.0" and record["retrieved_timestamp"].isdigit()
        for key, required in REQUIRED.items():
            parts = record if key == "" else record[key]
            for part in parts if isinstance(parts, list) else [parts]:
                assert required <= {*part}, key
        source, model = record["source_metadata"], record["model_info"]
        assert source["source_type"] in ("documentation", "evaluation_run")
        assert source["evaluator_relationship"] in ("first_party", "third_party", "collaborative", "other")
        assert model["additional_details"].pop("deployment_type") in ("self_deployed", "externally_managed", "unknown")
        assert model["additional_details"] in [{"model_availability": it} for it in ("open_weights", "unknown")]
        assert texts(source["additional_details"]) and texts(record["eval_library"]["additional_details"])
        assert path.parts[:2] == ("data", "kvbench") and len(path.parts) == 5
        assert re.fullmatch(VERSION_4, path.name) and uuid.UUID(path.stem).version == 4
        for result in record["evaluation_results"]:
            data, metric, score = (result[name] for name in ("source_data", "metric_config", "score_details"))
            assert (data["source_type"], type(data["dataset_name"])) == ("other", str)
            assert type(metric["lower_is_better"]) is bool and metric["score_type"] == "continuous"
            low, high = (metric[name] for name in ("min_score", "max_score"))
            assert all(type(bound) is float or bound in ("Infinity", "-Infinity") for bound in (low, high))
            assert float(low) <= score["score"] <= float(high)
            assert type(score["uncertainty"]["num_samples"]) is int
            details = (data["additional_details"], score["details"], result["generation_config"]["additional_details"])
            assert all(map(texts, details))


def test_a_cell_tells_its_settings_and_its_model_where_it_is_from(several: Path, tmp_path: Path) -> None:
    folders = {path.parts[2:4]: record for path, record in records(several, tmp_path / "out").items()}
    assert {*folders} == {("org", "model-1B"), ("unknown", "reference")}
    record = folders["org", "model-1B"]
    assert (record["model_info"]["id"], record["model_info"]["developer"]) == ("org/model-1B", "org")
    assert record["eval_library"] == {
        "name": "kvbench",
        "version": "0.0.7",
        "additional_details": {"torch": "2.9", "transformers": "unknown"},
    }
    (result,) = record["evaluation_results"]
    assert result["source_data"]["additional_details"] == {"task_version": "2026", "data_sha256": "da7a"}
    assert result["metric_config"]["metric_unit"] == "proportion"
    assert result["score_details"]["details"]["errors"] == "1"
    assert result["generation_config"]["generation_args"] == {"temperature": 0.6, "top_p": 1.0, "max_tokens": 12}
    settings = result["generation_config"]["additional_details"]
    expected = {"policy": "snapkv", "score": "attn", "budget": "0.1", "seed": "0", "policy.window": "16"}
    assert expected.items() <= settings.items() and settings["task.stop"] == '["a"]' and "policy.pool" not in settings
    other = folders["unknown", "reference"]
    assert "developer" not in other["model_info"] and other["eval_library"]["version"] == "unknown"
    metrics = {result["evaluation_name"]: result["metric_config"] for result in other["evaluation_results"]}
    bounds = {name: (it["min_score"], it["max_score"], it["lower_is_better"]) for name, it in metrics.items()}
    assert bounds == {
        "pg19": (1.0, "Infinity", True),
        "plugin": ("-Infinity", "Infinity", False),
        "efficiency": (0.0, "Infinity", True),
    }


def test_a_served_model_is_not_deployed_here_and_blank_cells_are_left_out(
    cell, results, tmp_path: Path, capsys
) -> None:
    name = described_in(ResultsFolder(tmp_path / "runs"), {"endpoint": {"server": "somewhere"}})
    folder = results(cell([1.0, 0.0], model="org/model", cell=name), cell(["too long", None], budget="0.2"))
    (record,) = records(folder, tmp_path / "out").values()
    assert record["model_info"]["additional_details"]["deployment_type"] == "unknown"
    (result,) = record["evaluation_results"]
    assert result["generation_config"]["generation_args"] == {} and "1 cell left out" in capsys.readouterr().err


def test_the_same_cells_give_the_same_file_and_others_another(small: Path, tmp_path: Path) -> None:
    first, again = (records(small, tmp_path / "out") for _ in range(2))
    assert [*first] == [*again] and len(first) == 1
    assert len(records(small, tmp_path / "out", "policy=snapkv")) == 2
    names = {record["evaluation_id"] for record in records(small, tmp_path / "out").values()}
    assert len(names) == 2


@pytest.mark.parametrize("model", ["../../../escape", "/models/llama 3", "..", "a/..", "c:\\models\\é", "x" * 500])
def test_no_name_of_a_model_leaves_the_folder(cell, results, tmp_path: Path, model: str) -> None:
    before = {*tmp_path.rglob("*")}
    (path,) = records(results(cell([1.0, 0.0], model=model)), tmp_path / "here" / "out")
    assert len(path.parts) == 5 and all(re.fullmatch(r"[\w.-]{1,100}", part, re.ASCII) for part in path.parts)
    written = {path for path in tmp_path.rglob("*.json") if path not in before}
    assert all(tmp_path / "here" / "out" in path.parents or tmp_path / "runs" in path.parents for path in written)


@pytest.mark.parametrize(
    ("out", "words", "code", "message"),
    [
        (None, (), 2, "name a folder with --out FOLDER"),
        ("file", (), 2, "name another folder with --out"),
        ("out", ("budget=0.2",), 4, "none of 1 selected cell has a value"),
    ],
    ids=["screen", "file", "no value"],
)
def test_what_cannot_be_written_is_said(cell, results, tmp_path: Path, capsys, out, words, code, message) -> None:
    folder = results(cell([1.0, 0.0]), cell(["too long"], budget="0.2"))
    (tmp_path / "file").touch()
    place = [] if out is None else ["--out", str(tmp_path / out)]
    assert main(["export", "--format", "eee", "--results", str(folder), *place, *words]) == code
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_records_are_valid_by_the_published_schema(several: Path, tmp_path: Path) -> None:
    """With jsonschema, and its file at eee/eval.schema.json of the folder of reference files."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = Path(os.environ.get("KVBENCH_SHARED", "no reference files")) / "eee" / "eval.schema.json"
    if not schema.is_file():
        pytest.skip(f"{schema} is not there")
    validator = jsonschema.Draft7Validator(json.loads(schema.read_text()))
    for record in records(several, tmp_path / "out").values():
        assert [error.message for error in validator.iter_errors(record)] == []
        assert [*validator.iter_errors({**record, "unknown": 1})], "the schema refuses what it does not know"
