"""schedule.prefill_block and schedule.decode_every: who shares a prefill, what is held, what a sample leaves behind."""

from pathlib import Path

import pytest

from kvbench.eviction.schedule import Schedule
from tests.cli.conftest import Command, outcomes, rows_of

STEPS = ("schedule.decode_every=1", "schedule.prefill_block=150")


def test_whoever_is_cut_block_by_block_reads_alone(kvbench: Command, tiny: tuple[str, ...]) -> None:
    """Two cells that evict once share a prefill, two that evict after every block do not."""
    settings = (*tiny, "policy=h2o_obcache", "policy.recent=4", "budget=20,30", "schedule.prefill_block=null,50")
    planned = kvbench("plan", *settings)
    assert planned.out.count("evicted after every 50 tokens of the prompt: later blocks attend to what was kept") == 2
    assert "evicted after the prompt\n" in planned.out
    assert kvbench("run", *settings).err.count("from 9 prefills") == 1
    rows = rows_of(Path("out"))
    for row in rows:
        assert row.error is None and str(row.kept_tokens) in ("20", "30", "20.0", "30.0")
        assert row.kept_tokens == float(row.budget)
        assert row.cache_bytes == row.kept_tokens * 2 * 2 * 8 * 2 * 4
        assert row.full_cache_bytes == row.prompt_tokens * 2 * 2 * 8 * 2 * 4  # type: ignore[operator]
        assert (row.evict_seconds is None) == ("prefill_block=50" in str(row.schedule))
    blocks = {row.kept_sha256 for row in rows if "prefill_block" in str(row.schedule)}
    assert not blocks & {row.kept_sha256 for row in rows if "prefill_block" not in str(row.schedule)}


def test_a_cache_that_is_cut_with_the_answer_does_not_grow(kvbench: Command, tiny: tuple[str, ...]) -> None:
    """Within the same prefill, from the same first cut."""
    settings = (*tiny, "policy=tova_obcache", "budget=25", "schedule.decode_every=null,1,3", "task.samples=2")
    assert "6 rows from 2 prefills" in kvbench("run", *settings).err
    rows = rows_of(Path("out"))
    assert len({row.kept_sha256 for row in rows}) == 2 and {row.error for row in rows} == {None}
    held = {row.schedule: row.peak_bytes for row in rows}
    a_token = 2 * 2 * (2 * 8 * 4 + 4)  # layers, KV heads, K and V of 8 float32 and a position
    assert held["prompt decode_every=1"] == 25 * a_token
    assert held["prompt decode_every=3"] == (25 + 2) * a_token
    for row in rows:  # the last token of an answer is not read
        every = {"prompt decode_every=1": 1, "prompt decode_every=3": 3}.get(str(row.schedule))
        assert row.new_tokens and row.decode_evictions == ((row.new_tokens - 1) // every if every else 0)


def test_tokens_of_the_prompt_can_count_towards_the_first_eviction_from_the_answer(
    kvbench: Command, tiny: tuple[str, ...]
) -> None:
    """The cache is evicted from after the token that follows a multiple of `decode_every`, then as often as before."""
    answers = ("task.samples=1", "task.max_new_tokens=8", "task.min_new_tokens=8")
    settings = (*tiny, "policy=tova", "budget=25", *answers)
    assert kvbench("run", *settings).code == 0
    tokens = next(row.prompt_tokens for row in rows_of(Path("out")))
    counted = ("schedule.decode_counts=answer,all", f"schedule.decode_every={tokens + 2}")
    assert kvbench("run", *settings, *counted).code == 0
    a_token = 2 * 2 * (2 * 8 * 4 + 4)  # layers, KV heads, K and V of 8 float32 and a position
    held = {row.schedule: row.peak_bytes for row in rows_of(Path("out"))}
    assert held[f"prompt decode_every={tokens + 2}"] == (25 + 7) * a_token
    assert held[f"prompt decode_every={tokens + 2} decode_counts=all"] == (25 + 4) * a_token  # evicted after 3 of 7


@pytest.mark.parametrize(("prompt", "sizes"), [(751, [751, 146, 256]), (768, [768, 129, 256]), (896, [896, 129, 256])])
def test_evictions_of_rkv_are_where_its_code_has_them(prompt: int, sizes: list[int]) -> None:
    """Pairs before each eviction, at a budget of 128: after the prompt and after 1 + each multiple of 128 tokens."""
    schedule = Schedule(decode_every=128, decode_counts="all")
    first = 128 - schedule.pending(prompt)
    assert [prompt, 128 + first, 128 + 128] == sizes


def test_an_answer_of_its_own_budget_grows_to_it(kvbench: Command, tiny: tuple[str, ...]) -> None:
    """Beside what is kept of the prompt; answers of eight tokens, of which the last is not read."""
    answers = ("task.samples=1", "task.max_new_tokens=8", "task.min_new_tokens=8")
    settings = (*tiny, "policy=tova_obcache", "policy.recent=2", *answers)
    settings = (*settings, "budget=25,1.0", "schedule.decode_every=1", "schedule.answer_budget=null,3,500")
    assert kvbench("run", *settings).code == 0
    rows = rows_of(Path("out"))
    a_token = 2 * 2 * (2 * 8 * 4 + 4)
    held = {
        (row.budget, row.schedule): row.peak_bytes / a_token - row.kept_tokens  # type: ignore[operator]
        for row in rows
        if row.policy != "full"
    }
    assert {row.new_tokens for row in rows} == {8}
    assert held["25", "prompt decode_every=1"] == 0
    evictions = {(row.budget, row.schedule): row.decode_evictions for row in rows}
    assert evictions["25", "prompt decode_every=1 answer_budget=3"] == 4  # seven tokens are read, three fit
    assert evictions["25", "prompt decode_every=1 answer_budget=500"] == 0
    for budget in ("25", "1.0"):
        assert held[budget, "prompt decode_every=1 answer_budget=3"] == 3
        assert held[budget, "prompt decode_every=1 answer_budget=500"] == 7


def test_positions_of_the_cache_are_those_of_the_sequence_until_something_is_cut(
    kvbench: Command, tiny: tuple[str, ...]
) -> None:
    """Then answers differ in confidence at least; what is kept is the same. Samples do not see each other."""
    words = ("policy=streaming_llm", "policy.positions=original,cache", "budget=20,500", "task.samples=2")
    settings = (*tiny, "task.max_new_tokens=12", *words)
    for number, schedule in enumerate(("schedule.evict_after=context", *STEPS)):
        out = Path(f"out{number}")
        assert kvbench("run", *settings, schedule, f"results.dir={out}").code == 0
        rows = rows_of(out)
        assert len(rows) == 8 and {row.error for row in rows} == {None}
        for budget in ("20", "500"):
            for sample in {row.sample for row in rows}:
                first, second = (row for row in rows if (row.budget, row.sample) == (budget, sample))
                assert first.kept_sha256 == second.kept_sha256
                assert (first.top2_margin == second.top2_margin) == (budget == "500")
    alone = ("policy.positions=cache", "budget=20", "task.samples=1", STEPS[0], "results.dir=alone")
    assert kvbench("run", *settings[:-3], *alone).code == 0
    together = outcomes(Path("out1"))
    assert all(together[key] == outcome for key, outcome in outcomes(Path("alone")).items())


@pytest.mark.parametrize("steps", STEPS)
def test_no_state_survives_a_sample(kvbench: Command, tiny: tuple[str, ...], steps: str) -> None:
    """Samples one after the other leave the rows that each leaves alone, and so do other cells beside it."""
    settings = (*tiny, "policy=h2o_obcache", "policy.recent=4", "policy.window=all", steps)
    assert kvbench("run", *settings, "budget=20,0.3", "task.samples=2", "results.dir=together").code == 0
    for samples in (1, 2):
        assert kvbench("run", *settings, "budget=20", f"task.samples={samples}", "results.dir=apart").code == 0
    apart, together = outcomes(Path("apart")), outcomes(Path("together"))
    assert len(apart) == 2 and apart == {key: together[key] for key in apart}


def test_a_budget_below_the_protected_tokens_is_an_error_of_its_sample(kvbench: Command, tiny: tuple[str, ...]) -> None:
    finished = kvbench("run", *tiny, "policy=h2o_obcache", "budget=0.02", "schedule.prefill_block=50", "task.samples=1")
    (row,) = rows_of(Path("out"))
    assert finished.code == 4 and "cannot hold the 16 protected tokens of h2o_obcache" in str(row.error)


def test_what_is_repeated_is_repeated_once(kvbench: Command, tiny: tuple[str, ...]) -> None:
    """All policies over one context share its prefill and its repetition; what cannot be repeated again is refused."""
    policies = "policy=kvzip,kvzip_uniform,kvzip_head,h2o_obcache"
    settings = (*tiny, policies, "score=kvzip", "score.chunk=100", "budget=0.3,0.5", "schedule.evict_after=context")
    settings = (*settings, "task.samples=2")
    assert "16 rows from 2 prefills" in kvbench("run", *settings).err
    rows = rows_of(Path("out"))
    assert {row.error for row in rows} == {None} and {row.schedule for row in rows} == {"context"}
    kept = {(row.policy, row.budget): row.kept_fraction for row in rows if row.sample == 0}
    assert len({row.kept_sha256 for row in rows if row.sample == 0}) == len(kept) == 8
    for (policy, budget), fraction in kept.items():
        assert fraction is not None and fraction <= float(budget) + 0.002
        assert policy == "kvzip_head" or abs(fraction - float(budget)) < 0.002
    alone = (*tiny, "policy=kvzip", "score.chunk=100", "budget=0.3", "task.samples=1", "results.dir=apart")
    assert kvbench("run", *alone).code == 0
    together = outcomes(Path("out"))
    assert outcomes(Path("apart")).items() <= together.items()


def test_cake_cuts_while_it_answers_unless_told_otherwise(kvbench: Command, tiny: tuple[str, ...]) -> None:
    settings = (*tiny, "policy=cake", "policy.window=8", "policy.recent=8", "budget=25", "task.samples=1")
    assert kvbench("run", *settings, "results.dir=own").code == 0
    assert kvbench("run", *settings, "schedule.decode_every=null", "results.dir=grows").code == 0
    (own,), (grows,) = rows_of(Path("own")), rows_of(Path("grows"))
    assert (own.schedule, grows.schedule) == ("prompt decode_every=1", "prompt")
    assert own.kept_sha256 == grows.kept_sha256 and own.error is None
    assert own.peak_bytes == 25 * 2 * 2 * (2 * 8 * 4 + 4) < grows.peak_bytes  # type: ignore[operator]


def test_a_table_of_another_model_is_refused_before_anything_is_written(
    kvbench: Command, tiny: tuple[str, ...]
) -> None:
    """The tiny model has two layers of two KV heads."""
    for name, text in {"own": "0.9\t0.1\n0.4\t1\n", "other": "0.9\t0.1\n0.4\t1\n0.2\t0.3\n"}.items():
        Path(f"{name}.tsv").write_text(text)
    settings = (*tiny, "policy=duo_attention", "policy.recent=4", "budget=0.5", "task.samples=1")
    refused = kvbench("run", *settings, "score.path=other.tsv")
    assert refused.code == 2 and not list(Path("out").glob("rows/*"))
    assert "score.path=other.tsv: the table has 3 layers and 2 KV heads, the model 2 layers" in refused.err
    assert kvbench("run", *settings, "score.path=own.tsv").code == 0
    (row,) = rows_of(Path("out"))
    assert row.error is None and row.schedule == "prompt decode_every=1"
