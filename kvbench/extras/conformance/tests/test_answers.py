"""`kvbench conform` on golden files of scores and prompts: every case matches, and what does not fails by its name."""

import hashlib
import json
from pathlib import Path

import pytest

from kvbench.cli.main import run_command
from tests.repository import GOLDEN

SCORES = ("longbench_unit.jsonl", "ruler_match.jsonl", "infinitebench_edge_cases.json")


def test_committed_scores_match(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("conform", [str(GOLDEN / "metrics" / name) for name in SCORES]) == 0
    out = capsys.readouterr().out.splitlines()
    assert all(line.startswith("PASS  ") for line in out[:-1])
    assert out[-1] == f"{len(out) - 1} of {len(out) - 1} cases match" and len(out) > 60


def test_committed_prompts_match(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that no third-party text is in."""
    assert run_command("conform", [str(path) for path in sorted(GOLDEN.glob("ruler/era2026_2048/*.jsonl"))]) == 0
    assert "PASS  era2026_2048/vt.jsonl row 1 (prompt " in capsys.readouterr().out


def test_everything_given_matches(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers, files of answers and LongBench's cuts; prompts that are compared elsewhere are left out."""
    given = shared / "golden" / "metrics"
    names = ("longbench_cases.jsonl", "infinitebench_files.jsonl", "longbench_truncation.json")
    assert run_command("conform", [f"data.root={shared / 'data'}", *(str(given / name) for name in names)]) == 0
    out = capsys.readouterr().out
    assert "PASS  infinitebench/code_debug yi-34b-200k, loose, n=394" in out and "FAIL" not in out
    assert "PASS  longbench/trec " in out and "none  infinitebench/longbook_choice_eng chatglm3" in out


def test_what_differs_is_named_with_both_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in (GOLDEN / "metrics" / "longbench_unit.jsonl").read_text().splitlines()[:3]]
    lines[1]["official"] = 0.25
    lines.append({"fn": "qa_f1", "pred": "", "ground_truth": "", "official": 0})
    file = tmp_path / "unit.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    odd = tmp_path / "odd.json"
    odd.write_text('{"choice \\"B\\" vs B": 0.0, "gibberish": 1.0}')
    assert run_command("conform", [str(file), str(odd)]) == 5
    out = capsys.readouterr().out
    assert "FAIL  qa_f1_score empty: got 0.0, expected 0.25" in out
    assert "FAIL  unit.jsonl line 4: there is no metric qa_f1 of LongBench" in out
    assert 'FAIL  choice "B" vs B: got 1.0, expected 0.0' in out and "cannot read 'gibberish'" in out
    assert "2 of 6 cases match" in out


def predictions(folder: Path, model: str, task: str, official: float, *rows: dict[str, object]) -> str:
    """A file of answers beside the folder of golden rows, and the golden row about it."""
    path = folder / "infinitebench_predictions" / model / f"preds_{task}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return json.dumps({"model": model, "task": task, "official_88b3daa": official, "lava": official, "sha256": sha256})


def test_answers_of_gpt4_to_math_calc_lose_their_first_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """compute_scores.py: `if model_name == "gpt4": pred_nums = pred_nums[1:]`. By hand: (2/2 + 1/2) / 2 and 0."""
    rows = ({"prediction": "1 7 8", "ground_truth": [7, 8]}, {"prediction": "[5, 7, 9]", "ground_truth": [7, 8]})
    lines = [
        predictions(tmp_path, model, "math_calc", score, *rows) for model, score in (("gpt4", 0.75), ("kimi", 0.0))
    ]
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "files.jsonl").write_text("\n".join(lines))
    assert run_command("conform", [str(tmp_path / "metrics" / "files.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "PASS  infinitebench/math_calc gpt4, official_88b3daa, n=2 (0.75)" in out and "4 of 4 cases match" in out


def test_answers_have_either_name_of_the_official_scorer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """get_preds takes `prediction`, else `pred`, by row; get_labels the name that the first row has, for all."""
    rows = (
        {"pred": "The key is 12345.", "label": "12345"},
        {"prediction": "12345", "pred": "0", "label": "12345", "ground_truth": "0"},
        {"pred": "1", "label": "2"},
        {"pred": "3", "label": "3"},
    )
    lines = [
        predictions(tmp_path, "a", "passkey", 0.75, *rows),
        predictions(tmp_path, "b", "passkey", 0.0, *rows[:1], {"id": 1}),
    ]
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "files.jsonl").write_text("\n".join([*lines, lines[0]]))
    assert run_command("conform", [str(tmp_path / "metrics" / "files.jsonl")]) == 5
    out = capsys.readouterr().out
    assert out.count("PASS  infinitebench/passkey a, official_88b3daa, n=4 (0.75)") == 2
    assert "preds_passkey.jsonl line 2 has id: it needs prediction or pred, and label" in out and "KeyError" not in out
    assert "4 of 5 cases match" in out


def test_a_row_of_unknown_shape_stops_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit = (GOLDEN / "metrics" / "longbench_unit.jsonl").read_text().splitlines()[:2]
    (tmp_path / "unit.jsonl").write_text("\n".join([unit[0], '{"answer": 1, "note": ""}', "7", "{}", unit[1]]))
    ruler = (GOLDEN / "ruler" / "era2026_2048" / "vt.jsonl").read_text().splitlines()[:2]
    folder = tmp_path / "era2026_2048"
    folder.mkdir()
    (folder / "vt.jsonl").write_text("\n".join(['{"inputs": ""}', ruler[1]]))
    files = (str(tmp_path / "unit.jsonl"), str(folder / "vt.jsonl"))
    assert run_command("conform", [f"tokenizer={GOLDEN / 'ruler' / 'tokenizer'}", *files]) == 5
    out = capsys.readouterr().out
    assert "FAIL  unit.jsonl: line 2 has answer, note: cannot be checked; allowed: the fields " in out
    assert "line 3 is a int: cannot be checked" in out and "line 4 has nothing: cannot be checked" in out
    assert "FAIL  vt.jsonl: line 1 has inputs: cannot be checked" in out and "PASS  era2026_2048/vt.jsonl row 1 " in out
    assert "4 of 8 cases match" in out  # two answers; prompt and answers of the second sample


def test_a_changed_prompt_is_shown_where_it_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = json.loads((GOLDEN / "ruler" / "era2026_2048" / "vt.jsonl").read_text().splitlines()[0])
    folder = tmp_path / "era2026_2048"
    folder.mkdir()
    (folder / "vt.jsonl").write_text(json.dumps(row | {"input": "Memorise" + row["input"][8:]}))
    assert run_command("conform", [f"tokenizer={GOLDEN / 'ruler' / 'tokenizer'}", str(folder / "vt.jsonl")]) == 5
    out = capsys.readouterr().out
    assert "FAIL  era2026_2048/vt.jsonl row 0: prompt: got 'ze and" in out and "from character 6" in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no case that can be checked here"),
        ("{", "not JSON in UTF-8"),
        ("[1]", "line 1 is a list"),
        ('{"a": 1}', "line 1 has a"),
        ('{"fn": "count_score", "pred": 3, "ground_truth": "", "official": 0}', "cannot be read: TypeError"),
        ('{"model": "m", "task": "passkey", "official_88b3daa": 1, "sha256": ""}', "no case that can be checked here"),
        ('{"input": "", "outputs": []}', "rows of RULER must be in a folder such as era2026_4096"),
    ],
    ids=["empty", "cut", "list", "other", "type", "absent", "folder"],
)
def test_a_file_of_no_case_is_a_failure(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cases.jsonl").write_text(content)
    assert run_command("conform", [str(tmp_path / "cases.jsonl")]) == 5
    out = capsys.readouterr().out
    assert "FAIL  cases.jsonl" in out and message in out


def test_settings_are_checked() -> None:
    for argument in ("data.rot=x", "data.root=x"):
        with pytest.raises(ValueError, match=r"(name a file of golden cases|conform takes files)"):
            run_command("conform", [argument])
    with pytest.raises(ValueError, match="conform: unknown flag --data"):
        run_command("conform", ["--data", "x"])
