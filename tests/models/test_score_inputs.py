"""What scores may have of the model: its projections and hidden states, against what transformers itself shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import AutoTokenizer

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.eviction.incremental import check_steps
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.score import AttentionCall, Reduce, Score, ScoreInputs
from kvbench.extras.conformance.properties import check
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prefill import Prefill
from kvbench.run.plan import plan
from kvbench.run.plan_memory import hidden_bytes, memory_text
from kvbench.run.prefill_job import run_prefill_job
from tests.embedded import HIDDEN, LAYERS, QUERY_HEADS
from tests.models.conftest import tiny_llama
from tests.models.families import FAMILIES, PROMPT, engine_of, tiny
from tests.run.test_prefill_job import cells, samples_of

PRE_NORM = ["llama", "qwen3", "phi3", "mistral window", "gemma2", "granite"]
"""Families whose attention reads `input_layernorm` of the residual stream, which transformers returns."""


@dataclass(frozen=True)
class Hidden(Score):
    """The first coordinates of the hidden states, one per KV head."""

    name: str = "hidden"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(hidden_states="block")

    def read_hidden(self, layer: LayerCache, hidden: Tensor) -> Scores:
        return hidden[:, : layer.cache_heads].T

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return layer.recordings[self]


@dataclass(frozen=True)
class EachToken(Hidden):
    name: str = "each_token"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(hidden_states="token")


@dataclass(frozen=True)
class WholePrompt(Hidden):
    name: str = "whole_prompt"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(hidden_states="prompt", projections=("output", "query"))


def read(model: Any, scores: Sequence[Score], block: int = 13) -> tuple[LayerCache, ...]:
    bridge.attach(model)
    return Engine(model, prefill_chunk=block, max_length=512).prefill(PROMPT, (), scores).cache.evictable


@pytest.mark.parametrize("block", [61, 13])
@pytest.mark.parametrize("family", PRE_NORM)
def test_hidden_states_are_the_input_of_the_attention(family: str, block: int) -> None:
    model = tiny(family)
    with torch.inference_mode():
        residual = model(PROMPT[None], use_cache=False, output_hidden_states=True).hidden_states
        inputs = [layer.input_layernorm(part[0]) for layer, part in zip(model.model.layers, residual, strict=False)]
    for layer in read(model, [Hidden()], block):
        assert torch.allclose(layer.recordings[Hidden()], inputs[layer.index][:, : layer.cache_heads].T, atol=1e-4)
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_output_projection_makes_what_the_layer_adds(family: str) -> None:
    model, seen = tiny(family), {}

    def spy(module: Any, arguments: tuple[Tensor], output: Tensor) -> None:
        seen[module] = arguments[0][0], output[0]

    for layer in read(model, [WholePrompt()]):
        attention = [part for part in model.modules() if getattr(part, "layer_idx", None) == layer.index]
        names = ("o_proj", "out_proj", "dense", "c_proj")
        linear = next(getattr(part, name) for part in attention for name in names if hasattr(part, name))
        with linear.register_forward_hook(spy):
            read(model, [])
        given, layer_output = seen[linear]
        bias = 0 if linear.bias is None else linear.bias
        assert torch.allclose(given @ layer.projections["output"].T + bias, layer_output, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "phi3", "mistral", "gemma2", "granite"])
def test_the_query_projection_makes_the_queries(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those at position 0, where the rotation does nothing, in families without bias and norm."""
    model, queries, hidden = tiny(family), {}, {}
    attend, receive = Prefill.attend, Prefill.receive

    def spy(self: Prefill, layer: int, *arrays: Any) -> Tensor:
        queries[layer] = arrays[0][0, :, 0].flatten()
        return attend(self, layer, *arrays)

    def spy_hidden(self: Prefill, call: AttentionCall) -> None:
        hidden[call.module.layer_idx] = call.hidden[0, 0]
        receive(self, call)

    monkeypatch.setattr(Prefill, "attend", spy)
    monkeypatch.setattr(Prefill, "receive", spy_hidden)
    layers = read(model, [WholePrompt()])
    assert layers and all(
        torch.allclose(layer.projections["query"] @ hidden[layer.index], queries[layer.index], atol=1e-5)
        for layer in layers
    )


def test_hidden_states_of_one_layer_are_held_at_a_time() -> None:
    """Those of other layers and passes are freed when a score reads a layer; a score gets what it says at once."""
    seen: list[tuple[int, int, int]] = []
    held: list[StorageWeakRef] = []

    @dataclass(frozen=True)
    class Watching(WholePrompt):
        span: str = "prompt"

        @property
        def inputs(self) -> ScoreInputs:  # type: ignore[override]
            return ScoreInputs(hidden_states=self.span)  # type: ignore[arg-type]

        def read_hidden(self, layer: LayerCache, hidden: Tensor) -> Scores:
            assert all(before.expired() for before in held)
            held[:] = [StorageWeakRef(hidden.untyped_storage())]
            seen.append((layer.index, int(layer.positions[0]), len(hidden)))
            return super().read_hidden(layer, hidden)

    model = tiny("llama")
    read(model, [Watching()])
    assert seen == [(layer, 0, 61) for layer in range(4)]
    seen.clear()
    read(model, [Watching(span="block")], block=40)
    assert seen == [(layer, first, size) for first, size in ((0, 40), (40, 21)) for layer in range(4)]


def test_nothing_of_the_model_is_recorded_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "attention_calls", None)
    monkeypatch.setattr(bridge, "projection", None)
    layers = read(tiny("llama"), [Attention()])
    assert not any(layer.recordings or layer.projections or layer.future_queries for layer in layers)


def test_other_cells_have_the_same_rows_beside_a_score_that_reads_the_prompt_at_once() -> None:
    """It reads prompts of its own, in one pass; a score that reads blocks shares those of the others."""
    tokenizer = AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "golden" / "ruler" / "tokenizer")
    model = tiny_llama(vocab_size=len(tokenizer))
    bridge.attach(model)
    loaded = LoadedModel(Engine(model, prefill_chunk=16, max_batch=3), tokenizer, frozenset(), 512, {"name": "cpu"})
    attn = cells("0.5")[1]
    block, whole = (attn.with_method(score=score, score_label=score.name) for score in (Hidden(), WholePrompt()))
    groups = plan([attn, block, whole], set()).groups
    assert [len(group.cells) for group in groups] == [2, 1]
    (alone,), both, (whole_row,) = (
        run_prefill_job(loaded, group.jobs[0], samples_of(0), "here").rows
        for group in (*plan([attn], set()).groups, *groups)
    )
    assert both[0].outcome() == alone.outcome()
    assert [row.error for row in (*both, whole_row)] == [None] * 3


def test_the_plan_counts_hidden_states() -> None:
    """At most 4096 tokens are read in a pass."""
    words = "task=ruler/niah_single_1 task.context_length=5000 model.max_length=6000 policy=snapkv score=attn"
    (tree,) = combinations(parse(words.split()))
    cell = CellBuilder().cell(tree)
    for score, held in ((Hidden(), 4096), (WholePrompt(), 5000)):
        (group,) = plan([cell.with_method(score=score)], set()).groups
        sizes = (held * HIDDEN * 4, LAYERS * QUERY_HEADS * 5000 * 4)
        assert hidden_bytes(group) == sizes
        hidden, scored = (f"{size / 2**20:.1f} MiB" for size in sizes)
        assert f"hidden states {hidden}, computed from them by scores at most {scored}" in str(memory_text(group))
    (group,) = plan([cell], set()).groups
    assert hidden_bytes(group) is None and "hidden states" not in str(memory_text(group))


def test_what_cannot_be_read_is_refused() -> None:
    @dataclass(frozen=True)
    class Flat(Hidden):
        def read_hidden(self, layer: LayerCache, hidden: Tensor) -> Scores:
            return hidden

    with pytest.raises(ValueError, match=r"score hidden: read_hidden has shape \[13, 48\], expected "):
        read(tiny("llama"), [Flat()])
    with pytest.raises(
        ValueError, match="score hidden reads the model with the prompt, once, so it cannot evict again"
    ):
        check_steps(Policy("plain"), Hidden())
    with pytest.raises(ValueError, match="has no query projection of width 7 in the attention of layer 0"):
        bridge.projection(engine_of("llama").model, 0, 7, "query")


def test_scores_with_such_inputs_have_the_properties() -> None:
    check(Hidden())
    check(EachToken())
    check(EachToken(), Policy("accumulating", window=8, recent=4, state="accumulate"))
    check(WholePrompt())
