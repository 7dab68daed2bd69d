"""Prompts go out whole, answers come back as rows: from our lines, samples of lm-eval and folders of kvpress."""

import csv
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cli.main import main
from kvbench.extras.servers.kvpress_folder import right_answers
from kvbench.extras.servers.tests.stub import FOLDER, TOKENIZER
from kvbench.records import Row, read_rows
from kvbench.support.errors import UserError
from kvbench.tasks.longbench import LENGTHS, PROMPTS
from tests.repository import GOLDEN

TASK = [f"model.path={FOLDER}", "task.context_length=512", "task.samples=4"]
LABELS = ["endpoint.method=snapkv", "endpoint.budget=0.5"]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    assert main(["prompts", *TASK, "--out", str(file)]) == 0
    text = file.read_text()
    assert main(["prompts", *TASK, "--out", str(file)]) == 0 and file.read_text() == text  # the same again
    file.write_text("mine\n")
    assert main(["prompts", *TASK, "--out", str(file)]) == 2 and file.read_text() == "mine\n"  # nothing is overwritten
    return [json.loads(line) for line in text.splitlines()]


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def adopt(source: Path, results: Path, *more: str) -> int:
    return main(["adopt", str(source), *TASK, f"results.dir={results}", *more])


def rows_of(folder: Path) -> list[Row]:
    return sorted(read_rows(folder, warn=lambda text: None), key=lambda row: row.sample)


def ours(prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Right answers to all prompts but the first."""
    answers = ["no", *(prompt["answers"][0] for prompt in prompts[1:])]
    return [{**prompt, "answer": f" {answer}"} for prompt, answer in zip(prompts, answers, strict=True)]


def test_a_prompt_is_written_whole(prompts: list[dict[str, Any]]) -> None:
    assert [prompt["sample"] for prompt in prompts] == [0, 1, 2, 3]
    for prompt in prompts:
        assert hashlib.sha256(prompt["text"].encode()).hexdigest() == prompt["prompt_sha256"]
        assert TOKENIZER(prompt["text"]).input_ids == prompt["ids"] and prompt["answers"][0] in prompt["text"]


def test_our_lines_become_rows(tmp_path: Path, prompts: list[dict[str, Any]]) -> None:
    file = written(tmp_path / "answers.jsonl", [{**line, "kept_fraction": 0.5} for line in ours(prompts)])
    assert adopt(file, tmp_path / "rows", *LABELS) == 0
    rows = rows_of(tmp_path / "rows")
    assert [row.value for row in rows] == [0.0, 1.0, 1.0, 1.0]
    assert [row.prompt_sha256 for row in rows] == [prompt["prompt_sha256"] for prompt in prompts]
    assert {(row.policy, row.budget, row.kept_fraction, row.cache_bytes) for row in rows} == {
        ("snapkv", "0.5", 0.5, None)
    }
    assert adopt(file, tmp_path / "rows", *LABELS) == 0 and len(rows_of(tmp_path / "rows")) == 4


def test_adopted_answers_pair_with_ours_of_a_score(
    tmp_path: Path, prompts: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """With two scores of ours the one that is named is compared, although adopted rows name none."""
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    file = written(tmp_path / "mine.jsonl", [{**line, "answer": line["answers"][0]} for line in prompts])
    assert main(["adopt", str(file), *TASK, *LABELS, f"results.dir={theirs}"]) == 0
    local = [word for word in TASK if not word.startswith("model.path=")]
    run = ["run", *local, "policy=snapkv", "score=attn,obcache_joint", "budget=0.5", "reference=none", "--quiet"]
    assert main([*run, f"results.dir={ours}"]) == 0
    capsys.readouterr()
    assert main(["compare", ours, theirs]) == 2
    assert "add score=attn or score=obcache_joint to it" in capsys.readouterr().err
    assert main(["compare", ours, theirs, "score=attn"]) == 0
    assert f"B: {theirs} score=attn" in capsys.readouterr().out.replace("\n", " ")
    assert main(["compare", ours, theirs, "policy=h2o"]) == 4


Lines = list[dict[str, Any]]
FORMS: dict[str, Callable[[Lines], Lines]] = {
    "lm-eval": lambda lines: [{"arguments": [[p["text"], {}]], "resps": [[p["answer"]]]} for p in lines],
    "lm-eval by name": lambda lines: [
        {"arguments": {"gen_args_0": {"arg_0": p["text"]}}, "resps": [[p["answer"]]], "filtered_resps": ["other"]}
        for p in lines
    ],
    "chats and equal repeats of lm-eval": lambda lines: [
        {"arguments": [[json.dumps([{"role": "user", "content": p["text"]}]), {}]], "resps": [[p["answer"]] * 3]}
        for p in lines
    ],
    "LongBench": lambda lines: [
        {"prompt": p["text"], "pred": p["answer"], "answers": p["answers"], "all_classes": None, "length": 9}
        for p in lines
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_lines_of_other_tools_become_rows(tmp_path: Path, prompts: list[dict[str, Any]], form: str) -> None:
    file = written(tmp_path / "samples.jsonl", FORMS[form](ours(prompts)))
    assert adopt(file, tmp_path / "rows", *LABELS, "--kept", "0.25") == 0
    rows = rows_of(tmp_path / "rows")
    assert [row.value for row in rows] == [0.0, 1.0, 1.0, 1.0] and {row.kept_fraction for row in rows} == {0.25}


def test_a_chat_of_several_turns_is_found(tmp_path: Path) -> None:
    turns = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]
    mine = written(tmp_path / "mine.jsonl", [{"messages": turns, "answers": ["Anna"]}])
    task = [f"model.path={FOLDER}", "task=jsonl", f"task.path={mine}", *LABELS]
    source = written(tmp_path / "samples.jsonl", [{"arguments": [[json.dumps(turns)]], "resps": [["Anna"]]}])
    assert main(["adopt", str(source), *task, f"results.dir={tmp_path / 'rows'}"]) == 0
    assert [row.value for row in rows_of(tmp_path / "rows")] == [1.0]


def kvpress_folder(folder: Path, config: str, rows: list[tuple[str, str, str]]) -> Path:
    """A folder of kvpress: rows of right answers as they are printed, question and prediction."""
    folder.mkdir()
    (folder / "config.yaml").write_text(config)
    with (folder / "predictions.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("answer", "question", "predicted_answer"), *rows])
    return folder


def test_a_folder_of_kvpress(tmp_path: Path, capsys: pytest.CaptureFixture[str], prompts: list[dict[str, Any]]) -> None:
    """Secrets of its settings are not kept; a part of it is refused."""
    rows = []
    for line in ours(prompts):
        question = line["text"][line["text"].index("\nWhat is") :].partition("? ")[0] + "?"
        rows.append((str(line["answers"]), question, line["answer"]))
    config = "press_name: snapkv\ncompression_ratio: 0.8\n"
    part = kvpress_folder(tmp_path / "part", config, rows[1:2])
    assert adopt(part, tmp_path / "rows") == 2 and not (tmp_path / "rows" / "rows").exists()
    assert "3 of 4 prompts have no answer" in " ".join(capsys.readouterr().err.split())
    assert adopt(kvpress_folder(tmp_path / "whole", f"{config}hf_token: secret-1\n", rows), tmp_path / "rows") == 0
    adopted = rows_of(tmp_path / "rows")
    assert [row.value for row in adopted] == [0.0, 1.0, 1.0, 1.0]
    assert {(row.policy, row.budget, row.kept_fraction) for row in adopted} == {("snapkv", "0.2", None)}
    texts = [path.read_text() for path in (tmp_path / "rows").rglob("*.json*") if path.is_file()]
    assert any("compression_ratio" in text for text in texts) and not any("secret-1" in text for text in texts)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=1, max_size=12))
def test_several_answers_are_read_as_numpy_prints_them(texts: list[str]) -> None:
    import numpy

    assert list(right_answers(str(numpy.array(texts, dtype=object)), "row 1")) == texts
    assert list(right_answers(str(texts), "row 1")) == texts


def test_answers_that_numpy_left_out_are_asked_for() -> None:
    with pytest.raises(UserError, match="row 7: numpy has left out"):
        right_answers("['a' 'b' ... 'y' 'z']", "row 7")


def test_a_press_without_a_share_is_asked_for_its_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a threshold; others are below, as evaluate.py wrote them."""
    folder = kvpress_folder(tmp_path / "folder", "press_name: kvzap_mlp\nthreshold: -4.0\n", [("['1']", "q", "1")])
    assert adopt(folder, tmp_path / "rows") == 2
    assert "endpoint.budget=0.2" in " ".join(capsys.readouterr().err.split())


def test_what_is_missing_and_what_is_none(tmp_path: Path, prompts: list[dict[str, Any]]) -> None:
    some = written(tmp_path / "some.jsonl", ours(prompts)[:3])
    assert adopt(some, tmp_path / "some", *LABELS) == 4
    assert "no answer to this prompt" in str(rows_of(tmp_path / "some")[3].error)
    others = written(tmp_path / "others.jsonl", [{"prompt_sha256": "0" * 64, "answer": "x"}])
    assert adopt(others, tmp_path / "none", *LABELS) == 2 and not (tmp_path / "none" / "rows").exists()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "holds no line"),
        ("not json\n", "line 1: not JSON"),
        ("[" * 20000 + "\n", "line 1: nested too deeply"),
        (f'{{"prompt_sha256": "0", "answer": "x", "more": {"9" * 9000}}}\n', "line 1: not JSON"),
        ('{"prompt_sha256": "0", "answer": "a", "answer": "b"}\n', "line 1: not JSON: the key 'answer' stands in"),
        ('{"pred": "half \\ud83d", "prompt": "p"}\n', "line 1: its pred has an incomplete character"),
        (
            '{"arguments": ["[{\\"role\\": \\"user\\", \\"content\\": \\"half \\\\ud83d\\"}]"], "resps": [["a"]]}\n',
            "none of its 1 prompts",
        ),
        ('{"pred": "x", "answers": ["x"], "all_classes": null, "length": 7}\n', "not to ruler/niah_single_1"),
        ('{"prompt_sha256": "0", "prediction": "x"}\n', "no texts prompt_sha256 and answer"),
        ('{"pred": "x", "answers": ["x"], "all_classes": null}\n', "the prompt of pred is not known"),
        ('{"arguments": [], "resps": []}\n', "no prompt in arguments"),
        ('{"arguments": ["p"], "resps": [["a", "b", "b"]]}\n', "line 1: resps has 2 answers that differ"),
        ('{"arguments": ["half \\ud83d"], "resps": [["a"]]}\n', "line 1: its prompt has an incomplete character"),
        ('{"prompt_sha256": "0", "answer": "\\ud83d"}\n', "line 1: its answer has an incomplete character"),
        *(
            (f'{{"prompt_sha256": "0", "answer": "x", "kept_fraction": {share}}}\n', f"kept_fraction is {said}")
            for share, said in (("3", "3"), ("-0.5", "-0.5"), ("NaN", "nan"), ("true", "True"), ('"1"', "'1'"))
        ),
    ],
)
def test_files_that_hold_no_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, part: str) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(text)
    assert adopt(file, tmp_path / "rows", *LABELS) == 2
    assert part in " ".join(capsys.readouterr().err.split())


def test_bytes_that_are_no_utf_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, folder = tmp_path / "answers.jsonl", kvpress_folder(tmp_path / "folder", "press_name: no_press\n", [])
    lines.write_bytes('{"prompt_sha256": "0", "answer": "é"}\n'.encode("latin-1"))
    (folder / "predictions.csv").write_bytes("question,answer,predicted_answer\né,é,é\n".encode("latin-1"))
    for source in (lines, folder):
        assert adopt(source, tmp_path / "rows", *LABELS) == 2
        assert "not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "cell", "part"),
    [
        ("", "{[]:1}", "none of its 1 prompts"),
        ("", "[0x" + "f" * 9000 + "]", "row 1: one of its right answers is a number of too many digits"),
        ("", "[{}]", "row 1: one of its right answers is a dict"),
        ("press_name: " + "[" * 20000, "1", "config.yaml: nested too deeply"),
        ("press_name: {a: 1}\n", "1", "press_name is a dict"),
        ("- press_name\n", "1", "config.yaml: allowed: names with values"),
        *(
            (f"press_name: snapkv\n{name}: {value}\n", "1", f"{name} is {said}: allowed: a share from 0 to 1")
            for name, value, said in (
                ("compression_ratio", "1.5", "1.5"),
                ("compression_ratio", "'0.5'", "'0.5'"),
                ("fraction", ".nan", "nan"),
            )
        ),
    ],
)
def test_folders_of_kvpress_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, cell: str, part: str
) -> None:
    folder = kvpress_folder(tmp_path / "folder", config, [(cell, "q", "1")])
    assert adopt(folder, tmp_path / "rows", *LABELS) == 2
    assert part in " ".join(capsys.readouterr().err.split())


def longbench_rows(root: Path, name: str, answers: list[list[str]]) -> list[dict[str, Any]]:
    """Rows of a task of LongBench under a data root, and its two tables."""
    same = {"input": "Which?", "all_classes": None}
    rows = [
        {"context": f"Text {n}.", "answers": right, "length": 100 + n, "_id": str(n), **same}
        for n, right in enumerate(answers)
    ]
    folder = root / "longbench"
    (folder / "config").mkdir(parents=True)
    written(folder / f"{name}.jsonl", rows)
    (root / PROMPTS).write_text(json.dumps({name: "{context} {input}"}))
    (root / LENGTHS).write_text(json.dumps({name: 8}))
    return rows


def predictions(rows: list[dict[str, Any]], answers: list[str]) -> list[dict[str, Any]]:
    """Lines as LongBench's pred.py writes them."""
    said = ("answers", "all_classes", "length")
    return [{"pred": text, **{name: row[name] for name in said}} for row, text in zip(rows, answers, strict=True)]


def test_lines_of_pred_py_belong_to_the_rows_in_their_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two rows have the same question and answers, and other contexts."""
    rows = longbench_rows(tmp_path / "data", "hotpotqa", [["Rome"], ["Rome"], ["Oslo"]])
    lines = predictions(rows, ["Rome", "Bern", "Oslo"])
    settings = [f"model.path={FOLDER}", "task=longbench/hotpotqa", "task.samples=3", *LABELS]
    settings += [f"data.root={tmp_path / 'data'}", "data.verify=false", f"results.dir={tmp_path / 'rows'}"]
    wrong = [
        (lines[:2], "has 2 lines, and longbench/hotpotqa.jsonl 3 rows"),
        ([lines[1], lines[0], lines[2]], "line 1: length is 101, but in the row of longbench/hotpotqa.jsonl it is 100"),
        ([*lines[:2], {**lines[2], "answers": ["oslo"]}], "line 3: answers is ['oslo']"),
        ([*lines[:2], {**lines[2], "all_classes": ["a"]}], "line 3: all_classes is ['a']"),
        ([{**lines[0], "prompt": "p"}, *lines[1:]], "lines with a prompt and without one"),
    ]
    for number, (content, part) in enumerate(wrong):
        assert main(["adopt", str(written(tmp_path / f"{number}.jsonl", content)), *settings]) == 2
        assert part in " ".join(capsys.readouterr().err.split()) and not (tmp_path / "rows" / "rows").exists()
    assert main(["adopt", str(written(tmp_path / "pred.jsonl", lines)), *settings]) == 0
    assert [row.value for row in rows_of(tmp_path / "rows")] == [1.0, 0.0, 1.0]


def test_lines_of_pred_py_on_rows_of_longbench(tmp_path: Path, shared: Path) -> None:
    """Right answers to a task with classes score 100 %."""
    root = shared / "data"
    rows = [json.loads(line) for line in (root / "longbench" / "trec.jsonl").read_text("utf-8").splitlines()]
    source = written(tmp_path / "trec.jsonl", predictions(rows, [row["answers"][0] for row in rows]))
    settings = ["task=longbench/trec", f"task.samples={min(4, len(rows))}", f"data.root={root}", *LABELS]
    assert main(["adopt", str(source), f"model.path={FOLDER}", *settings, f"results.dir={tmp_path / 'rows'}"]) == 0
    assert {row.value for row in rows_of(tmp_path / "rows")} == {1.0}


WRITTEN = GOLDEN / "kvpress"
"""Folders by the evaluate.py of kvpress (`scripts/golden_kvpress.py`), and the rows that it read."""
KINDS = ("vt", "niah_multivalue", "niah_multiquery", "qa_1", "cwe", "fwe")


def adopt_written(name: str, kind: str, root: Path, *more: str, samples: int = 2) -> int:
    """Adopt a folder of kvpress for a task, whose rows are a Parquet file under `root`."""
    file = root / "data" / "ruler" / "simonjegou" / "4096" / "test-00000-of-00001.parquet"
    if not file.is_file():
        file.parent.mkdir(parents=True)
        read = [json.loads(line) for line in (WRITTEN / "rows.jsonl").read_text("utf-8").splitlines()]
        parquet.write_table(pa.Table.from_pylist(read), file)
    task = [f"task=ruler_published/{kind}", "task.context_length=4096", f"task.samples={samples}"]
    task += [f"model.path={FOLDER}"]
    settings = [f"data.root={root / 'data'}", "data.verify=false", f"results.dir={root / 'rows'}", *more]
    return main(["adopt", str(WRITTEN / name), *task, *settings])


@pytest.mark.parametrize("kind", KINDS)
def test_what_evaluate_py_wrote_is_adopted_whole(tmp_path: Path, kind: str) -> None:
    """Every answer is that of its row, and the mean that of metrics.json; the two rows of cwe and fwe look alike."""
    folder = WRITTEN / "ruler__4096__reference__knorm__0.50"
    assert adopt_written(folder.name, kind, tmp_path) == 0
    rows = rows_of(tmp_path / "rows")
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        said = [line["predicted_answer"] for line in csv.DictReader(file) if line["task"] == kind]
    assert [row.prediction for row in rows] == said and {row.budget for row in rows} == {"0.5"}
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    assert 100 * sum(row.value for row in rows) / 2 == pytest.approx(metrics[kind]["string_match"], abs=0.01)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ruler__4096__reference__think__1.00__key_channel_cr0.50", "name what it keeps, such as endpoint.budget=0.2"),
        ("ruler__4096__reference__decoding_knorm__1.00", "name what it keeps, such as endpoint.budget=0.2"),
        ("ruler__4096__reference__knorm__0.50__query_aware", "query_aware: true"),
    ],
)
def test_what_evaluate_py_wrote_without_a_share_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, part: str
) -> None:
    assert adopt_written(name, "vt", tmp_path) == 2
    assert part in " ".join(capsys.readouterr().err.split())
    if "query_aware" not in name:
        assert adopt_written(name, "vt", tmp_path, "endpoint.budget=0.2") == 0


def test_rows_that_look_alike_are_refused_where_order_cannot_tell_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert adopt_written("ruler__4096__reference__knorm__0.50", "cwe", tmp_path, samples=1) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "several answers and the file has no contexts" in said
