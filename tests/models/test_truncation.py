"""What goes of a prompt that is too long; the middle as LongBench cuts it."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from kvbench.extras.longbench_v2.longbench_v2 import LongBenchV2
from kvbench.models.prompts.build import build, truncate
from kvbench.tasks.infinitebench import InfiniteBench, SyntheticInfiniteBench
from kvbench.tasks.longbench import LongBenchTask
from kvbench.tasks.task import Sample, TaskSettings
from tests.models.tokenizers import TURNS, of_bytes

CONTEXT, QUESTION = "abcdefghijklmnop", "?!"
RULER = Path(__file__).parents[1] / "golden" / "ruler" / "tokenizer"


@pytest.mark.parametrize(
    ("truncation", "limit", "context", "begin"),
    [
        *(("left", 5, "lmnop", False), ("right", 5, "abcde", False)),
        *(("middle", 8, "abcdop", False), ("middle", 9, "abcdop", False)),
        *(("middle", 8, "abcop", True), ("middle", 18, "abcdefghjklmnop", True)),
        *(("left", 16, CONTEXT, False), ("right", 16, CONTEXT, False), ("middle", 18, CONTEXT, False)),
        *(("refuse", 18, CONTEXT, False), ("refuse", None, CONTEXT, False)),
    ],
)
def test_what_goes(truncation: Any, limit: int | None, context: str, begin: bool) -> None:
    """One token a letter; `middle` and `refuse` count the question. The middle counts special tokens and drops them."""
    assert truncate(of_bytes(begin), CONTEXT, QUESTION, truncation, limit) == (context, QUESTION)


def test_refusing_names_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"18 tokens, more than task\.max_prompt_tokens=17"):
        truncate(of_bytes(), CONTEXT, QUESTION, "refuse", 17)


def test_a_cut_into_the_question_leaves_nothing_to_ask() -> None:
    """Where the question is read with the context that is fine; where it is read after the cut it is an error."""
    text = truncate(of_bytes(), CONTEXT, "0123456789", "middle", 8)
    assert text == ("abcd6789", "")
    sample, task = Sample(0, "any", CONTEXT, "0123456789", "", ("x",), 8), _cut(8)
    assert len(build(of_bytes(), sample, task, 100).prefill) == 8
    for template, answer_prefix in ((None, ""), (None, " So"), (TURNS, "")):  # which would be read after the cut alone
        other = replace(sample, answer_prefix=answer_prefix)
        with pytest.raises(ValueError, match="no question is left to read after eviction"):
            build(of_bytes(template=template), other, task, 100, evict_after="context")


def test_the_template_comes_after_the_cut() -> None:
    sample = Sample(0, "any", CONTEXT, QUESTION, " So", ("x",), 8)
    tokenizer = of_bytes(begin=True, template="<s>" + TURNS)
    prompt = build(tokenizer, sample, _cut(8), 100, evict_after="context")
    assert tokenizer.decode(prompt.prefill) == "<s><|user|>abcop"
    assert tokenizer.decode(prompt.question) == "?!<|bot|> So"


def test_the_middle_is_cut_to_what_the_model_reads() -> None:
    """The limit of the task counts where it is smaller; a template has to fit too."""
    sample = Sample(0, "any", CONTEXT, QUESTION, " So", ("x",), 8)
    for template, limit, room, tokens in ((None, 8, 100, 11), (None, 100, 13, 13), (TURNS, 100, 13, 13)):
        prompt = build(of_bytes(template=template), sample, _cut(limit), room)
        assert prompt.tokens == tokens
    with pytest.raises(ValueError, match="the model reads at most 2 before its answer"):
        build(of_bytes(), sample, _cut(100), 2)


def _cut(limit: int) -> TaskSettings:
    return TaskSettings(truncation="middle", max_prompt_tokens=limit)


def prompt_of(root: Path, task: str, row_id: str) -> str:
    """A LongBench prompt as pred.py formats it: the row's fields in the task's template."""
    template = json.loads((root / "config" / "dataset2prompt.json").read_text("utf-8"))[task]
    rows = map(json.loads, (root / f"{task}.jsonl").read_text("utf-8").splitlines())
    return template.format(**next(row for row in rows if row["_id"] == row_id))


def test_the_middle_is_the_one_of_longbench(shared: Path) -> None:
    """Hashes of prompts before and after, and how many tokens they have when they are read again."""
    golden = json.loads((shared / "golden" / "metrics" / "longbench_truncation.json").read_text("utf-8"))["rows"]
    tokenizer = AutoTokenizer.from_pretrained(RULER)
    assert len(golden) > 5
    for row in golden:
        text = prompt_of(shared / "data" / "longbench", row["task"], row["_id"])
        assert hashlib.sha256(text.encode()).hexdigest() == row["sha256_prompt"]
        context, question = text[:-40], text[-40:]
        parts = truncate(tokenizer, context, question, "middle", row["max_length"])
        assert parts[1] == question
        assert hashlib.sha256("".join(parts).encode()).hexdigest() == row["sha256_truncated"], row
        assert len(tokenizer("".join(parts)).input_ids) == row["n_tokens_after_retokenising"]


def of_infinitebench(tokenizer: Any, text: str, limit: int) -> str:
    """`truncate_input` and `truncate_by_tokens` of src/eval_utils.py and src/eval_yarn_mistral.py, in four lines."""
    tokens = tokenizer.encode(text)
    if len(tokens) > limit:
        tokens = tokens[0 : limit // 2] + tokens[-(limit // 2) :]
    return tokenizer.decode(tokens, skip_special_tokens=True)


def of_words() -> Any:
    """A tokenizer of words that marks the blank before each, as those of Llama 2 and Mistral do."""
    words = ["<unk>", *(f"\u2581{word}" for word in ("the", "grass", "is", "green", "sky", "blue", "sun", "yellow"))]
    built = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.Metaspace()
    built.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=built, unk_token="<unk>")


@pytest.mark.parametrize(
    ("kind", "text"),
    [("bytes", "The 草 is 緑, the 空 is 青."), ("blanks", "the grass is green the sky is blue the sun is yellow")],
)
def test_the_middle_of_infinitebench_is_decoded_as_one_text(kind: str, text: str) -> None:
    """Apart, a letter of several bytes or the blank between two words is lost where the ends meet."""
    tokenizer = AutoTokenizer.from_pretrained(RULER) if kind == "bytes" else of_words()
    limits = range(2, len(tokenizer.encode(text)) + 1)
    official = [of_infinitebench(tokenizer, text, limit) for limit in limits]
    assert ["".join(truncate(tokenizer, text, "", "middle", limit, True)) for limit in limits] == official
    apart = ["".join(truncate(tokenizer, text, "", "middle", limit)) for limit in limits]
    assert sum(left != right for left, right in zip(apart, official, strict=True)) >= 4


@pytest.mark.parametrize("begin", [False, True])
def test_the_middle_of_longbench_v2_keeps_all_of_an_odd_limit(begin: bool) -> None:
    """`ids[:limit // 2] + ids[-limit // 2:]` of pred.py: the minus binds first, so the second end is rounded up."""
    tokenizer, text = of_bytes(begin=begin), CONTEXT + QUESTION
    assert LongBenchV2.keeps_odd and LongBenchV2.decodes_joined
    for limit in range(2, 18):
        ids = tokenizer(text).input_ids
        official = tokenizer.decode(ids[: limit // 2] + ids[-limit // 2 :], skip_special_tokens=True)
        assert "".join(truncate(tokenizer, CONTEXT, QUESTION, "middle", limit, True, True)) == official
        assert len(ids[: limit // 2] + ids[-limit // 2 :]) == limit


def test_each_benchmark_has_its_own_middle() -> None:
    """By hand: of six words the first two and the last two are left."""
    settings: dict[str, Any] = {"chat": False, "truncation": "middle", "max_prompt_tokens": 4, "max_new_tokens": 6}
    sample = Sample(0, "any", "the grass is green the", " sky", "", ("x",), 6)
    for benchmark, text in (
        (InfiniteBench, "the grass the sky"),
        (SyntheticInfiniteBench, "the grass the sky"),
        (LongBenchTask, "the grassthe sky"),
    ):
        member = "qasper" if benchmark is LongBenchTask else "passkey"
        prompt = build(of_words(), sample, benchmark(name="any", member=member, **settings), 100)
        assert prompt.sha256 == hashlib.sha256(text.encode()).hexdigest(), benchmark
