"""`kvbench recommend` on the embedded model: its rounds, what it prints, and rows as `kvbench run` makes them."""

import io
import json
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from kvbench.cli.main import main
from kvbench.extras.recommend.recommend import need_of
from kvbench.records import ResultsFolder
from kvbench.records.rows import read_rows

BASE = "task=ruler/niah_single_1 task.context_length=256 task.max_new_tokens=8 task.samples=12"
METHODS = "policy=streaming_llm,snapkv budget=0.3 alpha=0.9 loss=40"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A recommendation and its folder."""
    folder = tmp_path_factory.mktemp("recommend")
    out = folder / "found.json"
    line = f"recommend {BASE} {METHODS} memory=1GiB requests=3 results.dir={folder / 'rows'} --out {out}"
    said = io.StringIO()
    with redirect_stderr(said):
        assert main(line.split()) == 0
    assert f"wrote {out}" in said.getvalue()
    return folder / "rows", json.loads(out.read_text())


def test_a_method_that_loses_leaves_and_the_other_goes_on(done: tuple[Path, dict]) -> None:
    _, found = done
    assert (found["requests"], found["tolerated"], found["memory"], found["full_fits"]) == (3, 0.4, 2**30, True)
    methods = {line["policy"]: line for line in found["methods"]}
    assert methods["streaming_llm"]["verdict"] == "worse" and methods["streaming_llm"]["n"] == 8
    assert methods["streaming_llm"]["low"] <= methods["streaming_llm"]["loss"] <= methods["streaming_llm"]["high"]
    assert methods["snapkv"]["verdict"] in ("not worse", "inconclusive") and methods["snapkv"]["loss"] < 0.4
    full = found["full"]
    assert methods["snapkv"]["decode_bytes"] < full["decode_bytes"] < full["prefill_bytes"]
    assert methods["snapkv"]["requests"] > full["requests"] > 3
    assert any("schedule.evict_after=context" in text for text in found["assumed"])


def test_rows_are_those_of_a_run_and_are_not_made_again(
    done: tuple[Path, dict], capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of one of its methods finds the rows; the same command makes none and says the same."""
    folder, found = done
    rows = read_rows(folder)
    samples = {row.sample for row in rows if row.policy == "streaming_llm"}
    assert samples == set(range(8))
    run = f"run {BASE.replace('samples=12', 'samples=8')} policy=snapkv budget=0.3 results.dir={folder}"
    assert main(run.split()) == 0
    assert "all 16 rows are in" in capsys.readouterr().err
    line = f"recommend {BASE} {METHODS} memory=1GiB requests=3 results.dir={folder} --json"
    assert main(line.split()) == 0
    again = json.loads(capsys.readouterr().out)
    assert again == found and len(read_rows(folder)) == len(rows)
    assert ResultsFolder(str(folder)).read_requested() == {
        line["cell"]: line["n"] if line["verdict"] == "worse" else found["prompts"]
        for line in (*found["methods"], found["full"])
    }


def test_the_page_and_the_table(done: tuple[Path, dict], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = done
    page = folder.parent / "page.html"
    line = f"recommend {BASE} {METHODS} results.dir={folder}"
    assert main(line.split()) == main([*line.split(), "--out", str(page)]) == 0
    text = capsys.readouterr().out
    assert "no limit of memory" in text and "at once" not in text and "streaming_llm" in text
    assert "<html" in page.read_text() and "tolerated loss 40 points" in page.read_text()


@pytest.mark.parametrize(("end", "settings"), [("floor", "task.max_new_tokens=1"), ("ceiling", "budget=0.9")])
def test_nothing_is_recommended_by_answers_that_tell_nothing(
    end: str, settings: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = "task=ruler/niah_single_1 task.context_length=256 task.max_new_tokens=8 task.samples=2 budget=0.3"
    words = [word for word in base.split() if word.partition("=")[0] != settings.partition("=")[0]]
    assert main(["recommend", *words, settings, "policy=snapkv", f"results.dir={tmp_path / 'rows'}"]) == 5
    done = capsys.readouterr()
    assert done.out == "" and f"at the {end}" in done.err.splitlines()[-1]


def test_own_prompts_are_read_to_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing fits into less than the weights; the message counts what the longest line takes."""
    data = tmp_path / "mine.jsonl"
    lines = [{"context": "Grass is green. " * n, "question": "Which colour?", "answers": ["green"]} for n in (3, 60)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["recommend", f"data={data}", "memory=16MiB", f"results.dir={tmp_path / 'rows'}"]) == 2
    message = capsys.readouterr().err
    assert "memory=16.0 MiB is too small: weights take 17.0 MiB" in message and "streaming_llm at budget=0.1" in message
    assert not (tmp_path / "rows").exists()


def test_a_need_that_is_none() -> None:
    allowed = {"memory=2": "bytes with a unit", "loss=100": "points", "alpha=nan": "", "alpha=0": "", "requests=0": ""}
    for setting, values in allowed.items():
        with pytest.raises(ValueError, match=f"{setting}: allowed: {values}"):
            need_of(dict([setting.split("=")]))
