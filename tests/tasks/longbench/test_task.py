"""LongBench's tasks on rows of our own: prompts, the split, ranges of lengths, and rows that are none."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from kvbench.config.entries import options
from kvbench.models.prompts.build import build
from kvbench.tasks.longbench import EXTENDED, MEMBERS, LongBenchTask
from kvbench.tasks.task import InvalidSample, Sample, Task, TaskSettings, TokenCounter
from tests.tasks.longbench.conftest import row, task, write

RAW = {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}


class NoTokens(TokenCounter):
    """LongBench counts none."""

    def __call__(self, text: str, /) -> int:
        raise AssertionError


def samples(of: LongBenchTask, *indices: int) -> list[Sample]:
    """Samples of a task, none of them spoilt."""
    generated_samples = list(of.generate(NoTokens(), indices))
    assert all(isinstance(sample, Sample) for sample in generated_samples), generated_samples
    return generated_samples


def spoilt(of: LongBenchTask, index: int) -> str:
    """What is wrong with a sample."""
    (sample,) = of.generate(NoTokens(), [index])
    assert isinstance(sample, InvalidSample) and (sample.id, sample.task) == (index, of.name), sample
    return sample.error


def names() -> list[str]:
    """Every file of LongBench in conf/task."""
    return [name for name in options("task") if name.startswith(("longbench/", "longbench_e/"))]


def test_every_task_has_its_file():
    wanted = chain((f"longbench/{m}" for m in MEMBERS), (f"longbench_e/{m}" for m in EXTENDED))
    assert set(names()) == set(wanted)


@pytest.mark.parametrize("name", names())
def test_a_row_becomes_a_sample(name: str, root: Path):
    """What braces a context holds stays; what the template has before it is context, what it has behind is not."""
    family, _, member = name.partition("/")
    write(root, member + family.removeprefix("longbench"), row(member), row(member, context="second"))
    longbench_task = task(root, name)
    assert isinstance(longbench_task, Task) and longbench_task.samples == 2 and longbench_task.max_new_tokens == 16
    first, second = samples(longbench_task, 1, 0)
    assert (first.id, first.context, first.answer_prefix) == (0, "Read a {b} {0} {input} text", "")
    assert (second.id, second.context) == (1, "Read second")
    assert first.question == (" then Which? so" if "then" in first.question else " so")
    assert longbench_task.score(first.references[0], first) == pytest.approx(1, abs=1e-8)
    assert (longbench_task.chat, longbench_task.truncation) == (member not in RAW, "middle")
    ending = (longbench_task.stop, longbench_task.stop_replaces, longbench_task.min_new_tokens)
    assert ending == ((("\n",), True, 1) if member == "samsum" else ((), False, 0))


def test_classes_are_those_of_the_last_row(root: Path):
    write(root, "trec", row("trec"), row("trec", all_classes=["Date", "Dates"]))
    (first,) = samples(task(root, "longbench/trec"), 0)
    assert first.choices == ("Date", "Dates")


def test_lengths_come_from_the_benchmark_unless_they_are_set(root: Path):
    write(root, "qasper", row())
    assert samples(task(root, max_new_tokens=3), 0)[0].max_new_tokens == 3
    table = root / "longbench" / "config" / "dataset2maxlen.json"
    for content, message in (("{", "is not JSON"), ("[]", "has no length for qasper"), ('{"qasper": 0}', "at least 1")):
        table.write_text(content)
        with pytest.raises(ValueError, match=message):
            task(root)


def test_a_range_of_lengths_has_rows_of_its_own(root: Path):
    """As eval.py cuts them: below 4000, below 8000, the rest."""
    lengths = [3999, 8000, 4000, 7999, 100]
    write(root, "qasper_e", *(row(context=str(length), length=length) for length in lengths))

    def contexts(bucket: str) -> list[str]:
        longbench_task = task(root, "longbench_e/qasper", bucket=bucket)
        return [
            sample.context.removeprefix("Read ") for sample in samples(longbench_task, *range(longbench_task.samples))
        ]

    assert [contexts(bucket) for bucket in ("0-4k", "4-8k", "8k+")] == [["3999", "100"], ["4000", "7999"], ["8000"]]
    with pytest.raises(ValueError, match=r"has 1 samples, none is 1"):
        samples(task(root, "longbench_e/qasper", bucket="8k+"), 1)
    write(root, "qasper_e", row(length="long"), row(length=1))
    for bucket, many in (("0-4k", 2), ("8k+", 1)):
        longbench_task = task(root, "longbench_e/qasper", bucket=bucket)
        assert longbench_task.samples == many
        assert spoilt(longbench_task, 0) == "longbench/qasper_e.jsonl:1: its length is 'long': a whole number"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context": ""}, "its context is empty"),
        ({"context": " \n"}, "its context is empty"),
        ({"context": None}, "its context is null, not a text"),
        ({"context": "\ud800"}, "its context has an incomplete character"),
        ({"input": 3}, "its input is a number, not a text"),
        ({"answers": []}, "its answers are []: a list of at least one text"),
        ({"answers": "x"}, "its answers are x: a list"),
        ({"answers": ["x", 3]}, "its answers are ['x', 3]: a list"),
    ],
)
def test_a_row_that_is_none_is_named(fields: dict[str, Any], message: str, root: Path):
    path = root / "longbench" / "qasper.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (row(), row(**fields))))
    assert len(samples(task(root), 0)) == 1
    assert spoilt(task(root), 1).startswith(f"longbench/qasper.jsonl:2: {message}")


@pytest.mark.parametrize("missing", ["context", "input", "answers"])
def test_a_field_that_is_missing_is_named(missing: str, root: Path):
    write(root, "qasper", {name: value for name, value in row().items() if name != missing})
    assert spoilt(task(root), 0).startswith(f"longbench/qasper.jsonl:1: it has no {missing}, only ")


def test_classes_are_those_of_the_last_row_that_has_any(root: Path):
    write(root, "trec", row("trec", all_classes=["Date"]), row("trec"), row("trec", all_classes=None))
    with (root / "longbench" / "trec.jsonl").open("a") as file:
        file.write("{\n")
    assert [sample.choices for sample in samples(task(root, "longbench/trec"), 0, 1, 2)] == [("Date", "Food")] * 3
    assert spoilt(task(root, "longbench/trec"), 3).startswith("longbench/trec.jsonl:4: not JSON")
    write(root, "trec", row("trec", all_classes=None))
    with pytest.raises(ValueError, match=r"trec\.jsonl has no row with all_classes"):
        samples(task(root, "longbench/trec"), 0)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("Read {input}", r"dataset2prompt\.json: the template has no {context}"),
        ("Read {context} {answers}", "asks for {answers}; a row has only context, input"),
        ("Read {context} }", "Single '}'"),
        (3, "has no template for qasper"),
    ],
)
def test_a_template_that_cannot_be_filled_is_named(template: Any, message: str, root: Path):
    write(root, "qasper", row())
    (root / "longbench" / "config" / "dataset2prompt.json").write_text(json.dumps({"qasper": template}))
    with pytest.raises(ValueError, match=message):
        samples(task(root), 0)


def test_odd_bytes_are_refused_or_kept(root: Path):
    write(root, "qasper", row(context="x\x00y"), row(context="x" * 10**7))
    first, second = samples(task(root), 0, 1)
    assert first.context == "Read x\x00y" and len(second.context) == 10**7 + 5
    (root / "longbench" / "qasper.jsonl").write_bytes(b'{"context": "\xff"}\n')
    assert spoilt(task(root), 0) == "longbench/qasper.jsonl:1: not UTF-8: invalid start byte at byte 13"


def test_what_is_not_there_is_named(root: Path):
    longbench_task = task(root)
    assert longbench_task.samples == 50
    with pytest.raises(FileNotFoundError, match=r"no file .*longbench/qasper\.jsonl"):
        _ = longbench_task.data_sha256
    write(root, "qasper", row())
    (root / "longbench" / "config" / "dataset2maxlen.json").unlink()
    assert task(root).max_new_tokens is None
    with pytest.raises(FileNotFoundError, match=r"no file .*dataset2maxlen\.json"):
        samples(task(root), 0)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("longbench/qasper", {"member": "squad"}, r"task\.member=squad of longbench/qasper: allowed: narrativeqa"),
        ("longbench_e/qasper", {"member": "lsht"}, r"task\.member=lsht of longbench_e/qasper: allowed: qasper"),
        (
            "longbench/qasper",
            {"bucket": "8k+"},
            r"task\.bucket=8k\+ of longbench/qasper: allowed: null, or a task of LongBench-E",
        ),
        ("longbench_e/qasper", {"bucket": "9k"}, r"task\.bucket=9k: allowed: '0-4k', '4-8k' or '8k\+'"),
        ("longbench/qasper", {"samples": 0}, r"task\.samples=0"),
        ("longbench/qasper", {"max_new_tokens": 0}, r"task\.max_new_tokens=0"),
    ],
)
def test_settings_outside_the_legal_set_are_refused(name: str, fields: dict[str, Any], message: str, root: Path):
    with pytest.raises(ValueError, match=message):
        task(root, name, **fields)


@pytest.mark.parametrize("task_name", ["longbench/trec", "longbench/qasper"])
def test_only_tasks_without_examples_and_code_go_into_a_chat_template(task_name: str, root: Path):
    from tests.models.test_truncation import TURNS, of_bytes

    member = task_name.partition("/")[2]
    write(root, member, row(member, context="aaaa"))
    longbench_task = task(root, task_name)
    (sample,) = samples(longbench_task, 0)
    settings = TaskSettings(chat=longbench_task.chat)
    text = of_bytes(template=TURNS).decode(build(of_bytes(template=TURNS), sample, settings, 200).context)
    assert text.endswith("so") == (member == "trec") and sample.prompt in text
