"""Conversations: each turn is read over the cache that the turns before it left, with the model's own answers."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.entries import options
from kvbench.config.overrides import parse
from kvbench.eviction.budget import parse_budget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.attn import Attention
from kvbench.extras.readers.oracle_topk import OracleTopK
from kvbench.extras.stores.packed import Packed
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.decode.conversation import QuestionTokens, converse
from kvbench.models.decode.next_token import greedy
from kvbench.models.loading.load import LoadedModel
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.prompts.build import build
from kvbench.records import Row
from kvbench.run.cell import Cell
from kvbench.run.conversations import ConversationJob
from kvbench.run.eviction_method import EvictionMethod
from kvbench.run.plan import PrefillJob, plan
from kvbench.run.prefill_job import run_prefill_job
from kvbench.run.rows import hash_ids
from tests.conversations import Conversations
from tests.models.conftest import tiny_llama
from tests.models.masked import masked_forward
from tests.models.tokenizers import TURNS
from tests.questions import answered

TASK = Conversations()
SNAPKV = Policy("snapkv", window=8, recent=8)
Load = Callable[..., LoadedModel]


def cells(*budgets: str, task: Conversations = TASK, **schedule: Any) -> tuple[Cell, ...]:
    """The full cache, and SnapKV at some budgets."""
    when = Schedule(**{"evict_after": "context", **schedule})
    policy, model = Policy("full", accepts=()), ModelSpec("reference")
    full = Cell(model, task, EvictionMethod(policy, Attention(), parse_budget("1.0"), "full", None), when, 1)
    if when.decode_every is not None:
        full = replace(full, schedule=replace(when, decode_every=None))
    snapkv = replace(full.with_method(policy=SNAPKV, policy_label="snapkv"), schedule=when)
    return full, *(snapkv.with_method(budget=parse_budget(text)) for text in budgets)


def rows_of(model: LoadedModel, sweep: Sequence[Cell], samples: Sequence[int], task: Conversations = TASK) -> list[Row]:
    job, decoding = PrefillJob({sample: tuple(sweep) for sample in samples}), None
    if task.turns == "own":
        decoding = ConversationJob
    return run_prefill_job(model, job, answered(task, samples), "here", decoding=decoding).rows


def conversed(
    logits_of: Callable[[list[int]], torch.Tensor],
    context: Sequence[int],
    turns: Sequence[Sequence[int]],
    stop: Collection[int] = (),
) -> list[tuple[list[int], int, float]]:
    """The answer of every turn, the tokens before it and its smallest margin; all is read anew for every token."""
    ids, answers = list(context), list[tuple[list[int], int, float]]()
    for turn, question in enumerate(turns):
        ids, answer, gaps = [*ids, *question], list[int](), list[float]()
        before = len(ids)
        while len(answer) < 5 - turn and not (answer and answer[-1] in stop):
            logits = logits_of(ids)
            answer.append(int(logits.argmax()))
            gaps.append(logits.topk(2).values.diff().abs().item())
            ids = ids if answer[-1] in stop else [*ids, answer[-1]]
        answers.append((answer, before, min(gaps)))
    return answers


@pytest.mark.parametrize(("template", "evict_after"), [(None, "context"), (TURNS, "context"), (TURNS, "prompt")])
@torch.no_grad()
def test_own_answers_over_the_full_cache_are_one_forward_pass_over_the_conversation(
    load: Load, template: str | None, evict_after: str
) -> None:
    """Turn after turn by transformers in float64; one of the answers ends early."""
    model = load(torch.float64)
    plain = tiny_llama(torch.float64, vocab_size=len(model.tokenizer), attn_implementation="sdpa")
    model.tokenizer.chat_template = template
    (last,) = answered(TASK, [2])
    prompt = build(model.tokenizer, last, TASK, 512, evict_after=evict_after)  # type: ignore[arg-type]

    def logits_of(ids: list[int]) -> torch.Tensor:
        return plain(torch.tensor([ids])).logits[0, -1]

    ((answer, *_), *_) = conversed(logits_of, prompt.prefill, prompt.turns)
    expected = conversed(logits_of, prompt.prefill, prompt.turns, stop := {answer[2]})
    assert len(expected[0][0]) <= 3 and expected[0][0][-1] in stop
    rows = rows_of(replace(model, stop=frozenset(stop)), cells(evict_after=evict_after), [0, 1, 2])
    assert [row.error for row in rows] == [None] * 3
    assert [(row.output_sha256, row.prompt_tokens) for row in rows] == [
        (hash_ids(answer), before) for answer, before, _ in expected
    ]
    assert [row.top2_margin for row in rows] == pytest.approx([margin for *_, margin in expected], abs=1e-10)


@torch.no_grad()
def test_own_answers_over_a_smaller_cache_are_a_masked_forward_pass(load: Load) -> None:
    """What follows the context sees of it only what was kept, in every turn."""
    model = load(torch.float64)
    (last,) = answered(TASK, [2])
    prompt = build(model.tokenizer, last, TASK, 512, evict_after="context")
    context = torch.tensor(prompt.prefill)
    kept = Eviction(SNAPKV, Attention(), parse_budget("0.25")).decide(model.engine.prefill(context, {8}).cache).kept

    def logits_of(ids: list[int]) -> torch.Tensor:
        return masked_forward(model.engine.model, torch.tensor(ids), len(context), kept)[-1]

    expected = conversed(logits_of, prompt.prefill, prompt.turns)
    rows = rows_of(model, cells("0.25"), [0, 1, 2])[1::2]
    assert [row.output_sha256 for row in rows] == [hash_ids(answer) for answer, *_ in expected]
    assert [row.top2_margin for row in rows] == pytest.approx([margin for *_, margin in expected], abs=1e-10)


SCHEDULES = ({}, {"evict_after": "prompt"}, {"decode_every": 1}, {"decode_every": 7})


@pytest.mark.parametrize(
    "schedule", [SCHEDULES[1], SCHEDULES[3], *(pytest.param(SCHEDULES[at], marks=pytest.mark.slow) for at in (0, 2))]
)
def test_conversations_depend_on_no_other_cell_and_on_no_resume(load: Load, schedule: dict[str, Any]) -> None:
    """Bit for bit: cells together or alone; a conversation whose first turns are recorded, and one cut short."""
    model, sweep = load(), cells("0.2", "30", **schedule)
    together = rows_of(model, sweep, [0, 1, 2])
    assert model.engine.counters.prefills == 1 and all(row.error is None for row in together)
    assert len({row.output_sha256 for row in together if row.sample == 2}) > 1
    for number, cell in enumerate(sweep):
        own = [row.outcome() for row in together[number :: len(sweep)]]
        assert [row.outcome() for row in rows_of(model, [cell], [0, 1, 2])] == own
        assert [row.outcome() for row in rows_of(model, [cell], [0])] == own[:1]
        assert [row.outcome() for row in rows_of(model, [cell], [1, 2])] == own[1:]
    part = PrefillJob({1: sweep[:2], 2: sweep[1:]})
    rows = run_prefill_job(model, part, answered(TASK, [1, 2]), "here", decoding=ConversationJob).rows
    assert [row.outcome() for row in rows] == [together[at].outcome() for at in (3, 4, 7, 8)]


def test_conversations_over_quantised_pairs(load: Load) -> None:
    sweep = [cell.with_method(holder=Packed("int4")) for cell in cells("0.4")[1:]]
    rows = rows_of(load(), sweep, [0, 1, 2])
    alone = rows_of(load(), sweep, [0])
    assert all(row.error is None for row in rows) and rows[0].outcome() == alone[0].outcome()


def test_drawn_answers_of_a_conversation_are_those_of_their_draw(load: Load) -> None:
    task = replace(TASK, temperature=2.0, samples_per_prompt=2)
    model, sweep = load(), cells("0.3", task=task)
    together = {(row.cell, row.sample): row.outcome() for row in rows_of(model, sweep, range(6), task)}
    assert len({outcome["output_sha256"] for outcome in together.values()}) > 6
    for row in rows_of(model, sweep[1:], [3, 5], task):
        assert row.outcome() == together[row.cell, row.sample]


def test_evicting_over_turns_keeps_the_cache_at_its_budget(load: Load) -> None:
    """Every 4 tokens of questions and answers: never more than the budget, and three more, in a cache."""
    rows = rows_of(load(), cells("30", decode_every=4)[1:], [0, 1, 2])
    pair_bytes = 3 * 2 * 8 * 2 * 4  # layers, heads, size, keys and values, float32
    assert all(row.error is None for row in rows) and [row.kept_tokens for row in rows] == [30] * 3
    positions = 3 * 2 * 4  # an int32 for each pair
    most = [(row.peak_bytes or 0) / (pair_bytes + positions) for row in rows]
    assert most == [33] * 3, most
    evictions = [row.decode_evictions or 0 for row in rows]  # since the context, up to the end of each answer
    assert 0 < evictions[0] < evictions[1] < evictions[2]
    grown = rows_of(load(), cells("30")[1:], [2])
    assert (grown[0].peak_bytes or 0) > 60 * pair_bytes and grown[0].decode_evictions == 0


def test_a_conversation_longer_than_the_model_has_answers_and_then_errors(load: Load) -> None:
    (last,) = answered(TASK, [2])
    prompt = build(load().tokenizer, last, TASK, 512, evict_after="context")
    context, (first, second, _) = len(prompt.prefill), map(len, prompt.turns)
    fits = context + first + 5 + second + 4  # two turns with all tokens of both answers
    rows = rows_of(load(max_length=fits), cells(), [0, 1])
    assert [row.error for row in rows] == [None, None]
    rows = rows_of(load(max_length=fits - 1), cells("0.3"), [0, 1])
    assert [row.error is None for row in rows] == [True, True, False, False]
    assert rows[2].error == (
        f"the conversation has {fits - 4} tokens before this answer, the model reads at most {fits - 5}; ask fewer "
        "questions about a context, or use shorter contexts"
    )
    assert rows[2].question_number == 2 and rows[2].value is None
    third = rows_of(load(max_length=fits + 8), cells(), [0, 1, 2])[2]
    assert "the model reads at most" in str(third.error)


def test_a_turn_that_fails_ends_its_conversation(load: Load) -> None:
    """Other cells go on."""
    model = load()
    (last,) = answered(TASK, [2])
    prompt = build(model.tokenizer, last, TASK, 512, evict_after="context")
    prefilled = model.engine.prefill(torch.tensor(prompt.prefill))
    batch = RaggedBatch([prefilled.cache] * 2, 3, len(prompt.question) + last.own_tokens)
    questions = [QuestionTokens(ids, 5 - turn) for turn, ids in enumerate(prompt.turns)]

    def choose(logits: torch.Tensor, places: Sequence[tuple[int, int]]) -> Any:
        tokens, gaps = greedy(logits)
        gaps = gaps.clone()
        if places[1] == (1, 2):
            gaps[1] = torch.nan
        return tokens, gaps

    good, bad = converse(model.engine, prefilled, batch, [questions] * 2, (), 0, choose, 512)
    assert [answer.error for answer in good] == [None] * 3
    why = "the logits are no numbers (NaN or infinite) after 2 new tokens"
    assert [answer.error for answer in bad] == [None, why, f"turn 2 of the conversation failed: {why}"]
    assert good[0].generation.ids == bad[0].generation.ids


def test_turns_share_a_prefill() -> None:
    modes = [cells(task=replace(TASK, turns=turns), evict_after="prompt")[0] for turns in ("none", "gold", "own")]
    assert [len(plan([cell], set()).groups[0].jobs) for cell in modes] == [6, 2, 2]


@torch.no_grad()
def test_right_answers_after_the_first_question_are_one_forward_pass(load: Load) -> None:
    """`evict_after=prompt`: the context and the first question are read before the eviction, and all that follows
    after it; the text is that of the conversation."""
    task = replace(TASK, turns="gold", answers=(" yellow.", " blue."))
    model = load(torch.float64)
    rows = rows_of(model, cells(task=task, evict_after="prompt"), [0, 1, 2], task)
    plain = tiny_llama(torch.float64, vocab_size=len(model.tokenizer), attn_implementation="sdpa")
    assert model.engine.counters.prefills == 1
    for row, sample in zip(rows, answered(task, [0, 1, 2]), strict=True):
        ids, answer, gaps = list(model.tokenizer(sample.prompt).input_ids), list[int](), list[float]()
        assert row.prompt_tokens == len(ids)
        for _ in range(sample.max_new_tokens):
            logits = plain(torch.tensor([ids])).logits[0, -1]
            answer.append(int(logits.argmax()))
            ids.append(answer[-1])
            gaps.append(logits.topk(2).values.diff().abs().item())
        assert row.output_sha256 == hash_ids(answer) and abs((row.top2_margin or 0) - min(gaps)) < 1e-10


PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "methods.md").read_text("utf-8")
AGAIN = {
    policy: says.strip().startswith("yes")
    for policies, says in re.findall(r"^\| (`.+`) \| ((?:yes|no): .+) \|$", PAGE, re.MULTILINE)
    for policy in re.findall(r"`(\w+)`", policies)
}
HEADS = Path(__file__).parents[1] / "golden" / "heads"
NEEDS = {
    "duo_attention": f"score.path={HEADS / 'full_attention_heads.tsv'}",
    "lukv": f"policy.layers.path={HEADS / 'budgets.npy'}",
    "triattention": f"score.statistics={HEADS / 'queries.safetensors'}",
}


def configured(policy: str, *words: str) -> Cell:
    """A cell with the policy and the score of its file."""
    settings = f"policy={policy}", "budget=0.5", "schedule.decode_every=8", "schedule.evict_after=prompt", *words
    (tree,) = combinations(parse([*settings, "protocol=common", *([NEEDS[policy]] if policy in NEEDS else [])]))
    return CellBuilder().cell(tree)


@pytest.mark.parametrize("policy", options("policy"))
def test_the_page_says_which_policies_evict_again(policy: str) -> None:
    cell = configured(policy)
    if AGAIN[policy]:
        cell.check()
        assert cell.schedule.decode_every == 8
    elif policy == "full":
        assert cell.schedule.decode_every is None
    else:
        with pytest.raises(ValueError, match=r"score \w+ (repeats|reads) .*, once, so it cannot evict again later"):
            cell.check()


def test_every_policy_that_evicts_again_does_so_in_a_conversation(load: Load) -> None:
    """All of them together, in one job."""
    names = [name for name, again in AGAIN.items() if again and name not in NEEDS]
    sweep = [replace(configured(name), task=TASK, model=ModelSpec("reference")) for name in names]
    rows = rows_of(load(), sweep, [0, 1, 2])
    assert len(names) == 22 and {row.policy: row.error for row in rows} == dict.fromkeys({r.policy for r in rows})
    assert len(rows) == 3 * len(names)


def test_readers_converse(load: Load) -> None:
    """One of everything as a dense cell does, to the byte read; one of a part reads less in every turn."""
    full, snapkv = cells("0.5")
    readers = (None, OracleTopK(budget=1.0), OracleTopK(budget=8))
    sweep = [cell.with_method(holder=reader) for cell in (full, snapkv) for reader in readers]
    rows = rows_of(load(), sweep, [0, 1, 2])
    assert [row.error for row in rows] == [None] * 18
    by_cell = [[row for row in rows if row.cell == cell.id] for cell in sweep]
    for dense, everything, part in (by_cell[:3], by_cell[3:]):
        for one, same, less in zip(dense, everything, part, strict=True):
            assert (one.output_sha256, one.read_bytes, one.index_bytes) == (same.output_sha256, same.read_bytes, 0)
            assert one.read_bytes is not None and less.read_bytes is not None and less.index_bytes is not None
            assert less.read_bytes < one.read_bytes and less.index_bytes > 0
        bytes_read = [row.read_bytes or 0 for row in dense]
        assert bytes_read == sorted(bytes_read) and len(set(bytes_read)) == 3, "the conversation grows"
