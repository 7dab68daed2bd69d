"""Rows of InfiniteBench: prompts by template, split behind the context, refused where they are not the benchmark's."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvbench.tasks.task import InvalidSample, Sample
from tests.tasks.infinitebench.conftest import Words, make, row, write

GOLDEN = Path(__file__).parents[2] / "golden" / "infinitebench" / "prompt_sha256.json"
HASHES = json.loads(GOLDEN.read_text("utf-8"))


@pytest.mark.parametrize("member", HASHES)
def test_the_prompts_of_real_rows_are_the_official_ones(member: str, shared: Path):
    """Written down from the official formatting of the row, and formatted again here."""
    root = shared / "data"
    text = json.loads((root / "infinitebench" / "prompts.json").read_text("utf-8"))["yarn_mistral_templates"][member]
    lines = (root / "infinitebench" / f"{member}.jsonl").read_text("utf-8").splitlines()
    samples = list(make(f"infinitebench/{member}", root).generate(Words(), range(len(HASHES[member]))))
    for sample, line, digest in zip(samples, lines, HASHES[member], strict=True):
        assert sample.prompt == official(text, json.loads(line))
        assert hashlib.sha256(sample.prompt.encode()).hexdigest() == digest
        assert sample.question and sample.references


def official(text: str, given: dict[str, Any]) -> str:
    """The prompt as `str.format` makes it."""
    call = (re.findall(r"func_\d+\(-?\d+\)", given["input"]) or [""])[0]
    name = (re.findall("The .+ of", given["input"]) or [""])[0].lower()[:-3]
    named = {"func": call.split("(")[0], "func_call": call, "prefix": f"What is {name} in the following list?"}
    return text.format(context=given["context"], input=given["input"], question=given["input"], **named)


def test_gpt4_is_asked_sums_without_words_and_says_the_first_number(root: Path):
    task = make("infinitebench/math_calc", root, templates="gpt4")
    (sample,) = task.generate(Words(), [0])
    assert sample.prompt == "a {b} {0} text" and task.version.endswith("-gpt4.2")
    assert task.score("9 1 2", sample) == 0.5


def test_a_label_in_a_list_is_taken_out_of_it(root: Path):
    for fixed, name, value in ((True, "infinitebench_official_label_fix", 1.0), (False, "infinitebench_official", 0.0)):
        task = make("infinitebench/kv_retrieval", root, label_fix=fixed)
        (sample,) = task.generate(Words(), [0])
        assert task.metric == name and task.score("it is x", sample) == value
    write(root, "kv_retrieval", row("kv_retrieval", answer="x"))
    (sample,) = make("infinitebench/kv_retrieval", root, label_fix=False).generate(Words(), [0])
    assert make("infinitebench/kv_retrieval", root, label_fix=False).score("x", sample) == 1.0


def test_the_scorer_is_a_setting_and_any_name_of_the_dialogue_counts_officially(root: Path):
    for scorer, value in (("official", 1.0), ("official_88b3daa", 0.0), ("loose", 1.0)):
        task = make("infinitebench/longdialogue_qa_eng", root, scorer=scorer)
        sample = Sample(0, task.name, "", "", "", ("ACE", "Ace Rothstein"), 1)
        assert task.metric == f"infinitebench_{scorer}" and task.score("maybe aces", sample) == value


@pytest.mark.parametrize(
    ("member", "fields", "message"),
    [
        ("passkey", {"input": None}, "passkey.jsonl:1: its input is null, not a text"),
        ("passkey", {"answer": []}, "its answer is []: a text, a number or a list"),
        ("passkey", {"answer": [""]}, "holds an empty text"),
        ("passkey", {"answer": ["1", "2"]}, "has 2 labels, passkey has one"),
        ("math_find", {"answer": ["many"]}, "the label 'many' is not a number"),
        ("math_find", {"input": "Largest?"}, "names no number as"),
        ("math_calc", {"answer": "[1, 2"}, "a list of whole numbers"),
        ("math_calc", {"answer": "[" * 100_000}, "a list of whole numbers"),
        ("math_calc", {"answer": [1.5]}, "a list of whole numbers"),
        ("code_run", {"input": "func_x(1)"}, "calls no function"),
        ("code_debug", {"options": ["one", "two"]}, "a list of four texts"),
        ("longbook_choice_eng", {"answer": ["five"]}, "'five' is none of its options"),
        ("longbook_choice_eng", {"answer": ["one", "two"]}, "has 2 labels"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_row_that_is_not_the_benchmarks_is_named(root: Path, member: str, fields: dict, message: str):
    lines = [json.dumps(row(member, **fields)), json.dumps(row(member))]
    (root / "infinitebench" / f"{member}.jsonl").write_text("\n".join(lines), "utf-8")
    spoilt, good = make(f"infinitebench/{member}", root).generate(Words(), [0, 1])
    assert isinstance(spoilt, InvalidSample) and message in spoilt.error
    assert good.context.endswith("a {b} {0} text")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON in UTF-8"),
        ("[]", "has no yarn_mistral_templates with passkey"),
        ('{"claude2_templates": {}}', "task.templates is one of claude2"),
        ('{"yarn_mistral_templates": {"passkey": "{context} {book}"}}', "asks for {book}"),
    ],
)
def test_templates_that_are_none_are_named(root: Path, text: str, message: str):
    (root / "infinitebench" / "prompts.json").write_text(text, "utf-8")
    with pytest.raises(ValueError, match=re.escape(message)):
        list(make("infinitebench/passkey", root).generate(Words(), [0]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scorer": "kvpress"}, "task.scorer=kvpress.*'official_88b3daa' or 'loose'"),
        ({"member": "book"}, "task.member=book .*passkey, number_string"),
        ({"samples": 0}, "task.samples=0"),
        ({"label_fix": False}, "task.label_fix=false"),
    ],
    ids=str,
)
def test_settings_outside_the_legal_set_are_refused(root: Path, fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        make("infinitebench/passkey", root, **fields)


def test_what_is_missing_is_named_with_its_command(tmp_path: Path):
    task = make("infinitebench/passkey", tmp_path, samples=7)
    assert task.samples == 7
    with pytest.raises(FileNotFoundError, match="kvbench data pull infinitebench"):
        _ = task.data_sha256
