"""Decoding by a CUDA graph: on the pretended GPU, and equal to the eager step where there is a GPU."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kvbench.cache.kv_cache import CutCache
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.recency import Recency
from kvbench.extras.gpu_decoding.decoding import GpuDecoding
from kvbench.extras.gpu_decoding.graph import READ_EVERY
from kvbench.extras.gpu_decoding.rooms import Rooms
from kvbench.models.decode.next_token import Sampled, Sampler, greedy, uniforms
from kvbench.models.engine import Engine, Generation
from tests.models.counted import RAGGED, TOKENS, small_engine
from tests.pretended_gpu import PretendedGpu

NEW_TOKENS = 18
STREAMING = Policy("streaming_llm", window=1, sink=1, recent=2, state="none")


def answers(
    engine: Engine, stop: tuple[int, ...], at_least: int, sliding_window: int | None, choose: Sampler = greedy
) -> list[Generation]:
    """Two cells of one prompt, in memory of their own; `sliding_window`: their last layer is local."""
    prefilled = engine.prefill(torch.arange(40) % TOKENS, {8})
    caches = [Eviction(RAGGED, Attention(), TokenBudget(budget))(prefilled.cache) for budget in (16, 24)]
    if sliding_window is not None:
        last = replace(prefilled.cache.layers[-1], sliding_window=sliding_window)
        caches = [replace(cache, layers=(*cache.layers[:-1], last)) for cache in caches]
    batch = engine.batch(caches, NEW_TOKENS)
    generations = engine.generate(prefilled, batch, stop, at_least, choose=choose)
    assert batch.num_new_tokens < NEW_TOKENS
    return generations


def both(
    kernels: Any,
    stop: tuple[int, ...] = (),
    at_least: int = 0,
    sliding_window: int | None = None,
    choose: Sampler = greedy,
) -> None:
    """The same answers by a graph and without one."""
    generated = []
    for cuda_graph in ("auto", "never"):
        engine = small_engine(1 if sliding_window is None else 2, max_batch=2, kernels=kernels, cuda_graph=cuda_graph)
        engine.model.float()
        generated.append(answers(engine, stop, at_least, sliding_window, choose))
    for graph, eager in zip(*generated, strict=True):
        assert graph.ids == eager.ids and len(graph.ids) > 1
        assert graph.top2_margin == pytest.approx(eager.top2_margin, abs=1e-5)  # of logits of float32
        assert graph.running == eager.running and graph.seconds > 0


@pytest.mark.parametrize("kernels", ["torch", pytest.param("triton", marks=pytest.mark.slow)])
def test_a_graph_gives_the_answers_of_single_steps(kernels: str) -> None:
    """Numbers of the host that a capture would freeze show here: a replay launches the same on the same memory."""
    with PretendedGpu() as gpu:
        both(kernels)
    replays = sum(
        n for place, n in gpu.launches["start"].items() if place.startswith("graph at extras/gpu_decoding/graph.py")
    )
    assert replays == NEW_TOKENS - 2 and not gpu.mixed


def test_local_layers_draws_and_ends_of_answers_are_replayed_too() -> None:
    """Each replay takes the number of its own step."""
    with PretendedGpu():
        both("torch", sliding_window=45, choose=drawn(0, NEW_TOKENS))
        engine = small_engine(1, max_batch=2, kernels="torch", cuda_graph="never")
        engine.model.float()
        both("torch", stop=(answers(engine, (), 0, None)[0].ids[4],), at_least=2)


def test_the_host_waits_once_for_eight_tokens() -> None:
    with PretendedGpu(interpret=False) as gpu:
        engine = small_engine(2, max_batch=2, kernels="triton")
        prefilled = engine.prefill(torch.arange(40), {8})
        batch = engine.batch([prefilled.cache], 4 * READ_EVERY)
        with gpu.section("answer"):
            engine.generate(prefilled, batch, stop=())
    assert gpu.waited("answer") == 4


def test_all_steps_are_captured_on_the_stream_of_the_engine() -> None:
    """For each other stream cuBLAS would keep a workspace."""
    with PretendedGpu() as gpu:
        engine = small_engine(1, max_batch=2, kernels="torch")
        for _ in range(2):
            engine.decoding = engine.decoding.fresh()
            answers(engine, (), 0, None)
        assert isinstance(engine.decoding, GpuDecoding) and gpu.captured_on == [engine.decoding.stream] * 2


def drawn(prompt: int, steps: int) -> Sampled:
    """What draws the tokens of two answers to a prompt."""
    numbers = np.stack([uniforms(1, prompt, answer, steps) for answer in range(2)], axis=1)
    return Sampled(1.5, 0.9, torch.tensor(numbers).to("cuda"))


def prompts(
    gpu: PretendedGpu,
    rooms: Rooms | None,
    sizes: Sequence[int],
    answers: Sequence[int],
    choose: Callable[[int, int], Sampler] = lambda prompt, steps: greedy,
    kernels: Any = "triton",
) -> Iterator[Any]:
    """The answers of two cells to prompts of these sizes, one after the other, each in a section of its own."""
    engine = small_engine(1, max_batch=3, kernels=kernels, cuda_graph="never" if rooms is None else "auto")
    engine.model.float()
    engine.decoding = replace(engine.decoding, rooms=rooms)
    for number, (size, tokens) in enumerate(zip(sizes, answers, strict=True)):
        prefilled = engine.prefill(torch.arange(size) * (number + 3) % TOKENS)
        eviction = Eviction(STREAMING, Recency(), TokenBudget(size // 2))
        decision = eviction.decide(prefilled.cache)
        kept = CutCache(prefilled.cache, decision.kept, decision.lengths)
        batch = engine.batch([kept, prefilled.cache], tokens)
        with gpu.section(f"prompt {number}"):
            answered = engine.generate(prefilled, batch, (), choose=choose(number, tokens))
        yield [(each.ids, each.top2_margin) for each in answered]
        assert (batch.room is None) == (rooms is None)
        if batch.room is not None:  # what a prompt does not write, it does not read
            for memory in (batch.room.keys, batch.room.values, batch.room.tails):
                memory.fill_(torch.nan)
        del batch, kept


def test_prompts_of_a_size_share_one_captured_step() -> None:
    with PretendedGpu(interpret=False) as gpu:
        captures = [gpu.captures for _ in prompts(gpu, Rooms(), (44, 43, 41, 40, 42, 400, 40), (5, 9, 7, 2, 20, 3, 3))]
    assert captures == [1] * 5 + [2] * 2 and not gpu.mixed
    launched = [gpu.launched(f"prompt {number}") for number in range(5)]
    assert [launched[number] - launched[1] for number in (2, 3, 4)] == [-2, -7, 11], "each later token is one replay"


def test_batches_of_as_many_segments_but_other_cells_share_no_step() -> None:
    """Four cells of two KV heads, then two cells of four query heads, that keep as many pairs."""
    of_cells = {4: replace(STREAMING, name="by KV head"), 2: replace(STREAMING, layout="query_heads")}
    answered = []
    with PretendedGpu():
        for rooms in (Rooms(), None):
            engine = small_engine(1, kv_heads=2, kernels="triton", cuda_graph="never" if rooms is None else "auto")
            engine.model.float()
            engine.decoding = replace(engine.decoding, rooms=rooms)
            prefilled = engine.prefill(torch.arange(12) % TOKENS)
            for cells, policy in of_cells.items():
                decision = Eviction(policy, Recency(), TokenBudget(6)).decide(prefilled.cache)
                kept = [CutCache(prefilled.cache, decision.kept, decision.lengths)] * cells
                batch = engine.batch(kept, 3)
                answered.append([each.ids for each in engine.generate(prefilled, batch, ())])
                del batch
    assert answered[:2] == answered[2:]


def test_drawn_answers_of_a_shared_step_are_those_of_single_steps() -> None:
    """Prompts that share a step are answered as one by one; each draws with its own numbers."""
    with PretendedGpu() as gpu:
        shared, single = (list(prompts(gpu, rooms, (12, 9), (3, 3), drawn)) for rooms in (Rooms(), None))
        likely = next(prompts(gpu, None, (12,), (3,), kernels="torch"))
    assert gpu.captures == 1 and shared == single
    assert [ids for ids, _ in shared[0]] != [ids for ids, _ in likely], "nothing was drawn"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: a graph is pretended in the tests above")
@pytest.mark.parametrize("kernels", ["torch", "triton"])
def test_on_a_gpu_a_graph_gives_the_answers_of_single_steps(kernels: str) -> None:
    both(kernels)
    both(kernels, sliding_window=45)
