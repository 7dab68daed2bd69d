"""Memory: what is planned, and what happens when it runs out. A split changes no bit of a row."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from transformers import AutoConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from kvbench.cache.kv_cache import KVCache, storage_bytes
from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.eviction.allocation.heads import FlatHeads, SharedHeads
from kvbench.eviction.budget import parse_budget
from kvbench.eviction.evict import Eviction, rank_together, ranks_alike
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.scores.score import Score
from kvbench.extras.gpu_decoding.rooms import Rooms
from kvbench.models import bridge
from kvbench.models.batch_invariance import BatchInvariance
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from kvbench.models.loading.architecture import plain_config, sliding_windows
from kvbench.models.loading.load import LoadedModel
from kvbench.run import evict_cell, memory, prefill_job
from kvbench.run.memory import (
    cell_bytes,
    count_rankings,
    split_to_fit,
)
from kvbench.run.plan import plan
from kvbench.run.plan_memory import memory_of, memory_text
from kvbench.run.prefill_job import run_prefill_job
from kvbench.support.errors import UserError
from tests.allocations import stored_bytes
from tests.models.families import tiny
from tests.pretended_gpu import PretendedGpu
from tests.run.test_prefill_job import cells, outcomes, samples_of

ASKED = cells("0.2", "0.4", "0.6", "30", "40")


@pytest.fixture(scope="module")
def model(load: Callable[..., LoadedModel]) -> LoadedModel:
    return load(max_batch=6)


def run(model: LoadedModel, sweep: Sequence[Any] = ASKED) -> list[Any]:
    fresh = replace(model, engine=replace(model.engine, counters=type(model.engine.counters)()))
    model.engine.counters = fresh.engine.counters
    return run_prefill_job(
        fresh, prefill_job.PrefillJob({0: tuple(sweep), 2: tuple(sweep)}), samples_of(0, 2), "here"
    ).rows


def breaking(limit: int, error: Callable[[], Exception]) -> Callable[..., RaggedBatch]:
    """A tile that holds no more than `limit` cells."""

    def tile(caches: Any, cells: int, room: int, *kernels: Any) -> RaggedBatch:
        held = list(caches)
        if len(held) > limit:
            raise error()
        return RaggedBatch(held, cells, room)

    return tile


def batches_by(make: Callable[..., RaggedBatch], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines make decode batches so: of caches, for so many cells, with so much room."""
    monkeypatch.setattr(Engine, "batch", lambda engine, caches, room: make(caches, engine.max_batch, room))


def cuda_error() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")


def cpu_error() -> Exception:
    return RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")


@pytest.mark.parametrize(("limit", "error"), [(1, cuda_error), (4, cpu_error)])
def test_a_tile_that_does_not_fit_is_halved(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, limit: int, error: Callable[[], Exception]
) -> None:
    """Rows are those of a run with enough memory, and later prompts begin with what fitted."""
    expected = outcomes(run(model))
    assert model.engine.counters.oom_splits == 0
    batches_by(breaking(limit, error), monkeypatch)
    assert outcomes(run(model)) == expected
    counters = model.engine.counters
    assert counters.oom_splits == 1 and counters.prefills == 1 and counters.max_cells in range(1, limit + 1)


def test_a_cell_that_does_not_fit_alone_is_an_error_of_its_rows(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = outcomes(run(model))
    full = breaking(0, cuda_error)

    def tile(caches: Any, cells: int, room: int, *kernels: Any) -> RaggedBatch:
        held = list(caches)
        return (
            full(held, cells, room)
            if any(cache.pairs == 3 * 2 * cache.num_tokens for cache in held)
            else RaggedBatch(held, cells, room)
        )

    batches_by(tile, monkeypatch)
    rows = run(model)
    for row, other in zip(rows, expected, strict=True):
        if row.policy == "full":
            assert row.error == "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB." and row.value is None
        else:
            assert row.outcome() == other


@pytest.mark.parametrize(("layout", "copies"), [("kv_heads", 1), ("query_heads", 4)])
def test_the_plan_of_a_prompt_read_in_blocks_follows_the_budget(layout: str, copies: int) -> None:
    """128K tokens of Llama 3.1 8B: 32 layers of 8 heads with 1,024 pairs and a block of 4,096; a pair is 512 bytes."""
    words = "model=shape/llama3.1-8b task=ruler/niah_single_1 task.context_length=131072 policy=ada_snapkv budget=1024"
    words += f" schedule.prefill_block=4096 policy.layout={layout}"
    (group,) = plan([CellBuilder().cell(tree) for tree in combinations(parse(words.split()))], set()).groups
    memory, tokens = memory_of(group), 1024 + 4096
    assert memory is not None and memory.full == 131072 * 32 * 8 * 512
    assert memory.reading == copies * tokens * 32 * 8 * 512 and memory.scoring == copies * tokens * 32 * 8 * 20
    assert memory.total == memory.reading + memory.scoring < memory.full / 5
    held = f"a cache that is evicted from block by block at most {memory.reading / 2**20:.1f} MiB"
    assert f"memory: {held} (a full one: 16384.0 MiB); the cell at most" in str(memory_text(group))


def test_the_plan_counts_recurrent_states() -> None:
    """Three layers of linear attention: a convolution over 4 tokens of 2 x 12 + 40 numbers, and 4 states of 6 x 10."""
    words = "model=shape/tiny-qwen3-next task=ruler/niah_single_1 task.context_length=500 policy=full,snapkv budget=0.5"
    (group,) = plan([CellBuilder().cell(tree) for tree in combinations(parse(words.split()))], set()).groups
    memory, state = memory_of(group), 3 * 4 * (4 * 64 + 4 * 6 * 10)
    assert memory is not None and memory.states == (1 + len(group.cells) + group.model.max_batch) * state
    assert f"; states of recurrent layers {memory.states / 2**20:.1f} MiB" in str(memory_text(group))
    (other,) = plan([CellBuilder().cell(tree) for tree in combinations(parse(words.split()[1:]))], set()).groups
    assert "states" not in str(memory_text(other))


def test_states_leave_less_room_for_cells(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell has one, and a padded batch has them besides."""
    hybrid = tiny("qwen3_next", vocab_size=len(tokenizer))
    state = bridge.state_bytes(hybrid.config, torch.float32)
    bridge.attach(hybrid)
    model = LoadedModel(Engine(hybrid, max_batch=6), tokenizer, frozenset(), 512, {"name": "cpu"})
    planned: list[tuple[int, int]] = []

    def recorded(units: Any, bytes_of: Any, free: int, most: int) -> Any:
        planned.append((bytes_of(units[0]), free))
        return split_to_fit(units, bytes_of, free, most)

    monkeypatch.setattr(memory, "free_bytes", lambda devices: 10**9)
    monkeypatch.setattr(memory, "split_to_fit", recorded)
    run(model)
    monkeypatch.setattr(KVCache, "exempt", {"local_layers": 0, "recurrent_layers": None, "recurrent_bytes": None})
    run(model)
    (cell, free), (cell_without, free_without) = planned[0], planned[len(planned) // 2]
    rows = (model.engine.batch_invariance or BatchInvariance()).rows(6, 6, 1)
    assert cell - cell_without == state > 0 and free_without - free == rows * state


def test_cells_are_planned_into_what_is_free(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, as many as fit; one that is larger than all there is goes by itself."""
    sizes = {"a": 30, "b": 30, "c": 50, "d": 200, "e": 10}
    assert list(split_to_fit("abcde", sizes.__getitem__, 100, 9)) == [["a", "b"], ["c"], ["d"], ["e"]]
    assert list(split_to_fit("abcde", sizes.__getitem__, 10**9, 2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert [len(part) for part in split_to_fit(range(14), lambda cell: 9, 100, 12)] == [7, 7], "not 10 and 4"
    assert [len(part) for part in split_to_fit(range(7), lambda cell: 9, 100, 4)] == [4, 3]
    assert split_to_fit("", sizes.__getitem__, 100, 9) == []
    expected, batches = outcomes(run(model)), []
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1)
    batches_by(lambda caches, *rest: batches.append(held := list(caches)) or RaggedBatch(held, *rest), monkeypatch)
    assert outcomes(run(model)) == expected
    assert [len(held) for held in batches] == [1] * 2 * len(ASKED)


def test_what_a_cell_is_planned_to_need_is_what_it_takes(model: LoadedModel) -> None:
    """Against the tile: what is kept, copied once or twice, and tails; repeated pairs are counted."""
    (cell,) = cells("0.4")[1:]
    prefilled = model.engine.prefill(torch.arange(5, 55), {8})
    pair_bytes = prefilled.full_bytes // 50
    for layout, group in (("kv_heads", 1), ("query_heads", 3)):
        laid_out = cell.with_method(policy=replace(cell.policy, layout=layout))
        cache = evict_cell.Eviction(laid_out.policy, laid_out.score, parse_budget("0.4"))(prefilled.cache)
        tile = RaggedBatch([cache], 6, 7)
        assert cell_bytes(laid_out, 50, 7, pair_bytes, 3) == stored_bytes(tile)
        evicting = replace(laid_out, schedule=replace(cell.schedule, decode_every=1))
        assert cell_bytes(evicting, 50, 7, pair_bytes, 3) == cache.bytes_held + stored_bytes(tile)
        assert cache.bytes_held == group * 20 * pair_bytes


class User:
    """What lies in a room."""


def test_parts_that_do_not_fit_together_take_one_room() -> None:
    """Of 14 cells 10 fit, and no second room beside theirs: what is captured serves both parts of every prompt."""
    with PretendedGpu(total=10_000_000, interpret=False):
        rooms, seen, like = Rooms(), [], torch.zeros(1, 64, dtype=torch.bfloat16, device="cuda")
        for _ in range(3):
            for part in split_to_fit(range(14), lambda cell: 9, 100, 12):
                user = User()
                room = rooms.take(user, like, 2, (8,) * len(part), (2000 * len(part), 500, 32))
                assert room is not None
                seen.append(bool(room.captured))
                room.captured["step"] = True
                del user, room
    assert seen == [False, *(True,) * 5]


RANKED = (
    Policy("h2o_obcache", window=4),
    Policy("ada", window=4, heads=FlatHeads()),
    Policy("snapkv", window=4, pool=Pool("max", 3), heads=FlatHeads()),
    Policy("tova_obcache", window=4, heads=SharedHeads()),
    Policy("apart", window=4, layout="query_heads", group="none", heads=FlatHeads()),
)


@pytest.mark.parametrize("policy", RANKED, ids=lambda policy: policy.name)
def test_a_ranking_takes_no_more_than_planned(model: LoadedModel, policy: Policy) -> None:
    cell = cells("0.4")[1].with_method(policy=policy)
    number, planned = count_rankings([cell, cell.with_method(budget=parse_budget("0.2"))], 50, 6, 3)
    decision = Eviction(policy, cell.score, cell.budget).decide(model.engine.prefill(torch.arange(50), {4}).cache)
    assert number == 1 and decision.rankings is not None
    held = storage_bytes(part for ranking in decision.rankings for part in tensors_of(ranking))
    assert planned / 3 <= held <= planned


def tensors_of(ranking: Any) -> list[torch.Tensor]:
    """All that a ranking holds, its cached orders and the ranking shared by the heads included."""
    parts = vars(ranking).values()
    nested = [
        tensor for part in parts if isinstance(part, Ranking) for tensor in tensors_of(part) if part is not ranking
    ]
    return [part for part in parts if isinstance(part, torch.Tensor)] + nested


def test_rankings_that_do_not_fit_are_made_again(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are the same; of two policies that are scored together only as many are ranked as may be held."""
    other = ASKED[-1].with_method(
        policy=Policy("ada", window=8, heads=FlatHeads(), pool=Pool("max", 3)), policy_label="ada"
    )
    sweep, policy_groups = [*ASKED, other], []
    expected = outcomes(run(model, sweep))
    monkeypatch.setattr(
        evict_cell, "rank_together", lambda *rest: policy_groups.append(rest[1]) or rank_together(*rest)
    )
    assert outcomes(run(model, sweep)) == expected
    together = len({ranks_alike(cell.policy, cell.score) for cell in sweep[1:]})
    assert [len(policies) for policies in policy_groups] == [together] and together > 1
    policy_groups.clear()
    monkeypatch.setattr(memory, "RANKINGS_SHARE", 0)
    assert outcomes(run(model, sweep)) == expected and [len(policies) for policies in policy_groups] == [1] * together


def test_policies_that_fail_together_hold_nothing_while_one_is_ranked(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are the same; what the failed attempt computed is freed before the next one."""
    other = replace(ASKED[-1].policy, name="other", pool=Pool("max", 3))
    sweep, computed = [*ASKED, ASKED[-1].with_method(policy=other, policy_label="other")], list[ref[torch.Tensor]]()
    expected = outcomes(run(model, sweep))

    def failing(cache: KVCache, policies: Sequence[Policy], score: Score) -> Any:
        if len(policies) == 1:
            assert computed and all(scores() is None for scores in computed)
            return rank_together(cache, policies, score)
        scores = torch.zeros(9)
        computed.append(ref(scores))
        raise UserError("one of them cannot be ranked")

    monkeypatch.setattr(evict_cell, "rank_together", failing)
    assert outcomes(run(model, sweep)) == expected and computed


LARGER: dict[str, Any] = {"num_hidden_layers": 3, "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("config", "is_plain"),
    [
        (LlamaConfig(**LARGER, dtype="bfloat16"), True),
        (LlamaConfig(**LARGER, head_dim=64, dtype="float16"), True),
        (LlamaConfig(**LARGER), False),  # no dtype
        (LlamaConfig(**LARGER, dtype="float32", sliding_window=8), False),
        (LlamaConfig(**LARGER, dtype="float32", layer_types=["sliding_attention"] * 3), False),
        (
            Qwen2Config(**LARGER, dtype="bfloat16", use_sliding_window=True, sliding_window=8, max_window_layers=1),
            False,
        ),
        (Qwen3Config(**LARGER, dtype="bfloat16"), False),  # head_dim has a default
        (MistralConfig(**LARGER, dtype="bfloat16"), False),  # sliding_window has a default
    ],
)
def test_dimensions_of_config_json_are_those_of_transformers(config: Any, is_plain: bool, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    plain, expected = plain_config(tmp_path), AutoConfig.from_pretrained(tmp_path)
    assert (plain is not None) is is_plain
    if plain is not None:
        names = ("num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim", "dtype")
        assert [getattr(plain, name) for name in names] == [getattr(expected, name) for name in names]
        assert sliding_windows(plain) == sliding_windows(expected)


def test_the_hub_writes_of_qwen2_are_plain(tmp_path: Path) -> None:
    config = {"model_type": "qwen2", "torch_dtype": "bfloat16", "use_sliding_window": False, "sliding_window": 32768}
    sizes = {**LARGER, "intermediate_size": 128, "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps({**config, **sizes}))
    plain, expected = plain_config(tmp_path), AutoConfig.from_pretrained(tmp_path)
    assert plain is not None and plain.dtype == expected.dtype and sliding_windows(plain) == sliding_windows(expected)
    assert plain.head_dim == expected.hidden_size // expected.num_attention_heads


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model_type": "llama", "num_hidden_layers": "3"}'])
def test_a_broken_config_json_is_left_to_transformers(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert plain_config(tmp_path) is None
