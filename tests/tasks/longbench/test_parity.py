"""LongBench's prompts on real rows: as pred.py formats and cuts them."""

import hashlib
import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from kvbench.models.prompts.build import build, truncate
from tests.tasks.longbench.conftest import task
from tests.tasks.longbench.test_task import names, samples

HERE = ("longbench/samsum", "longbench_e/gov_report")
"""Tasks of which no rows are at hand."""


@pytest.mark.parametrize("name", sorted(set(names()) - set(HERE)))
def test_prompts_are_those_of_pred(name: str, shared: Path):
    root = shared / "data"
    longbench_task = task(root, name)
    member = name.partition("/")[2]
    config = root / "longbench" / "config"
    template = json.loads((config / "dataset2prompt.json").read_text("utf-8"))[member]
    lines = [json.loads(line) for line in (root / longbench_task.files[0]).read_text("utf-8").split("\n") if line]
    assert longbench_task.samples == len(lines) >= 2
    assert longbench_task.max_new_tokens == json.loads((config / "dataset2maxlen.json").read_text("utf-8"))[member]
    for sample, line in zip(samples(longbench_task, *range(len(lines))), lines, strict=True):
        assert sample.prompt == template.format(**line)
        assert sample.context.endswith(line["context"]) and sample.question
        assert sample.references == tuple(line["answers"]) and list(sample.choices) == (line["all_classes"] or [])
        skipped = longbench_task.metric == "code_sim_score" and any(
            mark in line["answers"][0] for mark in ("`", "#", "//")
        )
        assert (longbench_task.score(line["answers"][0], sample) > 0) is not skipped


def test_what_is_left_of_a_prompt(shared: Path):
    """Hashes before and after the cut, and what a model reads of it."""
    golden = json.loads((shared / "golden" / "metrics" / "longbench_truncation.json").read_text("utf-8"))["rows"]
    tokenizer = AutoTokenizer.from_pretrained(shared / "golden" / "ruler" / "tokenizer")
    for case in golden:
        limit = case["max_length"]
        longbench_task = task(shared / "data", f"longbench/{case['task']}", max_prompt_tokens=limit)
        file = shared / "data" / longbench_task.files[0]
        ids = [json.loads(line)["_id"] for line in file.read_text("utf-8").split("\n") if line]
        (sample,) = samples(longbench_task, ids.index(case["_id"]))
        assert hashlib.sha256(sample.prompt.encode()).hexdigest() == case["sha256_prompt"]
        left = "".join(truncate(tokenizer, sample.context, sample.question, longbench_task.truncation, limit))
        assert hashlib.sha256(left.encode()).hexdigest() == case["sha256_truncated"]
        prompt = build(tokenizer, sample, longbench_task, 100_000)
        assert (prompt.tokens, prompt.sha256) == (case["n_tokens_after_retokenising"], case["sha256_truncated"])
