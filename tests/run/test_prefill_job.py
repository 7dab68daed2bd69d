"""Units: a context is read once, cut once a cell, and every question meets the same frozen cache."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvbench.eviction.allocation.layers import PreferenceLayers
from kvbench.eviction.budget import parse_budget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.attn import Attention
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import QUESTION_BLOCK
from kvbench.models.loading.load import LoadedModel
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.prompts.build import build
from kvbench.models.prompts.chat import render
from kvbench.models.rope import LengthRope
from kvbench.records import Row
from kvbench.run.cell import Cell
from kvbench.run.evict_cell import eviction_of
from kvbench.run.eviction_method import EvictionMethod
from kvbench.run.plan import PrefillJob, plan
from kvbench.run.prefill_job import prefill, run_prefill_job
from kvbench.support.errors import UserError
from kvbench.tasks.task import Sample, Turn
from tests.models.conftest import tiny_llama
from tests.models.masked import masked_forward
from tests.models.tokenizers import TURNS
from tests.questions import Questions, answered

TASK = Questions()
FULL = Policy("full", accepts=())
SNAPKV = Policy("snapkv", window=8, recent=8)


def cells(*budgets: str, evict_after: str = "context", task: Questions = TASK) -> tuple[Cell, ...]:
    """The full cache, and SnapKV at some budgets."""
    schedule = Schedule(evict_after)  # type: ignore[arg-type]
    model = ModelSpec("reference")
    full = Cell(model, task, EvictionMethod(FULL, Attention(), parse_budget("1.0"), "full", None), schedule, 1)
    return full, *(
        full.with_method(policy=SNAPKV, budget=parse_budget(text), policy_label="snapkv") for text in budgets
    )


def samples_of(*indices: int, task: Questions = TASK) -> list[Sample]:
    return list(task.generate(len, indices))


def rows_of(model: LoadedModel, missing: dict[int, tuple[Cell, ...]], samples: Sequence[Sample]) -> list[Row]:
    return run_prefill_job(model, PrefillJob(missing), samples, "here").rows


def outcomes(rows: Sequence[Row]) -> list[dict[str, Any]]:
    assert all(row.error is None for row in rows), [row.error for row in rows]
    return [row.outcome() for row in rows]


@pytest.mark.parametrize(("template", "is_later_turn"), [(None, False), (None, True), (TURNS, True)])
def test_keep_all_over_a_split_prompt_is_one_forward_pass(
    load: Callable[..., LoadedModel], template: str | None, is_later_turn: bool
) -> None:
    """Positions go on after the context and the question is causal: the logits of transformers in float64.

    A long question, or a later turn: context, earlier questions with their answers, question.
    """
    model = load(torch.float64)
    model.tokenizer.chat_template = template
    (sample,) = samples_of(3)
    if is_later_turn:
        earlier = (Turn(sample.question, "\nyellow", 5), Turn("\n\nWhat is the sky?", "\nblue", 5))
        sample = replace(sample, answer_prefix="", earlier=earlier)
    else:
        sample = replace(sample, question=sample.question * 20)  # more than one block
    prompt = build(model.tokenizer, sample, TASK, 512, evict_after="context")
    assert is_later_turn or len(prompt.question) > QUESTION_BLOCK
    text = sample.prompt
    if template is not None:
        first = render(model.tokenizer, None, sample.context + sample.question)
        last = render(model.tokenizer, None, sample.question, [("user", "What is the sky?"), ("assistant", "blue")])
        text = f"{first}yellow{last.replace('<|assistant|>', '<|bot|>')}"
    assert prompt.sha256 == hashlib.sha256(text.encode()).hexdigest()
    prefilled = model.engine.prefill(torch.tensor(prompt.prefill))
    batch = RaggedBatch([prefilled.cache], 3, len(prompt.question) + 8)
    (answer,) = model.engine.generate(prefilled, batch, (), question=torch.tensor(prompt.question))
    ids = torch.tensor([prompt.prefill + prompt.question + answer.ids])
    plain = tiny_llama(torch.float64, vocab_size=len(model.tokenizer), attn_implementation="sdpa")  # eager: float32
    reference = plain(ids).logits[0, prompt.tokens - 1 : -1]
    assert reference.argmax(-1).tolist() == list(answer.ids) and len(answer.ids) == 8
    assert abs(reference.topk(2).values.diff(dim=-1).abs().min().item() - answer.top2_margin) < 1e-10


@pytest.mark.parametrize("layout", ["kv_heads", "query_heads"])
def test_a_question_over_a_cut_context_is_a_masked_forward_pass(load: Callable[..., LoadedModel], layout: str) -> None:
    """The oracle: everything after the context sees only what was kept of it."""
    model = load(torch.float64)
    (sample,) = samples_of(1)
    prompt = build(model.tokenizer, sample, TASK, 512, evict_after="context")
    prefilled = model.engine.prefill(torch.tensor(prompt.prefill), {8})
    eviction = Eviction(replace(SNAPKV, layout=layout), Attention(), parse_budget("0.25"))
    decision = eviction.decide(prefilled.cache)
    tile = RaggedBatch([eviction.evict(prefilled.cache, decision)], 3, len(prompt.question) + 6)
    (answer,) = model.engine.generate(prefilled, tile, (), question=torch.tensor(prompt.question))
    ids = torch.tensor(prompt.prefill + prompt.question + answer.ids)
    logits = masked_forward(model.engine.model, ids, len(prompt.prefill), decision.kept)[prompt.tokens - 1 : -1]
    assert logits.argmax(-1).tolist() == list(answer.ids)
    assert abs(logits.topk(2).values.diff(dim=-1).abs().min().item() - answer.top2_margin) < 1e-10


def test_rows_tell_which_prompts_have_other_tokens_than_the_whole(load: Callable[..., LoadedModel]) -> None:
    """' again' is a token: after a context that ends in the blank it is read as two."""
    model, (sample,) = load(), samples_of(0)
    context = sample.context.rstrip()
    apart = replace(sample, context=context, question=" again?")
    crossed = replace(sample, context=context + " ", question="again?")
    sweep = cells()
    (whole,), (divided,) = (rows_of(model, {0: sweep}, [prompt]) for prompt in (apart, crossed))
    assert whole.prompt_sha256 == divided.prompt_sha256 and whole.border_tokens is None
    assert divided.border_tokens is not None and divided.border_tokens >= 2
    (read,) = rows_of(model, {0: cells(evict_after="prompt")}, [crossed])
    assert read.border_tokens is None and read.prompt_tokens == whole.prompt_tokens


def test_questions_asked_together_are_answered_as_if_alone(load: Callable[..., LoadedModel]) -> None:
    """Bit for bit, with fewer and more cells beside them; and the context was read once."""
    model, sweep = load(), cells("0.2", "0.4", "0.6", "30")
    together = rows_of(model, {index: sweep for index in (0, 2, 4)}, samples_of(0, 2, 4))
    context = len(model.tokenizer(samples_of(0)[0].context).input_ids)
    assert (model.engine.counters.prefills, model.engine.counters.tokens_prefilled) == (1, context)
    alone = [
        row for index in (0, 2, 4) for cell in sweep for row in rows_of(model, {index: (cell,)}, samples_of(index))
    ]
    assert outcomes(together) == outcomes(alone)
    assert len({row.output_sha256 for row in together}) > 3
    part = rows_of(model, {0: sweep[:1], 2: sweep[1:]}, samples_of(0, 2))
    assert outcomes(part) == outcomes([together[0], *together[len(sweep) + 1 : 2 * len(sweep)]]), "what they need"


def test_a_row_counts_the_context_that_was_cut(load: Callable[..., LoadedModel]) -> None:
    """Budget, kept tokens and bytes are those of the context; the prompt has its question too."""
    model = load()
    rows = rows_of(model, {index: cells("0.25") for index in (1, 3)}, samples_of(1, 3))
    context = len(model.tokenizer(samples_of(1)[0].context).input_ids)
    for row in rows:
        kept = context if row.policy == "full" else int(0.25 * context + 0.5)
        assert row.kept_tokens == kept and row.kept_fraction == kept / context
        assert row.cache_bytes == kept * 3 * 2 * 8 * 2 * 4 and row.full_cache_bytes == context * 3 * 2 * 8 * 2 * 4
        assert row.prompt_tokens is not None and row.prompt_tokens > context and row.schedule == "context"
    assert len({row.kept_sha256 for row in rows}) == 2 and len({row.context_sha256 for row in rows}) == 1
    assert len({row.prompt_sha256 for row in rows}) == 2


def test_a_row_counts_what_is_kept_besides_a_budget_of_the_context(load: Callable[..., LoadedModel]) -> None:
    """The budget is what was asked for; the kept tokens and their part of the context include the first ones."""
    model, cell = load(), cells("0.25")[1]
    cell = cell.with_method(policy=replace(cell.policy, sink=5, budget_span="context"))
    (row,) = rows_of(model, {1: (cell,)}, samples_of(1))
    context = len(model.tokenizer(samples_of(1)[0].context).input_ids)
    kept = 5 + int(0.25 * (context - 5) + 0.5)
    assert (row.budget, row.kept_tokens, row.kept_fraction) == ("0.25", kept, kept / context)
    assert row.cache_bytes == kept * 3 * 2 * 8 * 2 * 4


def test_all_queries_are_recorded_for_the_weight_of_a_layer_that_reads_them(load: Callable[..., LoadedModel]) -> None:
    cell = cells("0.25")[1]
    layers = PreferenceLayers(queries="all")
    all_queries = cell.with_method(policy=replace(cell.policy, layers=layers))
    of_window = cell.with_method(policy=replace(cell.policy, layers=replace(layers, queries="window")))
    first, second = rows_of(load(), {1: (all_queries, of_window)}, samples_of(1))
    assert first.error is None and second.error is None
    assert first.kept_tokens == second.kept_tokens and first.kept_sha256 != second.kept_sha256


def test_a_question_that_does_not_fit_leaves_the_others_alone(load: Callable[..., LoadedModel]) -> None:
    """So does a cell whose budget is too small."""
    model, sweep = load(), cells("0.01", "0.4")
    long, short = samples_of(0, 2)
    rows = rows_of(model, {0: sweep, 2: sweep}, [replace(long, question=long.question * 200), short])
    errors = {(row.sample, row.budget): row.error for row in rows}
    assert all("the model reads at most 507" in str(errors[0, budget]) for budget in ("1.0", "0.01", "0.4"))
    assert "cannot hold the 8 protected tokens" in str(errors[2, "0.01"])
    assert errors[2, "1.0"] is None and errors[2, "0.4"] is None


class Unscored(Questions):
    """A task whose metric has no value for what sample 2 is answered."""

    def score(self, prediction: str, sample: Sample) -> float:
        if sample.id == 2:
            raise ValueError("no value for this answer")
        return super().score(prediction, sample)


def test_an_answer_that_the_metric_has_no_value_for_is_an_error_of_the_row(load: Callable[..., LoadedModel]) -> None:
    sweep = cells("0.4", task=Unscored())
    good, bad = (rows_of(load(), {0: sweep, 2: sweep}, samples_of(0, 2))[at] for at in (0, 2))
    assert good.error is None and good.value is not None
    assert bad.value is None and str(bad.error).startswith("no value for this answer; it is '") and bad.prompt_tokens


def test_frequencies_that_would_change_while_answering_are_an_error_of_the_row(
    load: Callable[..., LoadedModel],
) -> None:
    """A prompt that stays on one side of the border is answered."""
    model = load()
    sweep, (long, other) = cells(evict_after="prompt"), samples_of(0, 2)
    border = rows_of(model, {0: sweep}, [long])[0].prompt_tokens
    assert border is not None
    model.engine.rope = LengthRope("longrope", border)
    (crossing,) = rows_of(model, {0: sweep}, [long])
    assert f"rope_type longrope changes its frequencies beyond {border} tokens" in str(crossing.error)
    (within,) = rows_of(model, {2: sweep}, [replace(other, context="", question="Why?")])
    assert within.error is None


@pytest.mark.parametrize("evict_after", ["prompt", "context"])
def test_model_and_task_say_what_is_around_a_prompt(
    load: Callable[..., LoadedModel], tokenizer: Any, evict_after: str
) -> None:
    """The system turn of the model, the raw prompt of a task that has no template, the cut of one that is too long."""
    model = load()
    model.tokenizer.chat_template = TURNS
    (sample,) = samples_of(1)
    (plain, *_) = cells(evict_after=evict_after)
    changed = {
        f"<|user|>{sample.context}{sample.question}<|bot|> It is": plain,
        f"<|system|>Be brief.<|user|>{sample.context}{sample.question}<|bot|> It is": replace(
            plain, model=replace(plain.model, system="Be brief.")
        ),
        f"{sample.context}{sample.question} It is": replace(plain, task=replace(TASK, chat=False)),
        f"<|user|>{tokenizer.decode(tokenizer(sample.context).input_ids[:9])}{sample.question}<|bot|> It is": replace(
            plain, task=replace(TASK, truncation="right", max_prompt_tokens=9)
        ),
    }
    for text, cell in changed.items():
        (row,) = rows_of(model, {1: (cell,)}, [sample])
        assert row.prompt_sha256 == hashlib.sha256(text.encode()).hexdigest(), text
        assert row.context_sha256 == hashlib.sha256(sample.context.encode()).hexdigest()


@pytest.mark.parametrize("policy", [SNAPKV, replace(SNAPKV, window="question", recent="question")])
def test_a_window_behind_a_template_can_end_with_the_users_text(
    load: Callable[..., LoadedModel], tokenizer: Any, policy: Policy
) -> None:
    """Beside a cell that skips nothing: of the text, what a prompt without the template's end keeps."""
    model = load()
    model.tokenizer.chat_template = TURNS
    (sample,) = samples_of(1)
    plain = cells("40", evict_after="prompt")[1].with_method(policy=policy)
    skipping = plain.with_method(policy=replace(policy, window_skips="template"))
    prompt = build(model.tokenizer, sample, TASK, 512)
    stop = len(prompt.prefill) - prompt.suffix_tokens
    assert 0 < prompt.suffix_tokens < prompt.question_tokens
    shared = prefill(model, {1: prompt}, (plain, skipping)).prefilled.cache
    decision = eviction_of(skipping, prompt).decide(shared)
    alone = replace(
        prompt,
        prefill=prompt.prefill[:stop],
        question_tokens=prompt.question_tokens - prompt.suffix_tokens,
        suffix_tokens=0,
    )
    shorter = plain.with_method(budget=parse_budget(str(40 - prompt.suffix_tokens)))
    cache = prefill(model, {1: alone}, (shorter,)).prefilled.cache
    for kept, expected in zip(decision.kept, eviction_of(shorter, alone).decide(cache).kept, strict=True):
        assert kept[:, stop:].all() and torch.equal(kept[:, :stop], expected)
    skipped, not_skipped = rows_of(model, {1: (skipping, plain)}, [sample])
    assert skipped.error is None and skipped.kept_tokens == not_skipped.kept_tokens == 40
    assert skipped.kept_sha256 != not_skipped.kept_sha256
    (beside_none,) = rows_of(model, {1: (plain,)}, [sample])
    assert not_skipped.outcome() == beside_none.outcome()


def test_a_window_skips_nothing_of_a_raw_prompt(load: Callable[..., LoadedModel]) -> None:
    model, plain = load(), cells("0.4", evict_after="prompt")[1]
    skipping = plain.with_method(policy=replace(plain.policy, window_skips="template"))
    skipped, not_skipped = rows_of(model, {1: (skipping, plain)}, samples_of(1))
    assert skipped.cell != not_skipped.cell and skipped.kept_sha256 == not_skipped.kept_sha256


@pytest.mark.parametrize("skips", ["template", 5])
def test_a_window_that_skips_is_refused_block_by_block(skips: Any) -> None:
    plain = replace(cells("0.4")[1], schedule=Schedule("prompt", 16))
    with pytest.raises(UserError, match=rf"policy\.window_skips={skips} .* schedule\.prefill_block=16 evicts by"):
        plain.with_method(policy=replace(plain.policy, window_skips=skips)).check()


@pytest.mark.parametrize("evict_after", ["prompt", "context"])
def test_drawn_answers_depend_on_no_other_answer_or_cell(load: Callable[..., LoadedModel], evict_after: str) -> None:
    """Two of four answers alone, or one cell alone, are those of all; answers differ, kept sets do not."""
    model, task = load(), replace(TASK, temperature=2.0, top_p=0.95, samples_per_prompt=4)
    every = cells("0.2", "30", evict_after=evict_after, task=task)

    def drawn(sweep: Sequence[Cell], samples: Sequence[int]) -> dict[tuple[str, int], dict[str, Any]]:
        job_samples = answered(task, samples)
        rows = rows_of(model, {sample: tuple(sweep) for sample in samples}, job_samples)
        return {(row.cell, row.sample): columns for row, columns in zip(rows, outcomes(rows), strict=True)}

    together = drawn(every, range(4))
    for cell in every:
        alone = drawn([cell], [1, 3])
        assert alone == {key: together[key] for key in alone} and len(alone) == 2
        columns = [together[cell.id, sample] for sample in range(4)]
        assert len({each["output_sha256"] for each in columns}) > 1
        assert len({each["kept_sha256"] for each in columns}) == len({each["prompt_sha256"] for each in columns}) == 1
    fewer = replace(task, samples_per_prompt=2)
    other = rows_of(model, {2: cells(evict_after=evict_after, task=fewer)}, answered(fewer, [2]))
    again = rows_of(model, {4: cells(evict_after=evict_after, task=task)}, answered(task, [4]))
    assert other[0].output_sha256 == again[0].output_sha256  # the first answer to prompt 1, of two or of four


def test_answers_to_one_prompt_share_its_prefill() -> None:
    (cell,) = cells(evict_after="prompt", task=replace(TASK, temperature=1.0, samples_per_prompt=4))
    jobs = plan([cell], set()).groups[0].jobs
    assert [len(job.missing) for job in jobs] == [4] * 6
    assert plan([cell], {(cell.id, sample) for sample in range(6)}).rows_to_do == 18
