"""scripts/examples: each runs, and prints what its README shows as far as that is the same on any processor."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.image import imread

import kvbench
from scripts.examples import (
    new_allocation,
    new_score,
    notebook,
    output_error,
    plain_python,
    plot_kept,
    plugin,
    read_rows,
)
from tests.models.families import tiny
from tests.models.tokenizers import of_bytes
from tests.plugins import made_up

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "scripts" / "examples" / "README.md").read_text("utf-8")
NUMBER = re.compile(r"\b[0-9a-f]{12,}\b|\b[0-9.]+\b")
EXAMPLES = sorted(path.name for path in (ROOT / "scripts" / "examples").glob("*.py"))


def shown(name: str) -> list[str]:
    """What the page says that an example prints."""
    block = re.search(rf"```bash\npython scripts/examples/{name}\.py.*?\n```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    return block[1].splitlines()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_on_the_page(name: str) -> None:
    assert len((ROOT / "scripts" / "examples" / name).read_text("utf-8").splitlines()) < 100
    assert f"({name})" in PAGE and shown(name.removesuffix(".py"))


def test_a_model_in_memory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    notebook.main([str(tmp_path / "kept.png")])
    printed, on_the_page = capsys.readouterr().out.splitlines(), shown("notebook")
    assert [line.partition("'")[0] for line in printed] == [line.partition("'")[0] for line in on_the_page]
    assert (printed[0], printed[3]) == (on_the_page[0], on_the_page[3])  # wrong answers may be others elsewhere
    assert (tmp_path / "kept.png").stat().st_size > 1000


def test_plain_python(capsys: pytest.CaptureFixture[str]) -> None:
    plain_python.main()
    printed = capsys.readouterr().out.splitlines()
    assert printed[:4] == shown("plain_python")[:4]  # with few pairs the wrong answer may be another one elsewhere
    assert len(printed) == 6 and printed[5].startswith("layer 0, head 0 keeps 64 pairs")


def test_a_new_score(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_score, "TASK", replace(new_score.TASK, samples=1))
    new_score.main()
    printed = capsys.readouterr().out.splitlines()
    as_shown = [re.sub(r" +\d+ of 12 ", " of ", line) for line in shown("new_score")]
    assert [re.sub(r" +\d+ of 1 ", " of ", line) for line in printed] == as_shown


def test_a_score_that_reads_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    output_error.main(samples=1)
    printed = capsys.readouterr().out.splitlines()
    as_shown = [re.sub(r" +\d+ of 12 ", " of ", line) for line in shown("output_error")]
    assert [re.sub(r" +\d+ of 1 ", " of ", line) for line in printed] == as_shown


def test_one_class_is_a_file_a_plugin_and_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the same pairs and gives the same answers; each way has cells of its own, by where the code is."""
    file = ROOT / "scripts" / "examples" / "output_error.py"
    named = file.read_text("utf-8").replace('"output_error"', '"output_error_plugin"')
    yaml = "# The error.\n_target_: errors.OutputError\nname: output_error_plugin\npower: 1.0\n"
    files = {"__init__.py": named, "conf/score/output_error_plugin.yaml": yaml}
    monkeypatch.delitem(sys.modules, "errors", raising=False)
    monkeypatch.syspath_prepend(str(made_up(tmp_path / "site", "errors", files)))
    tokenizer = of_bytes(begin=True)
    result = kvbench.Bench(tiny("llama", vocab_size=len(tokenizer)), tokenizer).compare(
        [str(file), output_error.OutputError(), "output_error_plugin", "attn"],
        budgets=0.3,
        data=[("The sky is blue. " * 12 + "The sky is", "blue")],
        **{"task.max_new_tokens": 3},
    )
    rows = result.frame[result.frame["policy"] == "snapkv"].set_index("score")
    ours = rows.loc[["output_error", "output_error_plugin"]]
    assert len(ours) == 3 and ours["cell"].nunique() == 3
    assert ours["kept_sha256"].nunique() == ours["prediction"].nunique() == 1
    assert rows.loc["attn", "kept_sha256"] not in {*ours["kept_sha256"]}


def test_a_new_allocation(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_allocation, "TASK", replace(new_allocation.TASK, samples=1))
    new_allocation.main()
    printed = [line.partition(";")[0] for line in capsys.readouterr().out.splitlines()]
    assert printed == [line.partition(";")[0] for line in shown("new_allocation")]
    with pytest.raises(ValueError, match="the middle keeps 1 time as much or more"):
        new_allocation.MiddleLayers(times=0.5)


def test_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """The committed rows are measured anew from time to time: only what is no number is the same."""
    read_rows.main()
    printed, on_the_page = capsys.readouterr().out.splitlines(), shown("read_rows")
    assert [NUMBER.sub(" # ", line).split() for line in printed] == [
        NUMBER.sub(" # ", line).split() for line in on_the_page
    ]


def test_kept_positions_are_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot_kept.main([str(tmp_path / "kept.png")])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == shown("plot_kept")[0] and printed[-1] == "drawn: kept.png"
    assert [line.split()[0] for line in printed[:-1]] == list(plot_kept.POLICIES)
    drawn, committed = imread(tmp_path / "kept.png"), imread(ROOT / "docs" / "images" / "tutorial-kept.png")
    assert drawn.shape == committed.shape and abs(drawn - committed).mean() < 0.002, "stale: make pictures"


@pytest.mark.slow
def test_a_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    """tests/support/test_plugins.py builds and runs the same package in the fast suite."""
    plugin.main()
    printed = capsys.readouterr().out.splitlines()
    assert printed[:5] == shown("plugin")[:5]
    assert sum(line.startswith("| snapkv |") for line in printed) == 3
