"""`kvbench paper` on the embedded model: a whole table run, resumed and rendered; what it refuses."""

import csv

import pytest

from kvbench.cli.main import main

SMALL = ["model=reference", "task.samples=1", "task.context_length=384", "task.haystack=noise", "budget=80,160"]
SMALL += ["policy=h2o_obcache,snapkv", "score=attn", "task.max_new_tokens=4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("paper")


def run(*words):
    return main(["paper", *words])


def test_a_table_is_run_once_and_rendered_three_ways(folder, capsys):
    words = ["obcache/table1", *SMALL, f"results.dir={folder / 'runs'}"]
    assert run(*words) == 0
    out, err = capsys.readouterr()
    assert "4 rows to run from 1 prompt" in err
    assert "SMOKE: ours: model reference; n = 1" in out
    assert "52.28" in out and "384 tokens" in out and "32768 tokens" in out
    assert "task.samples=1 instead of task.samples=250" in out
    assert "No difference is shown" in out and "ours - published" not in out
    assert run(*words, "--format", "csv", "--out", str(folder / "page.csv")) == 0
    assert "all 4 rows are in" in capsys.readouterr().err
    lines = list(csv.DictReader((folder / "page.csv").open()))
    assert {line["difference"] for line in lines} == {""}
    assert sum(line["ours"] != "" for line in lines) == 4 + 2  # and an average of both lines
    assert sum(line["published"] != "" for line in lines) == 204
    assert {line["smoke"] for line in lines} == {"True"}


def test_items_and_their_published_numbers_need_no_model(capsys):
    said = {"obcache/table1 --published --format markdown": "52.28", "list": "obcache/table1"}
    said["caote/table1 --published --format latex"] = "X+CAOTE & yes"  # an item without columns
    for words, text in said.items():
        assert run(*words.split()) == 0
        out = capsys.readouterr().out
        assert text in out and "SMOKE" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["obcache/tabel1"], "did you mean obcache/table1?"),
        (["obcache/table1", "task.smaples=2"], "unknown setting task.smaples"),
        (["obcache/table1", "--format", "pdf"], "allowed: csv, html, json, latex"),
        (["obcache/table1", "--plan", "--published"], "not allowed with"),
        (["obcache/table1", "--plot", "x.png"], "is a table"),
        (["list", "policy=h2o_obcache"], "takes no settings"),
    ],
)
def test_what_is_refused(words, message, capsys):
    assert run(*words) == 2
    assert message in capsys.readouterr().err


def test_a_plan_needs_no_model_and_runs_nothing(folder, capsys):
    assert run("obcache/table1", "--plan", f"results.dir={folder / 'none'}") == 0
    out = capsys.readouterr().out
    assert "12000 rows" in out and "192 cells" in out and "Llama-3.1-8B-Instruct" in out
    assert not (folder / "none").exists()
