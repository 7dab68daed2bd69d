"""SCBench as officially: prompts byte for byte and scores, by the official code on rows made up here."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvbench.extras.scbench_official.scbench_official import MEMBERS
from kvbench.extras.scbench_official.tests import rows as official_rows
from kvbench.extras.scbench_official.tests.rows import PREDICTIONS
from kvbench.models.prompts.build import build
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.tokens import TokensOf, template_tokens
from kvbench.tasks.task import InvalidSample, Sample
from tests import repository
from tests.models.tokenizers import of_words
from tests.tasks.infinitebench.conftest import Words
from tests.tasks.scbench.rows import make, write
from tests.tasks.scbench.templates import TEMPLATES, tokenizer

GOLDEN = json.loads((repository.GOLDEN / "prompts" / "scbench.json").read_text("utf-8"))


def task_of(root: Path, member: str, *rows: Any, **fields: Any) -> Any:
    name = f"scbench_official/{member}"
    write(root, name, *(rows or official_rows.rows(member)))
    return make(root, name, **fields)


def prompts_of(task: Any, template: str, evict_after: Any, samples: range) -> list[tuple[Sample, Prompt]]:
    tok = tokenizer(TEMPLATES[template])
    tokens = TokensOf(tok, template_tokens(tok, "auto", None, True))
    generated_samples = list(task.generate(tokens, samples))
    return [(sample, build(tok, sample, task, 10**6, evict_after=evict_after)) for sample in generated_samples]


def text_of(ids: tuple[int, ...]) -> str:
    return tokenizer(None).decode(list(ids))


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("member", MEMBERS)
def test_prompts_of_separate_requests_are_the_official_ones(tmp_path: Path, member: str, template: str) -> None:
    task = task_of(tmp_path, member, turns="none")
    for number, (context, *queries) in enumerate(GOLDEN[member]["prompts"][f"none {template}"]):
        for query, (_, prompt) in zip(
            queries, prompts_of(task, template, "context", range(3 * number, 3 * number + 3)), strict=True
        ):
            begun = text_of(prompt.prefill)
            if template == "raw":  # the tokenizer's first token; the official text has none
                begun = begun.removeprefix("<s>")
            assert (begun, text_of(prompt.question)) == (context, query)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("member", MEMBERS)
def test_prompts_of_turns_are_the_official_ones(tmp_path: Path, member: str, template: str) -> None:
    """gold: the text up to each answer; own: what is read before each answer, which the end of sequence closes.

    With own answers the official code repeats the first token where it expects a system turn and there is none.
    """
    for mode in ("gold", "own"):
        task = task_of(tmp_path, member, turns=mode)
        for number, (first, *later) in enumerate(GOLDEN[member]["prompts"][f"{mode} {template}"]):
            prompt_pairs = prompts_of(task, template, "prompt", range(3 * number, 3 * number + 3))
            opening = first if template != "raw" else f"<s>{first}"
            assert {text_of(prompt.prefill) for _, prompt in prompt_pairs} == {opening}
            if mode == "gold":
                assert [text_of(prompt.question) for _, prompt in prompt_pairs] == ["", later[0], later[0] + later[1]]
            else:
                later = [f"</s>{text.removeprefix('<s>')}" for text in later]
                assert text_of(prompt_pairs[2][1].question) == "".join(later)
                assert [text_of(ids) for ids in prompt_pairs[2][1].turns] == ["", *later]
                assert prompt_pairs[1][1].turns == prompt_pairs[2][1].turns[:2]


@pytest.mark.parametrize(("kind", "differing"), [("bytes", False), ("first", True), ("always", True), ("legacy", True)])
def test_each_question_is_tokenised_alone_as_officially(tmp_path: Path, kind: Any, differing: bool) -> None:
    """`tokenizer.encode(text, add_special_tokens=False)`: a tokenizer that puts a blank before a text puts it before
    each question, which one text of all turns would not have.
    """
    tok, differences = of_words(kind, begin=True), 0
    for mode, evict_after in (("none", "context"), ("gold", "prompt"), ("own", "prompt")):
        task = task_of(tmp_path, "qa_eng", turns=mode)
        tokens = TokensOf(tok, 0)
        for number, (_, *texts) in enumerate(GOLDEN["qa_eng"]["prompts"][f"{mode} raw"]):
            alone = [tuple(tok(text, add_special_tokens=False).input_ids) for text in texts]
            samples = list(task.generate(tokens, range(3 * number, 3 * number + 3)))
            prompts = [build(tok, sample, task, 10**6, evict_after=evict_after) for sample in samples]  # type: ignore[arg-type]
            if mode == "none":
                assert [prompt.question for prompt in prompts] == alone
            elif mode == "gold":
                assert [prompt.question for prompt in prompts] == [(), alone[0], alone[0] + alone[1]]
            else:
                closed = [(tok.eos_token_id, *ids) for ids in alone]
                assert prompts[2].turns == ((), *closed) and prompts[2].question == closed[0] + closed[1]
            together = tuple(tok("".join(texts), add_special_tokens=False).input_ids)
            differences += sum(alone, ()) != together
    assert (differences > 0) == differing


@pytest.mark.parametrize("member", MEMBERS)
def test_scores_are_the_official_ones(tmp_path: Path, member: str) -> None:
    pytest.importorskip("rouge_score")
    task = task_of(tmp_path, member)
    samples = list(task.generate(Words(), range(6)))
    assert len(PREDICTIONS) == len(GOLDEN[member]["scores"][0]) and len(samples) == len(GOLDEN[member]["scores"])
    for sample, scores in zip(samples, GOLDEN[member]["scores"], strict=True):
        for prediction, score in zip(PREDICTIONS, scores, strict=True):
            assert task.score(prediction, sample) == pytest.approx(score, abs=1e-9), (prediction, sample.references)
    assert any(score > 0 for row in GOLDEN[member]["scores"] for score in row)


def test_new_tokens_turns_and_truncation_are_those_of_the_official_run(tmp_path: Path) -> None:
    """DATA_NAME_TO_MAX_NEW_TOKENS; 131072 tokens without the answers of all turns, and 1000 for separate requests."""
    new = {"choice_eng": 40, "qa_eng": 40, "qa_chn": 40, "kv": 150, "mf": 5, "prefix_suffix": 150, "repoqa": 1024}
    new |= {"summary": 200, "vt": 30, "many_shot": 10}
    for member, tokens in new.items():
        task = task_of(tmp_path, member)
        assert {sample.max_new_tokens for sample in task.generate(Words(), range(6))} == {tokens}
        assert task.max_prompt_tokens == 131_072 - 3 * tokens
        assert make(tmp_path, f"scbench_official/{member}", turns="none").max_prompt_tokens == 130_072 - 3 * tokens
    for member, kinds in {"summary_with_needles": (800, 15), "repoqa_and_kv": (1024, 80)}.items():
        task = task_of(tmp_path, member)
        tokens = [sample.max_new_tokens for sample in task.generate(Words(), range(3))]
        assert tokens == [kinds[0], kinds[1], kinds[0]] and task.max_prompt_tokens == 131_072 - sum(kinds) * 3 // 2
    fewer = make(tmp_path, "scbench_official/kv", max_turns=2)
    assert (fewer.samples, fewer.max_prompt_tokens) == (4, 131_072 - 300)
    refused = r"task\.max_seq_length={} of scbench_official/kv: the answers alone take 450 tokens; allowed: {} or more"
    for turns, least in {"gold": 452, "none": 1452}.items():
        with pytest.raises(ValueError, match=refused.format(least - 1, least)):
            make(tmp_path, "scbench_official/kv", max_seq_length=least - 1, turns=turns)
        assert make(tmp_path, "scbench_official/kv", max_seq_length=least, turns=turns).max_prompt_tokens == 2


@pytest.mark.parametrize("turns", ["none", "gold", "own"])
def test_the_middle_of_what_is_read_first_is_dropped_as_tokens(tmp_path: Path, turns: str) -> None:
    """truncate_by_tokens of the official run: the first and the last half of the limit, of an even number."""
    after = "context" if turns == "none" else "prompt"
    whole = prompts_of(task_of(tmp_path, "kv", turns=turns, max_prompt_tokens=10**5), "system", after, range(3))
    part = prompts_of(task_of(tmp_path, "kv", turns=turns, max_prompt_tokens=101), "system", after, range(3))
    for (_, full), (_, dropped) in zip(whole, part, strict=True):
        assert dropped.prefill == full.prefill[:50] + full.prefill[-50:] and dropped.question == full.question
        assert dropped.border_tokens is None and dropped.turns == full.turns


@pytest.mark.parametrize(
    ("member", "fields", "message"),
    [
        ("kv", {"multi_turns": []}, "its multi_turns are []: a list"),
        ("kv", {"context": 3}, "its context is '3'"),
        ("kv", {"multi_turns": [{"input": "a", "answer": None}]}, "its answer is 'None': a text or texts"),
        ("mf", {"multi_turns": [{"input": "The sum is", "answer": "7"}]}, "its answer is '7': a number"),
        ("mf", {"multi_turns": [{"input": "Sum?", "answer": 7}]}, "asks for nothing"),
        ("choice_eng", {"multi_turns": [{"input": "a", "answer": "b", "options": ["b"]}]}, "its options are"),
        ("repoqa", {"lang": "cobol"}, "its lang is 'cobol'"),
        ("repoqa_and_kv", {"multi_turns": [{"input": "a", "answer": "b", "task": "vt"}]}, "its task is 'vt'"),
    ],
)
def test_a_row_that_is_none_is_named(tmp_path: Path, member: str, fields: dict[str, Any], message: str) -> None:
    good, _ = official_rows.rows(member)
    task = task_of(tmp_path, member, good | fields, good)
    *spoilt, _, _, last = task.generate(Words(), range(task.samples))
    assert all(isinstance(sample, InvalidSample) and message in sample.error for sample in spoilt) and spoilt
    assert all(re.match(rf"scbench_official/{member}\.jsonl:1: ", sample.error) for sample in spoilt)
    assert isinstance(last, Sample)
