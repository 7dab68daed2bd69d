"""RULER v2 against the generators and the evaluators of its authors (`scripts/golden_tasks.py`)."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.extras.ruler_v2.mmlu import ordinal
from kvbench.extras.ruler_v2.scores import MATCHES, Match
from kvbench.extras.ruler_v2.tests import rows as ruler_v2_rows
from kvbench.models.prompts.tokens import TokensOf
from kvbench.support.errors import MissingFile
from kvbench.tasks.data.convert import convert
from kvbench.tasks.data.lock import read_lock
from kvbench.tasks.task import Sample
from scripts.golden_tasks import sha256
from tests.tasks.versions import GOLDEN

OFFICIAL = json.loads((GOLDEN / "prompts" / "ruler_v2.json").read_text("utf-8"))
COPIES = "KVBENCH_RULER_V2"
NUMBERS = {"ruler_v2/mk_niah_basic": 1, "ruler_v2/mv_niah_basic": 4}
Case = tuple[str, str, int, int, int, str]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real rows of MMLU and HotpotQA, whose text is not in the repository."""
    if COPIES not in os.environ:
        pytest.skip(f"{COPIES} names no folder with copies of MMLU and HotpotQA (rows.py beside this file)")
    root = tmp_path_factory.mktemp("copied")
    ruler_v2_rows.write(root, ruler_v2_rows.copied(Path(os.environ[COPIES])))
    return root


@pytest.mark.parametrize(("name", "length", "seed", "number", "digest"), OFFICIAL["generated"])
def test_numbers_are_those_of_the_official_generator(
    name: str, length: int, seed: int, number: int, digest: str, tokens: TokensOf
) -> None:
    task: Any = task_of(name, None, context_length=length, seed=seed)
    samples: list[Sample] = list(task.generate(tokens, range(number)))
    assert sha256([sample.prompt + "".join(sample.references) for sample in samples]) == digest
    assert list(task.generate(tokens, [2, 1])) == samples[1:3]
    assert all(tokens(sample.prompt) <= length for sample in samples)
    assert all(sample.context.endswith(".") and sample.question.startswith("\nWhat ") for sample in samples)
    assert all(len(sample.references) == NUMBERS[name] for sample in samples)


@pytest.mark.parametrize("case", OFFICIAL["made_up"], ids=lambda case: "-".join(map(str, case[:4])))
def test_rows_made_up_here_become_the_official_prompts(case: Case, root: Path, tokens: TokensOf) -> None:
    compare(case, root, tokens)


@pytest.mark.parametrize("case", OFFICIAL["copied"], ids=lambda case: "-".join(map(str, case[:4])))
def test_real_rows_become_the_official_prompts(case: Case, copied: Path, tokens: TokensOf) -> None:
    compare(case, copied, tokens)


def compare(case: Case, root: Path, tokens: TokensOf) -> None:
    """Compare prompts and right answers with the hash of the official ones, and look at their parts."""
    name, form, length, seed, number, digest = case
    drawn = {"drawn": number} if "niah" in name else {}
    task: Any = task_of(name, str(root), context_length=length, seed=seed, form=form, samples=100, **drawn)
    samples: list[Sample] = list(task.generate(tokens, range(number)))
    assert sha256([sample.prompt + "".join(sample.references) for sample in samples]) == digest
    for sample in samples:
        assert tokens(sample.prompt) <= length
        assert sample.context.startswith("Below are some ") and sample.question.startswith("\n\n")
        answer = "\n\n".join(sample.references)
        answer = f"\\boxed{{{answer}}}" if task.metric == "ruler_v2_multichoice" else answer
        assert (task.score(answer, sample), task.score("xyz", sample)) == (1.0, 0.0)


@pytest.mark.parametrize("name", ["mk_niah_easy", "mv_niah_medium", "qa_hard"])
def test_a_sample_does_not_depend_on_the_others(name: str, root: Path, tokens: TokensOf) -> None:
    task = task_of(f"ruler_v2/{name}", str(root), context_length=4096)
    first, second, third = task.generate(tokens, range(3))
    assert list(task.generate(tokens, [2, 1])) == [second, third] and first != second


@pytest.mark.parametrize(("match", "right", "answer", "score"), OFFICIAL["scores"])
def test_an_answer_has_the_score_of_the_official_evaluator(
    match: Match, right: list[str], answer: str, score: float
) -> None:
    assert MATCHES[match](answer, right) == pytest.approx(score, abs=1e-12)


def test_places_are_ordinals() -> None:
    numbers = {1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 112: "112th"}
    assert {number: ordinal(number) for number in numbers} == numbers


def test_a_prompt_has_at_most_as_many_samples_as_there_are_questions(root: Path, tokens: TokensOf) -> None:
    number = {
        name: task_of(f"ruler_v2/{name}", str(root), samples=1000).samples for name in ("qa_hard", "mk_niah_easy")
    }
    assert number == {"qa_hard": 12, "mk_niah_easy": 30}
    assert task_of("ruler_v2/mk_niah_easy", str(root), drawn=7).samples == 7
    with pytest.raises(ValueError, match=r"ruler_v2/qa_hard has 12 samples, none is 12"):
        list(task_of("ruler_v2/qa_hard", str(root)).generate(tokens, [12]))


def test_what_cannot_be_is_refused(root: Path, tokens: TokensOf) -> None:
    with pytest.raises(ValueError, match=r"task\.context_length=50 cannot hold ruler_v2/mk_niah_basic: .* 5 lines"):
        list(task_of("ruler_v2/mk_niah_basic", None, context_length=50).generate(tokens, [0]))
    with pytest.raises(ValueError, match=r"task\.num_values=6 of ruler_v2/mv_niah_basic: at most 5 needles fit"):
        task_of("ruler_v2/mv_niah_basic", None, context_length=1024, num_values=6)
    with pytest.raises(ValueError, match="sample indices start at 0, got -1"):
        list(task_of("ruler_v2/mk_niah_basic", None).generate(tokens, [-1]))
    with pytest.raises(ValueError, match=r"task\.context_length=99 cannot hold ruler_v2/mv_niah_hard: .* 10 questions"):
        list(task_of("ruler_v2/mv_niah_hard", str(root), context_length=99).generate(tokens, [0]))
    with pytest.raises(ValueError, match=r"task\.form=chat: allowed: 'instruct' or 'base'"):
        task_of("ruler_v2/qa_easy", str(root), form="chat")
    with pytest.raises(ValueError, match=r"task\.request=guess: allowed: 'copy'"):
        task_of("ruler_v2/mk_niah_hard", str(root), request="guess")


@pytest.mark.parametrize("name", ["mk_niah_easy", "qa_basic"])
def test_without_its_files_a_task_names_the_command_that_fetches_them(
    name: str, tmp_path: Path, tokens: TokensOf
) -> None:
    with pytest.raises(MissingFile, match=r"no file .*ruler_v2/\w+\.jsonl .*kvbench data pull ruler_v2"):
        list(task_of(f"ruler_v2/{name}", str(tmp_path)).generate(tokens, [0]))


@pytest.mark.parametrize(
    ("name", "file", "change", "fault"),
    [
        ("mk_niah_easy", "mmlu_test", lambda row: row | {"answer": 4}, r"its answer is 4 of 4 choices: 0 to 3 of 4"),
        (
            "mk_niah_easy",
            "mmlu_auxiliary_train",
            lambda row: row | {"choices": ["a"]},
            r"its answer is \d of 1 choices",
        ),
        ("mk_niah_easy", "mmlu_test", lambda row: {"choices": ["a"] * 4, "answer": 0}, "it has no question"),
        ("qa_easy", "hotpotqa_train_1", lambda row: row | {"context": []}, "its context is a list, not an object"),
        (
            "qa_easy",
            "hotpotqa_validation",
            lambda row: row | {"context": row["context"] | {"sentences": []}},
            "its context has 10 titles: a list of as many lists of sentences",
        ),
        (
            "qa_easy",
            "hotpotqa_train_0",
            lambda row: row | {"context": row["context"] | {"sentences": [[1]] * 10}},
            "its sentences are no texts",
        ),
        (
            "qa_easy",
            "hotpotqa_validation",
            lambda row: row | {"supporting_facts": {"title": ["another"]}},
            "none of its documents has a title of its supporting_facts",
        ),
    ],
)
def test_a_row_that_would_change_every_draw_is_refused(
    name: str, file: str, change: Callable[[Any], Any], fault: str, tmp_path: Path, tokens: TokensOf
) -> None:
    rows = ruler_v2_rows.made_up()
    rows[file][3] = change(rows[file][3])
    ruler_v2_rows.write(tmp_path, rows)
    with pytest.raises(ValueError, match=rf"ruler_v2/{file}\.jsonl:4: .*{fault}"):
        list(task_of(f"ruler_v2/{name}", str(tmp_path)).generate(tokens, [0]))


def test_files_of_the_hub_become_the_rows_that_are_read(tmp_path: Path) -> None:
    rows = ruler_v2_rows.made_up()
    for download in read_lock()["ruler_v2"].downloads:
        (output,) = download.outputs
        fetched = tmp_path / "fetched.parquet"
        parquet.write_table(pa.Table.from_pylist(rows[Path(output.path).stem]), fetched)
        ((_, made),) = convert(download, fetched, tmp_path)
        assert [json.loads(line) for line in made.read_text("utf-8").splitlines()] == rows[Path(output.path).stem]


def test_a_haystack_needs_documents_of_other_questions(tmp_path: Path, tokens: TokensOf) -> None:
    rows = ruler_v2_rows.made_up()
    ruler_v2_rows.write(tmp_path, rows | {name: rows["hotpotqa_train_0"][:1] for name in rows if "_train_" in name})
    with pytest.raises(ValueError, match="the training set has no more documents than one question has"):
        list(task_of("ruler_v2/qa_hard", str(tmp_path)).generate(tokens, [0]))
