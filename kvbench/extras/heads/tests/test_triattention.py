"""TriAttention against its published code, on caches whose heads differ, and files that hold no statistics."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kvbench.cache.kv_cache import ROTATED, KVCache, LayerCache, from_dense
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction, keep_mask, rank_columns
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.policy import Policy
from kvbench.extras.conformance.golden.compare import slot_scores
from kvbench.extras.heads.triattention import FORMAT, QueryStatistics, TriAttention, complex_pairs, read_statistics
from kvbench.models.rope import KeyReRotation, KeyRotation
from scripts.golden_methods import FOLDER, made_up, rotated
from tests import repository
from tests.arrays import random_cache, random_layer

GOLDEN = json.loads((FOLDER / "triattention.json").read_text("utf-8"))
POLICY = Policy("triattention", window=1, state="none")
STATISTICS = repository.GOLDEN / "heads" / "queries.safetensors"


def written(path: Path, queries: torch.Tensor, frequencies: torch.Tensor, interleaved: bool = False) -> str:
    """The file of statistics of queries [layers, heads, tokens, head_dim] that nothing rotates."""
    numbers = complex_pairs(queries.double(), interleaved)
    mean, size = numbers.mean(dim=2).to(torch.complex64), numbers.abs().mean(dim=2).float()
    layers = frequencies.float().expand(len(queries), -1)
    QueryStatistics(mean, size, layers, interleaved, "mine", "abc", {"tokens": 9}).write(path)
    return str(path)


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_scores_and_kept_pairs_are_those_of_the_published_code(case: dict[str, Any], tmp_path: Path) -> None:
    """The whole prompt; pairs that evictions left, others in each head; neighbours as pairs; 1000 ahead; all norms."""
    arrays, positions = made_up(GOLDEN["seed"], GOLDEN["shape"]), torch.tensor(case["positions"])
    frequencies = torch.tensor(GOLDEN["frequencies"], dtype=torch.float64)
    keys = rotated(arrays["keys"], positions.numpy(), frequencies.numpy(), case["interleaved"])
    layer = from_dense(0, len(arrays["queries"]), torch.from_numpy(keys).float(), torch.from_numpy(arrays["values"]))
    layer = replace(layer, positions=positions.flatten().int())
    queries = torch.from_numpy(arrays["queries"])[None]
    score = TriAttention(written(tmp_path / "q", queries, frequencies, case["interleaved"]), **case["params"])
    ranking = rank_columns(score(layer, None, "mean"), layer, POLICY, score)
    assert torch.allclose(ranking.scores, torch.tensor(case["scores"]), rtol=1e-4, atol=1e-5)
    kept = keep_mask(ranking, torch.tensor([40, 40]), positions.shape[1])
    assert [head.nonzero()[:, 0].tolist() for head in kept] == case["kept"]


def test_windows_of_an_answer_leave_what_the_published_code_leaves(tmp_path: Path) -> None:
    """A prompt of 40 tokens, as many as the budget; an eviction after every 16 of the answer, from what was left."""
    arrays, frequencies = made_up(GOLDEN["seed"], GOLDEN["shape"]), torch.tensor(GOLDEN["frequencies"]).double()
    places = torch.arange(103).expand(2, 103).numpy()
    keys = torch.from_numpy(rotated(arrays["keys"], places, frequencies.numpy(), interleaved=False)).float()
    values = torch.from_numpy(arrays["values"])
    score = TriAttention(written(tmp_path / "q", torch.from_numpy(arrays["queries"])[None], frequencies))
    evictor = IncrementalEviction(Eviction(POLICY, score, TokenBudget(40)), 40, decoding=True)
    layer: LayerCache = from_dense(0, 6, keys[:, :40], values[:, :40])
    for first, left in zip(range(40, 103, 16), GOLDEN["windows"], strict=False):
        new = slice(first, first + 16)
        layer = evictor.step(layer.append(keys[:, new], values[:, new], first), None).layer
        assert layer.positions.view(2, 40).tolist() == left
    assert len(GOLDEN["windows"]) == 3


def test_a_head_among_heads_of_other_lengths_has_its_own_statistics() -> None:
    """Head 1 scores in a step as it does beside a head of the same length."""
    score, layer = TriAttention(str(STATISTICS)), random_layer(50)
    evictor = IncrementalEviction(Eviction(POLICY, score, TokenBudget(30)), 30, decoding=True)
    kept = torch.arange(50).expand(2, 50) >= torch.tensor([[20], [5]])
    ragged = layer.select(kept)
    assert ragged.lengths == (30, 45)
    alike = slot_scores(evictor.step(layer.select(torch.arange(50).expand(2, 50) >= 5), None))
    scores = slot_scores(evictor.step(ragged, None))
    assert torch.allclose(scores[1], alike[1], atol=1e-5) and not torch.allclose(scores[1], alike[0], atol=0.1)


def test_keys_that_are_numbered_anew_are_scored_where_they_stand() -> None:
    """Every other pair of 50, rotated by their slots, score as a prompt of 25 tokens does."""
    score, layer = TriAttention(str(STATISTICS)), random_layer(50).select(torch.arange(50).expand(2, 50) % 2 == 1)
    rotation = KeyRotation(score._read.frequencies[0], interleaved=False)
    state = {ROTATED: layer.positions.float()}
    shown = KeyReRotation({0: rotation}).show(replace(layer, state=state))
    prompt = from_dense(0, 6, *shown.dense)
    assert torch.equal(score(shown, None, "mean"), score(prompt, None, "mean"))
    assert not torch.allclose(score(layer, None, "mean"), score(prompt, None, "mean"), atol=0.1)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    queries, frequencies = torch.randn(2, 4, 7, 6), torch.tensor([1.0, 0.1, 0.01])
    path = written(tmp_path / "q", queries, frequencies, interleaved=True)
    read = read_statistics(path)
    assert (read.shape, read.interleaved, read.model, read.source) == ((2, 4), True, "mine", {"tokens": 9})
    assert torch.allclose(read.mean, complex_pairs(queries, True).mean(dim=2)) and read.frequencies.shape == (2, 3)
    other = written(tmp_path / "other", queries + 1, frequencies)
    assert TriAttention(path).statistics_sha256 != TriAttention(other).statistics_sha256


def test_statistics_are_for_the_model_that_they_name(tmp_path: Path) -> None:
    score = TriAttention(written(tmp_path / "q", torch.randn(3, 4, 7, 10), torch.ones(5)))
    score.check_model(3, 2, "abc")
    with pytest.raises(ValueError, match=r"of model mine \(abc\), not of this one \(abd\); write one"):
        score.check_model(3, 2, "abd")
    for layers, kv_heads in ((2, 2), (3, 3)):
        with pytest.raises(ValueError, match=f"3 layers of 4 query heads do not fit a model of {layers} layers of"):
            score.check_model(layers, kv_heads, "abc")
    with pytest.raises(ValueError, match="4 query heads of size 10 do not fit layer 0, which has 6 of size 10"):
        Eviction(POLICY, score, TokenBudget(20)).decide(KVCache((random_layer(50),), 50))


@pytest.mark.parametrize(
    ("arrays", "words", "why"),
    [
        ({"other": (1,)}, {"made": "elsewhere"}, "its format is None"),
        ({"mean": (1, 2, 3, 2), "size": (1, 2, 3), "frequencies": (1, 4)}, {"format": FORMAT}, "do not fit together"),
        ({"mean": (1, 2, 3, 2), "size": (1, 2, 3)}, {"format": FORMAT}, "frequencies"),
        ({"mean": (1, 2, 3, 2), "size": (1, 2, 3), "frequencies": (1, 3)}, {"format": FORMAT}, "interleaved"),
    ],
)
def test_a_file_of_another_kind_is_refused(arrays: Any, words: dict[str, str], why: str, tmp_path: Path) -> None:
    save_file({name: torch.zeros(shape) for name, shape in arrays.items()}, tmp_path / "bad", words)
    with pytest.raises(ValueError, match=f"bad holds no statistics of queries: .*{why}.*; write one"):
        TriAttention(str(tmp_path / "bad"))


def test_what_is_no_file_of_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"score.statistics=nowhere: no such file; write one"):
        TriAttention("nowhere")
    (tmp_path / "text").write_text("0.1 0.2")
    with pytest.raises(ValueError, match="text holds no statistics of queries"):
        TriAttention(str(tmp_path / "text"))
    with pytest.raises(ValueError, match=r"score.furthest=0: allowed: 1 or more"):
        TriAttention(str(STATISTICS), furthest=0)


def test_every_layer_of_a_cache_is_ranked() -> None:
    decision = Eviction(POLICY, TriAttention(str(STATISTICS)), TokenBudget(20)).decide(random_cache(50))
    assert all(set(kept.sum(dim=1).tolist()) == {20} for kept in decision.kept)
