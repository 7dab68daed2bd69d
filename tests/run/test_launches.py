"""Launched operations and waits of the evictions of a prompt, on the pretended GPU: they do not grow with layers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvbench.eviction.allocation.heads import FlatHeads, SafeguardHeads
from kvbench.eviction.allocation.layers import EntropyLayers, PreferenceLayers
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.attn import Attention, Cake
from kvbench.eviction.scores.keys import KeyDiff, KeyNorm
from kvbench.eviction.scores.recency import Recency
from kvbench.eviction.scores.score import Score
from kvbench.eviction.scores.weighted import Lava
from kvbench.models import bridge
from kvbench.models.decode.decoding import decoding_of
from kvbench.models.engine import Engine
from kvbench.models.loading.load import LoadedModel
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.prompts.prompt import Prompt
from kvbench.run.cell import Cell
from kvbench.run.decode_batch import batch_of
from kvbench.run.evict_cell import HeldCache, SharedPrefill, evict_cells
from kvbench.run.eviction_method import EvictionMethod
from kvbench.run.plan import PrefillJob
from kvbench.run.prefill_job import run_prefill_job
from tests.models.conftest import tiny_llama
from tests.models.counted import TOKENS, Count, counted, small_engine
from tests.pretended_gpu import PretendedGpu
from tests.questions import Questions
from tests.run.test_prefill_job import cells, samples_of

SNAPKV = Policy("snapkv", window=16, reduce="mean", pool=Pool("avg", 5), order=("pool", "group"), recent=16)
METHODS = (
    (SNAPKV, Attention()),
    (Policy("tova", window=1, recent=1, group="layer_mean"), Attention()),
    (Policy("plain"), KeyNorm()),
    (Policy("plain"), KeyDiff()),
    (Policy("streaming_llm", window=1, sink=4, state="none", accepts=("budget",)), Recency()),
    (replace(SNAPKV, name="ada_snapkv", heads=SafeguardHeads(alpha=0.2)), Attention()),
)
WEIGHED = (
    (replace(SNAPKV, name="lava", heads=FlatHeads(), layers=EntropyLayers()), Lava()),
    (replace(SNAPKV, name="cake", layers=PreferenceLayers()), Cake()),
)
WEIGHT = 10
"""Launches of the weight of a layer."""
STACK = 90
"""Launches of a further stack of layers."""
BUDGETS = (100, 80, 60, 40)
RANKED = 5
"""Rankings of these methods."""
LAUNCHES, WAITS = 229, 10
"""Of all 24 cells, from the prefill to the batch that decodes: limits that may only fall."""


def evict(gpu: PretendedGpu, layers: int, methods: Sequence[tuple[Policy, Score]]) -> None:
    """Evict and copy to a batch, in the section `evict`: cells with these methods and all budgets."""
    engine = small_engine(layers, max_batch=24, kernels="triton")
    cells = [
        Cell(
            ModelSpec("reference"),
            Questions(),
            EvictionMethod(policy, score, TokenBudget(pairs), "", None),
            Schedule("context"),
            0,
        )
        for policy, score in methods
        for pairs in BUDGETS
    ]
    prefilled = engine.prefill(torch.arange(TOKENS), {1, 16})
    shared = SharedPrefill(prefilled.cache, Prompt(tuple(range(TOKENS)), (), ""), cells)
    with gpu.section("evict"):
        outcomes = evict_cells(LoadedModel(engine, None, frozenset(), 9000, {}), cells, shared, copy=False)
        batch_of(engine, [each for each in outcomes if isinstance(each, HeldCache)], 32)
    assert not any(isinstance(outcome, ValueError) for outcome in outcomes)


def evictions(methods: Sequence[tuple[Policy, Score]]) -> tuple[Count, PretendedGpu]:
    """Launches and waits of the evictions of cells with these methods and all budgets; the GPU of four layers."""
    gpus = []

    def work(gpu: PretendedGpu, layers: int) -> None:
        evict(gpu, layers, methods)
        gpus.append(gpu)

    return counted(work)["evict"], gpus[-1]


def test_evictions_of_a_prompt() -> None:
    count, gpu = evictions(METHODS)
    assert count.launches == count.waits == 0, "nothing is launched for each layer"
    assert count.other_launches <= LAUNCHES and count.other_waits <= WAITS, count
    scattered = [number for name, number in gpu.launches["evict"].items() if name.startswith("scatter")]
    assert sum(scattered) == RANKED, "a GPU sorts for a scatter: one for each ranking, none for each budget"


def test_what_is_scored_in_several_stacks_is_decided_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of a large model: each stack launches its scores and the copy of its pairs, no masks of its own."""
    monkeypatch.setattr(Engine, "_layers_together", lambda self, before, numbers: 9)
    one, two = PretendedGpu(interpret=False), PretendedGpu(interpret=False)
    for gpu, layers in ((one, 9), (two, 18)):
        with gpu:
            evict(gpu, layers, METHODS)
    assert two.waited("evict") == one.waited("evict") <= WAITS
    assert two.launched("evict") <= one.launched("evict") + STACK <= LAUNCHES + STACK


@pytest.mark.parametrize("method", WEIGHED, ids=lambda method: method[0].name)
def test_weighed_layers_are_read_at_once(method: tuple[Policy, Score]) -> None:
    """A layer launches what its weight is made of."""
    count, _ = evictions([method])
    assert count.waits == 0 and count.launches <= WEIGHT, count
    assert count.other_waits <= 3 + len(BUDGETS), count


PROMPT_WAITS = 9
"""Of a later prompt, its answers included: what the host reads or sends, and ends of parts that are timed."""


def test_a_prompt_waits_no_more_often_for_more_layers(tokenizer: Any) -> None:
    wanted = cells("0.4", "30")
    for layers in (2, 4):
        with PretendedGpu(interpret=False) as gpu:
            llama = tiny_llama(vocab_size=len(tokenizer), num_hidden_layers=layers).to("cuda")
            bridge.attach(llama)
            engine = Engine(llama, max_batch=6, kernels="triton", max_length=512)
            engine.decoding = decoding_of(engine)
            model = LoadedModel(engine, tokenizer, frozenset(), 512, {})
            run_prefill_job(model, PrefillJob({0: wanted}), samples_of(0), "here")
            with gpu.section("second"):
                rows = run_prefill_job(model, PrefillJob({2: wanted}), samples_of(2), "here").rows
        assert [row.error for row in rows] == [None] * len(wanted)
        assert gpu.waited("second") <= PROMPT_WAITS, gpu.waits["second"]
