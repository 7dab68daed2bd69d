"""LongBench's tasks on rows of our own: prompts, the split, ranges of lengths, and rows that are none."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.config.entries import options
from kvbench.tasks.longbench import LongBenchTask
from kvbench.tasks.task import InvalidSample, Sample, TokenCounter
from tests.tasks.longbench.conftest import row, task, write


class NoTokens(TokenCounter):
    """For tasks that are not measured in tokens."""

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
        ({"context": "\ud800"}, "its context has an incomplete character"),
        ({"input": 3}, "its input is a number, not a text"),
        ({"answers": []}, "its answers are []: a list of at least one text"),
        ({"answers": ["x", 3]}, "its answers are ['x', 3]: a list"),
    ],
)
def test_a_row_that_is_none_is_named(fields: dict[str, Any], message: str, root: Path):
    path = root / "longbench" / "qasper.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (row(), row(**fields))))
    assert len(samples(task(root), 0)) == 1
    assert spoilt(task(root), 1).startswith(f"longbench/qasper.jsonl:2: {message}")


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
    write(root, "qasper", row(context="x\x00y"))
    assert samples(task(root), 0)[0].context == "Read x\x00y"
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
