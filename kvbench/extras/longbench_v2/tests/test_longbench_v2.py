"""LongBench v2 against the functions of its pred.py, run on rows and a template made up here."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.extras.longbench_v2.longbench_v2 import LongBenchV2, chosen_letter
from kvbench.models.prompts.build import truncate
from kvbench.models.prompts.tokens import TokensOf
from kvbench.tasks.task import InvalidSample, Sample
from tests.tasks.versions import GOLDEN

OFFICIAL = json.loads((GOLDEN / "longbench" / "v2.json").read_text("utf-8"))
"""Letters, and hashes of prompts after truncation to some limits."""
REASONED = json.loads((GOLDEN / "longbench" / "v2_cot.json").read_text("utf-8"))
"""What `get_pred` with --cot sent to a client that answers `reasoning` and then `answer`: index, limit, the hashes of
both prompts, and whether the answer was right."""


def write(root: Path, *rows: Any) -> None:
    (root / "longbench_v2" / "prompts").mkdir(parents=True, exist_ok=True)
    templates = OFFICIAL["template"], *REASONED["templates"]
    for name, template in zip(("0shot", "0shot_cot", "0shot_cot_ans"), templates, strict=True):
        (root / "longbench_v2" / "prompts" / f"{name}.txt").write_text(template, "utf-8")
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (root / "longbench_v2" / "data.jsonl").write_text(lines, "utf-8")


def task(root: Path, **fields: Any) -> LongBenchV2:
    settings: dict[str, Any] = {"truncation": "middle", "max_prompt_tokens": 120000}
    return LongBenchV2(name="longbench_v2", root=str(root), **settings | fields)


@pytest.mark.parametrize(("answer", "letter"), OFFICIAL["answers"])
def test_an_answer_is_read_as_pred_reads_it(answer: str, letter: str | None, tmp_path: Path) -> None:
    assert chosen_letter(answer.strip()) == letter
    sample = Sample(0, "longbench_v2", "a", "b", "", ("B",), 128)
    write(tmp_path)
    assert task(tmp_path).score(answer, sample) == (letter == "B")


@pytest.mark.parametrize(("index", "limit", "sha256"), OFFICIAL["prompts"])
def test_prompts_are_those_of_pred(index: int, limit: int, sha256: str, tokens: TokensOf, tmp_path: Path) -> None:
    write(tmp_path, *OFFICIAL["rows"])
    (sample,) = task(tmp_path).generate(tokens, [index])
    assert isinstance(sample, Sample) and sample.references == (OFFICIAL["rows"][index]["answer"],)
    text = "".join(truncate(tokens.tokenizer, sample.context, sample.question, "middle", limit, decodes_joined=True))
    assert hashlib.sha256(text.encode()).hexdigest() == sha256


@pytest.mark.parametrize(("index", "limit", "first", "second", "right"), REASONED["prompts"])
def test_both_prompts_of_a_reasoned_answer_are_those_of_pred(
    index: int, limit: int, first: str, second: str, right: bool, tokens: TokensOf, tmp_path: Path
) -> None:
    write(tmp_path, *OFFICIAL["rows"])
    longbench_task = task_of("longbench_v2_cot", str(tmp_path))
    (sample,) = longbench_task.generate(tokens, [index])
    assert isinstance(sample, Sample) and sample.max_new_tokens == 1024
    follow_up = longbench_task.follow_up(sample, REASONED["reasoning"])
    assert follow_up is not None and follow_up.max_new_tokens == 128
    assert follow_up.question == "\n\nSo?" and longbench_task.follow_up(follow_up, "A") is None
    hashes = [
        hashlib.sha256(
            "".join(truncate(tokens.tokenizer, part.context, part.question, "middle", limit, True)).encode()
        ).hexdigest()
        for part in (sample, follow_up)
    ]
    assert hashes == [first, second] and longbench_task.score(REASONED["answer"], follow_up) == right


@pytest.mark.parametrize(
    ("settings", "indices"),
    [({}, [0, 1, 2]), ({"length": "long"}, [1]), ({"difficulty": "hard"}, [1, 2]), ({"length": "short"}, [0])],
)
def test_length_and_difficulty_select_rows(
    settings: dict[str, str], indices: list[int], tokens: TokensOf, tmp_path: Path
) -> None:
    write(tmp_path, *OFFICIAL["rows"])
    selected = task(tmp_path, **settings)
    assert selected.samples == len(indices)
    references = [OFFICIAL["rows"][index]["answer"] for index in indices]
    samples = list(selected.generate(tokens, range(len(indices))))
    assert [sample.references for sample in samples if isinstance(sample, Sample)] == [
        (answer,) for answer in references
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": "E"}, "its answer is 'E': one of A, B, C, D"),
        ({"choice_C": None}, "its choice_C is null, not a text"),
        ({"context": " "}, "its context is empty"),
    ],
)
def test_an_invalid_row_is_named(change: dict[str, Any], message: str, tokens: TokensOf, tmp_path: Path) -> None:
    write(tmp_path, OFFICIAL["rows"][0] | change)
    (sample,) = task(tmp_path).generate(tokens, [0])
    assert isinstance(sample, InvalidSample) and sample.error == f"longbench_v2/data.jsonl:1: {message}"


def test_settings_and_templates_that_cannot_be_are_refused(tokens: TokensOf, tmp_path: Path) -> None:
    write(tmp_path, OFFICIAL["rows"][0])
    with pytest.raises(ValueError, match=r"task.length=8k: allowed: 'short', 'medium' or 'long'"):
        task_of("longbench_v2", str(tmp_path), length="8k")
    (tmp_path / "longbench_v2" / "prompts" / "0shot.txt").write_text("no mark")
    with pytest.raises(ValueError, match=r"0shot.txt holds \$DOC\$ 0 times"):
        list(task(tmp_path).generate(tokens, [0]))
