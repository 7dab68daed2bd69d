"""A model in memory: its own answers with the whole cache, those of a run with a smaller one, itself afterwards."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM, AutoTokenizer

import kvbench
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.scores.keys import KeyNorm
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.prompts.tokens import TokensOf
from kvbench.records import read_kept, read_rows
from kvbench.support.paths import assets
from kvbench.tasks.ruler.niah import Niah
from tests.models.families import tiny
from tests.models.masked import masked_forward
from tests.models.tokenizers import of_bytes
from tests.notebook import given
from tests.notebook.given import MINE, Age

library: Any = kvbench
PROMPT = torch.randint(3, 97, (61,), generator=torch.Generator().manual_seed(3))
FAMILIES = ["llama", "phi3 window", "gemma2", "mixtral", "gpt_oss"]
BOTH: dict[str, Any] = {"policy": ["snapkv", "h2o_obcache"], "score": "attn", "budget": [0.1, 0.2]}
TIGHT = {"policy.window": 8, "policy.recent": 8}


def own_answer(model: Any, ids: torch.Tensor, tokens: int) -> list[int]:
    return model.generate(ids[None], max_new_tokens=tokens, do_sample=False)[0, len(ids) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_cache_answers_as_the_model_and_the_model_stays_as_it_was(family: str) -> None:
    model = tiny(family)
    before, attention = own_answer(model, PROMPT, 9), model.config._attn_implementation
    answer = library.generate(model, PROMPT, policy="full", max_new_tokens=9)
    assert answer.ids == before and answer.text is None and answer.kept_fraction == 1
    assert own_answer(model, PROMPT, 9) == before
    assert model.config._attn_implementation == attention and not any("forward" in vars(m) for m in model.modules())
    parts = library.generate(model, PROMPT[:50], question=PROMPT[50:], policy="full", max_new_tokens=9)
    assert parts.ids == before and parts.kept.num_tokens == 50, "a question is read after the eviction"


def test_the_model_stays_as_it_was_after_an_error_and_one_in_training_is_refused() -> None:
    model = tiny("llama")
    with pytest.raises(ValueError, match="budget=2 "):
        library.generate(model, PROMPT, budget=2, max_new_tokens=3)
    with pytest.raises(ValueError, match="cannot hold the 8 protected tokens"):
        library.evict(model, PROMPT, budget=0.1, **TIGHT)
    assert own_answer(model, PROMPT, 3)
    with pytest.raises(ValueError, match=r"the model is in training mode.*call model\.eval\(\) first"):
        library.evict(model.train(), PROMPT)


def test_an_evicted_cache_answers_as_a_masked_model() -> None:
    """The oracle: every later token sees only what the kept sets hold."""
    model = tiny("llama", torch.float64)
    answer = library.generate(model, PROMPT, score="obcache_joint", budget=20, max_new_tokens=6, **TIGHT)
    assert set(answer.kept.lengths) == {(20, 20)}
    kept = [torch.zeros(2, 61, dtype=torch.bool) for _ in range(4)]
    for layer, mask in enumerate(kept):
        for head in range(2):
            mask[head, answer.kept.positions(layer, head)] = True
    ids = torch.cat((PROMPT, torch.tensor(answer.ids)))
    with bridge.attached(model):
        logits = masked_forward(model, ids, 61, tuple(kept))[60:-1]
    assert logits.argmax(-1).tolist() == answer.ids
    evicted = library.evict(model, PROMPT, score="obcache_joint", budget=20, **TIGHT)
    assert evicted.kept == answer.kept and evicted.cache.pairs == 4 * 2 * 20


def test_several_policies_share_a_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    prefills, read = [], Engine.prefill
    monkeypatch.setattr(Engine, "prefill", lambda *given, **named: prefills.append(1) or read(*given, **named))
    model = tiny("llama")
    settings: dict[str, Any] = {"policy": ["full", "snapkv", "h2o_obcache"], "budget": [0.4, 24], **TIGHT}
    settings["max_new_tokens"] = 4
    answers = library.generate(model, PROMPT, **settings)
    names = [("full", "1.0"), ("snapkv", "0.4"), ("snapkv", "24"), ("h2o_obcache", "0.4"), ("h2o_obcache", "24")]
    assert [(answer.policy.split()[0], answer.budget) for answer in answers] == names and len(prefills) == 1
    for answer, (name, value) in zip(answers[1:], names[1:], strict=True):
        assert answer.ids == library.generate(model, PROMPT, **settings | {"policy": name, "budget": value}).ids
    (listed,) = library.generate(model, PROMPT, **settings | {"policy": ["snapkv"], "budget": 0.4})
    assert listed.ids == answers[1].ids


@pytest.mark.parametrize("budget", [[9, 32, 67], [0.15, 32, 67]])
def test_a_budget_that_cannot_be_does_not_lose_the_others(budget: list[float]) -> None:
    """Refused before the prompt is read (9 pairs), or when it is known (9 of 61 tokens)."""
    model, tight = tiny("llama"), {"policy.window": 8, "policy.recent": 10}
    failure, *evicted = library.evict(model, PROMPT, budget=budget, **tight)
    assert [result.budget for result in (failure, *evicted)] == list(map(str, budget))
    assert "cannot hold the 10 protected tokens" in failure.error and f" attn, budget {budget[0]}: " in str(failure)
    assert [set(result.kept.lengths) for result in evicted] == [{(32, 32)}, {(61, 61)}]
    failed, *answers = library.generate(model, PROMPT, budget=budget, max_new_tokens=3, **tight)
    alone = [library.generate(model, PROMPT, budget=each, max_new_tokens=3, **tight).ids for each in budget[1:]]
    assert failed == failure and [answer.ids for answer in answers] == alone
    with pytest.raises(ValueError, match="protected tokens"):
        library.evict(model, PROMPT, budget=budget[:1] * 2, **tight)


@pytest.mark.parametrize("layout", ["kv_heads", "query_heads"])
def test_a_budget_in_bytes_holds_the_tokens_that_fit(layout: str) -> None:
    model, settings = tiny("llama"), {"policy.layout": layout, **TIGHT}
    counted = library.evict(model, PROMPT, budget=20, **settings)
    most = counted.cache_bytes
    exact, less = library.evict(model, PROMPT, budget=[f"{most}B", f"{most - 1}B"], **settings)
    assert exact.kept == counted.kept and (exact.budget, exact.cache_bytes) == (f"{most}B", most)
    assert {length for lengths in less.kept.lengths for length in lengths} == {19}


def test_bytes_count_the_layers_that_are_evicted_from() -> None:
    model = tiny("gemma2")
    counted, full = (library.evict(model, PROMPT, budget=number, **TIGHT).cache_bytes for number in (20, 30))
    evicted = library.evict(model, PROMPT, budget=f"{2 * (full - counted)}B", **TIGHT)
    assert set(evicted.kept.lengths) == {(20, 20)}


@pytest.mark.parametrize(("policy", "score"), [("plain", "key_norm"), ("streaming_llm", None)])
def test_only_the_answer_is_evicted_from(policy: str, score: str | None) -> None:
    """`policy.sink=prompt` is the same as so many first tokens; the budget counts them, or what is kept besides."""
    model = tiny("llama")
    settings: dict[str, Any] = {"policy": policy, "score": score, "max_new_tokens": 24, "schedule.decode_every": 1}
    settings |= {"policy.recent": 2, "schedule.prefill_block": None}

    def answer(**more: Any) -> Any:
        return library.generate(model, PROMPT, **settings | more)

    inside = answer(**{"policy.sink": "prompt", "budget": 61 + 5})
    besides = answer(**{"policy.sink": "prompt", "policy.budget_span": "context", "budget": 5})
    assert set(inside.kept.lengths) == {(61, 61)} == set(besides.kept.lengths)
    assert inside.ids == besides.ids == answer(**{"policy.sink": 61, "budget": 61 + 5}).ids
    assert inside.ids != answer(**{"policy.sink": 61, "budget": 200}).ids, "pairs of the answer are evicted"
    with pytest.raises(ValueError, match="cannot hold the 63 protected tokens"):
        answer(**{"policy.sink": "prompt", "budget": 40})


def test_prompts_can_be_texts_lists_and_encodings() -> None:
    tokenizer = of_bytes(begin=True)
    model = tiny("llama", vocab_size=len(tokenizer))
    text = "Anna wrote it. " * 3 + "Who?"
    encoded = tokenizer(text, return_tensors="pt")
    given = (text, encoded, encoded.input_ids, encoded.input_ids[0], encoded.input_ids[0].tolist())
    answers = [library.generate(model, prompt, tokenizer, policy="full", max_new_tokens=4) for prompt in given]
    assert len({tuple(answer.ids) for answer in answers}) == 1
    assert answers[0].text == tokenizer.decode(answers[0].ids, skip_special_tokens=True)
    repeat = {"score.repeat_prompt": "\n\nRepeat it, exactly."}
    evicted = library.evict(model, PROMPT, tokenizer, policy="kvzip", **repeat)
    assert evicted.score == r'kvzip repeat_prompt="\n\nRepeat it, exactly."', "texts have line ends"


@pytest.mark.parametrize(
    ("ids", "settings", "message"),
    [
        ("text", {}, "a text needs a tokenizer"),
        (PROMPT.view(1, -1).repeat(2, 1), {}, r"ids have shape \[2, 61\]: allowed: one sequence of token ids"),
        ({"input_ids": PROMPT, "pixel_values": PROMPT}, {}, "the prompt holds pixel_values: images are not read"),
        ([{"role": "user", "content": [{"type": "image"}]}], {}, "messages are no ids: give tokenizer.apply_chat"),
        (PROMPT, {"policy": "snapvk"}, r"unknown policy snapvk: did you mean snapkv\?"),
        (PROMPT, {"task": "needle"}, "task=needle: not for a model in memory; allowed: settings of policy"),
        (PROMPT, {"max_new_tokens": 0}, "max_new_tokens=0: allowed: 1 or more"),
        (PROMPT, {"max_new_tokens": 500}, "prompt and answer have 561 tokens, but the model reads at most 512"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_line(ids: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        library.generate(tiny("llama"), ids, **settings)


def test_rows_of_a_run_are_a_frame_and_what_a_model_in_memory_keeps(tmp_path: Path) -> None:
    """The same prompt, read by the command line and in memory, keeps the same positions and has the same answer."""
    words = ["results.kept=positions", "task.samples=1", "task.max_new_tokens=8", "reference=none"]
    frame = library.run(*words, f"results.dir={tmp_path}", **BOTH)
    rows = list(read_rows(tmp_path))
    assert len(frame) == 4 and set(frame["cell"]) == {row.cell for row in rows}
    assert frame.set_index("cell").loc[rows[0].cell, "kept_sha256"] == rows[0].kept_sha256
    folder = assets() / "reference"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    made_of = {"haystack": "noise", "keys": "words", "values": "numbers"}
    task: Any = Niah(name="ruler/niah_single_1", max_new_tokens=8, **made_of)
    (sample,) = task.generate(TokensOf(tokenizer), [0])
    answers = library.generate(model, sample.prompt, tokenizer, max_new_tokens=8, **BOTH)
    assert isinstance(figure := library.plot_kept(answers[:2]), Figure) and len(figure.axes) >= 2
    kept = read_kept(tmp_path)
    for answer, row in zip(answers, frame.itertuples(), strict=True):
        assert (answer.policy, answer.budget) == (row.policy, row.budget)
        assert answer.kept.masks == kept[row.cell, 0].masks
        assert answer.text == row.prediction


def test_objects_are_taken_where_names_are() -> None:
    """What an object keeps is what its eviction keeps; one that kvbench has too is the same cell."""
    model, pool = tiny("llama"), replace(MINE, sink=4)
    settings: dict[str, Any] = {"policy": [MINE, pool], "score": [Age(), Age(-2.0), "key_norm", KeyNorm()]}
    results = library.evict(model, PROMPT, budget=TokenBudget(20), **settings)
    assert [(result.policy, result.score) for result in results] == [
        (policy, score)
        for policy in ("mine window=8 recent=8", "mine window=8 sink=4 recent=8")
        for score in ("age", "age sign=-2.0", "key_norm")
    ]
    assert results[0].kept.positions(0, 0) == list(range(41, 61))
    assert results[1].kept.positions(0, 0) == [*range(12), *range(53, 61)]
    alone = library.evict(model, PROMPT, policy=Eviction(MINE, Age(-2.0), TokenBudget(20)))
    assert alone.kept == results[1].kept
    assert library.evict(model, PROMPT, policy=MINE, score=Age(), budget=20, **{"score.sign": -2}).kept == alone.kept
    assert re.fullmatch(r"KVCache\(4 layers, 160 KV pairs of 61 tokens, [\d.]+ KiB\)", repr(alone.cache))
    assert repr(MINE) == "Policy('mine', window=8, recent=8)" and eval(repr(MINE), vars(given)) == MINE


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"score": Age}, r"^score=Age is a class: give an object of it, score=Age\(\)$"),
        ({"score": object()}, r"^score=object\(\.\.\.\): allowed: a text, a number, an object of Score, or a list"),
        ({"score": Age(name="attn")}, r"is named attn, as another score of kvbench is: rename yours$"),
        ({"score": Age(name=" ")}, r"^score=Age\(\.\.\.\) has name=' ': allowed: a text"),
        ({"budget": PROMPT}, r"^budget=Tensor\(\.\.\.\): allowed: a text, a number, or a list of these$"),
        ({"policy": Age()}, r"^policy=Age\(\.\.\.\): allowed: a text, a number, an object of Policy"),
    ],
)
def test_errors_are_about_what_was_given(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        library.evict(tiny("llama"), PROMPT, **settings)
    assert "override" not in str(raised.value)


def test_the_public_names_are_listed_and_others_are_not_there() -> None:
    assert dir(library) == ["Bench", "__version__", "evict", "generate", "plot_kept", "run"]
    with pytest.raises(AttributeError, match="'kvbench' has no attribute 'nothing'"):
        _ = library.nothing


def test_a_run_takes_objects_prompts_and_bytes(tmp_path: Path) -> None:
    prompts = [("The sky is blue. " * 20 + "The sky is", "blue"), ("Grass is green. " * 20 + "Grass is", ["green"])]
    words, settings = ["task.max_new_tokens=2", "reference=none"], {"results.dir": tmp_path, "policy": MINE}
    frame = library.run(*words, data=prompts, score=[Age(), "attn"], budget=["500KiB"], **settings)
    assert sorted(zip(frame["policy"], frame["score"], frame["budget"], strict=True)) == [
        ("mine window=8 recent=8", score, "500KiB") for score in ("age", "age", "attn", "attn")
    ]
    table = pandas.DataFrame([{"context": text, "question": None, "answers": answer} for text, answer in prompts])
    again = library.run(*words, data=table, score=[Age(), "attn"], budget="500KiB", **settings)
    assert again["decode_seconds"].tolist() == frame["decode_seconds"].tolist(), "the same prompts are the same cells"
    assert len(list((tmp_path / "data").iterdir())) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (["Who?"], r"^data\[0\] is a str without an answer; allowed: a pair \(prompt, answer\)"),
        ([("Who?", "Anna"), ("Who?", 3)], r"^data\[1\] has answers=3: a text or a list of texts"),
        ([{"prompt": "Who?", "answers": ["Anna"]}], r"^data\[0\] has 'prompt'; allowed"),
        ([("", "Anna")], r"^data\[0\] has context='': a text"),
        ([], "^data holds no prompts"),
        ({"context": "Who?"}, "^data=dict: allowed: the name of a task, a list of prompts, or a DataFrame$"),
    ],
)
def test_prompts_that_cannot_be_read(data: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        library.run(data=data, **{"results.dir": tmp_path})
    with pytest.raises(ValueError, match="both say what is read"):
        library.run("task=ruler/niah_single_1", data=data)
    assert not list(tmp_path.iterdir())
