"""Gates against those of kvpress in float64 (scripts/golden_methods.py), files of weights, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kvbench.cache.attention import AttentionParams
from kvbench.cache.kv_cache import KVCache, from_dense
from kvbench.eviction.budget import parse_budget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import RECORDED, IncrementalEviction, capacity_after
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import AttentionCall
from kvbench.extras.gates.gates import FastKVzip, KVzap
from kvbench.models import bridge
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.models.engine import Engine
from kvbench.support.errors import MissingFile, UserError
from scripts.golden_methods import FOLDER, gate_weights, made_up
from tests.arrays import random_layer
from tests.models.families import tiny
from tests.models.test_rotation import PROMPT

GOLDEN = json.loads((FOLDER / "gates.json").read_text("utf-8"))
DMS = json.loads((FOLDER / "dms_kvzap.json").read_text("utf-8"))
SCORES = {"linear": KVzap, "kvzap": KVzap, "fastkvzip": FastKVzip}


def layers(kind: str) -> list[dict[str, torch.Tensor]]:
    return [{name: torch.from_numpy(part) for name, part in layer.items()} for layer in gate_weights(kind)]


def written(folder: Path, kind: str, leave_out: str = "") -> str:
    """A safetensors file of these gates, without what ends in a name."""
    named = {f"layers.{i}.{name}": part for i, layer in enumerate(layers(kind)) for name, part in layer.items()}
    path = folder / f"{kind}.safetensors"
    save_file({name: part for name, part in named.items() if not leave_out or not name.endswith(leave_out)}, path)
    return str(path)


@pytest.mark.parametrize("kind", SCORES)
def test_scores_are_those_of_kvpress(kind: str, tmp_path: Path) -> None:
    score = SCORES[kind](written(tmp_path, kind))
    hidden, expected = (torch.tensor(part, dtype=torch.float64) for part in (GOLDEN["hidden"], GOLDEN["scores"][kind]))
    wide = score.gate({name: part.double() for name, part in layers(kind)[1].items()}, hidden)
    torch.testing.assert_close(wide, expected, rtol=1e-9, atol=1e-9)
    scores = score.read_hidden(random_layer(30, index=1), hidden)
    torch.testing.assert_close(scores.double(), wide, rtol=1e-4, atol=1e-5)  # sums of float32 in any order
    assert score.check_model(3, 2, "any") is None


def test_the_published_form_of_fast_kvzip_is_read(tmp_path: Path) -> None:
    torch.save({"module": layers("fastkvzip")}, tmp_path / "gates.pt")
    own, same = FastKVzip(str(tmp_path / "gates.pt")), FastKVzip(written(tmp_path, "fastkvzip"))
    hidden, layer = torch.tensor(GOLDEN["hidden"]), random_layer(30, index=2)
    assert torch.equal(own.read_hidden(layer, hidden), same.read_hidden(layer, hidden))
    torch.save({"module": [Path]}, tmp_path / "code.pt")
    with pytest.raises(UserError, match=r"code\.pt holds more than tensors, or is no file of torch: it is not read"):
        FastKVzip(str(tmp_path / "code.pt"))


def test_a_prompt_is_scored_block_by_block_as_at_once(tmp_path: Path) -> None:
    model = tiny("llama")
    score = of_model(model, tmp_path)
    bridge.attach(model)
    whole, split = (
        Engine(model, prefill_chunk=block, max_length=61).prefill(PROMPT, (), [score]).cache.layers
        for block in (61, 13)
    )
    for whole_layer, split_layer in zip(whole, split, strict=True):
        torch.testing.assert_close(whole_layer.recordings[score], split_layer.recordings[score], rtol=1e-4, atol=1e-5)
        assert score(whole_layer, None, "sum") is whole_layer.recordings[score]


KEPT = [(kind, threshold) for kind, by_threshold in DMS["kept_while_answering"].items() for threshold in by_threshold]


@pytest.mark.parametrize(("kind", "threshold"), KEPT)
def test_pairs_kept_while_answering_are_those_of_kvpress(kind: str, threshold: str, tmp_path: Path) -> None:
    score, first = SCORES[kind](written(tmp_path, kind)), DMS["prompt"]
    arrays = made_up(DMS["seed"], DMS["shape"])
    hidden = [torch.from_numpy(part) for part in arrays["queries"]]
    keys = torch.from_numpy(arrays["keys"])
    layers = []
    for index, states in enumerate(hidden):
        layer = from_dense(index, 4, keys[:, :first], keys[:, :first])
        layers.append(replace(layer, recordings={score: score.read_hidden(layer, states[:first])}))
    full = KVCache(tuple(layers), first)
    eviction = Eviction(Policy("dms", recent=DMS["window"]), score, parse_budget(f"threshold:{threshold}"))
    decision = eviction.decide(full)
    evictor = IncrementalEviction(eviction, capacity_after(eviction, full, decision), decoding=True)
    cache = EvictingCache(evictor, 1, evictor.remember(full, decision, eviction.evict(full, decision)))
    for token, expected in enumerate(DMS["kept_while_answering"][kind][threshold], start=first):
        held = [[head.tolist() for head in layer.positions.split(layer.lengths)] for layer in cache.freeze().layers]
        assert held == expected
        new = slice(token, token + 1)
        for index, states in enumerate(hidden) if token < keys.shape[1] else ():
            call = AttentionCall(None, SimpleNamespace(layer_idx=index), states[None, new], {})
            cache.attend(index, torch.zeros(4, 1, 20), keys[:, new], keys[:, new], AttentionParams(1.0), call)
        cache.finish(1)


def of_model(model: Any, folder: Path) -> KVzap:
    """Gates with the sizes of a model."""
    hidden, heads = model.config.hidden_size, model.config.num_key_value_heads
    parts = {}
    for index in range(model.config.num_hidden_layers):
        parts[f"layers.{index}.weight"] = torch.randn(heads, hidden)
        parts[f"layers.{index}.bias"] = torch.randn(heads)
    save_file(parts, folder / "gates.safetensors")
    return KVzap(str(folder / "gates.safetensors"))


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
def test_tokens_of_an_answer_have_the_scores_of_tokens_of_a_prompt(family: str, tmp_path: Path) -> None:
    """Two cells with a threshold that evicts nothing read an answer; then each pair has the number that a prefill of
    all tokens gives it.
    """
    model = tiny(family)
    score = of_model(model, tmp_path)
    bridge.attach(model)
    engine, first = Engine(model, max_length=512, max_batch=3), 40
    whole = engine.prefill(PROMPT, (), [score]).cache.evictable
    full = engine.prefill(PROMPT[:first], (), [score]).cache
    eviction = Eviction(Policy("dms", recent=7), score, parse_budget("threshold:-1000"))
    decision = eviction.decide(full)
    evictor = IncrementalEviction(eviction, capacity_after(eviction, full, decision), decoding=True)
    begun = evictor.remember(full, decision, eviction.evict(full, decision))
    caches = [engine.evicting_cache(evictor, every, begun) for every in (1, 4)]
    engine.read_silently(PROMPT[first:], caches)
    for cache in caches:
        for layer, expected in zip(cache.freeze().evictable, whole, strict=True):
            numbers = layer.state[RECORDED].view(layer.cache_heads, -1)
            torch.testing.assert_close(numbers, expected.recordings[score], rtol=1e-3, atol=1e-4)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"score\.gates=none: no such file"):
        KVzap("none")
    (tmp_path / "text.safetensors").write_text("no weights", "utf-8")
    with pytest.raises(UserError, match=r"text\.safetensors cannot be read"):
        KVzap(str(tmp_path / "text.safetensors"))
    with pytest.raises(UserError, match=r"for layer 0; score fastkvzip needs for each layer: b, k_base"):
        FastKVzip(written(tmp_path, "kvzap"))
    with pytest.raises(UserError, match=r"holds weight for layer 1; score kvzap needs for each layer: bias, weight or"):
        KVzap(written(tmp_path, "linear", leave_out="1.bias"))
    save_file({"layers.1.weight": torch.ones(2, 20)}, tmp_path / "first.safetensors")
    with pytest.raises(UserError, match=r"has gates of layers \[1\]; expected names layers\.0\.NAME"):
        KVzap(str(tmp_path / "first.safetensors"))
    score = KVzap(written(tmp_path, "linear"))
    with pytest.raises(UserError, match=r"gates of 3 layers of 2 KV heads do not fit a model of 5 layers of 2 KV"):
        score.check_model(5, 2, "any")
    with pytest.raises(UserError, match=r"do not fit layer 0 with 2 KV heads and hidden size 16"):
        score.read_hidden(random_layer(5), torch.ones(5, 16))
