"""Block-wise H2O of CAOTE, as the items of its tables run it, against the paper's formulas in plain loops and float64.

CAOTE, Section 2: a block of m = 128 tokens attends to the cache and to itself, f_score,j = sum over i = 1..m of A_i,j,
then the cache goes down to b tokens. C.1: every query counts, the diagonal too. Equations 7 and 8 turn the sums into
scores; the smallest are evicted. Not in the paper: whether the sums of the tokens that stay go on from block to block
(C2 of docs/reference/disagreements.md), and whether query heads of a KV head merge their attention or their errors
(C3).
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from kvbench.cache.attention import AttentionParams, attend_layer
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.policy import Policy, StateRule
from kvbench.eviction.scores.host import Caote
from kvbench.eviction.scores.score import Score
from kvbench.extras.conformance.golden.compare import slot_scores
from kvbench.papers.cells import cells_of_item
from kvbench.papers.item import item_of

HEADS, KV_HEADS, TOKENS, HEAD_DIM, BUDGET = 4, 2, 300, 8, 150
CELLS = {
    entry.cell.score.name: entry.cell
    for entry in cells_of_item(item_of("caote/table2"), []).entries
    if entry.cell.policy.name == "h2o_obcache"
}


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values [heads, tokens, head_dim] with some keys that draw attention, as float32 numbers."""
    draw = np.random.default_rng(5)
    queries = draw.normal(size=(HEADS, TOKENS, HEAD_DIM))
    keys = draw.normal(size=(KV_HEADS, TOKENS, HEAD_DIM)) * draw.uniform(0.2, 1.8, size=(KV_HEADS, TOKENS, 1))
    values = draw.normal(size=(KV_HEADS, TOKENS, HEAD_DIM)) + 1
    queries, keys, values = (part.astype(np.float32).astype(np.float64) for part in (queries, keys, values))
    return queries, keys, values


def by_the_paper(
    score: str, block: int, go_on: bool = True, merge: str = "attention"
) -> tuple[list[list[list[int]]], np.ndarray]:
    """The kept positions of each KV head after every block, and the scores [heads, slots] in the last one.

    go_on: whether sums go on from block to block. merge: what the query heads of a KV head merge.
    """
    queries, keys, values = arrays()
    logits = [queries[head] @ keys[head * KV_HEADS // HEADS].T / math.sqrt(HEAD_DIM) for head in range(HEADS)]
    after = []
    cached: list[list[int]] = [[] for _ in range(KV_HEADS)]
    total: list[dict[int, float]] = [{} for _ in range(HEADS)]
    scores: list[dict[int, float]] = [{} for _ in range(KV_HEADS)]
    for start in range(0, TOKENS, block):
        new = list(range(start, min(start + block, TOKENS)))
        for kv in range(KV_HEADS):
            slots, heads = cached[kv] + new, range(kv * HEADS // KV_HEADS, (kv + 1) * HEADS // KV_HEADS)
            for head in heads:
                total[head] = {j: total[head].get(j, 0.0) if go_on else 0.0 for j in slots}
                for i in new:
                    seen = [j for j in slots if j <= i]
                    exponents = [math.exp(logits[head][i, j]) for j in seen]
                    mass = sum(exponents)
                    for j, exponent in zip(seen, exponents, strict=True):
                        total[head][j] += exponent / mass
            attended = [total[head] for head in heads]
            if merge == "attention":
                attended = [{j: sum(of_head[j] for of_head in attended) for j in slots}]
            errors = [moved(of_head, values[kv], score) for of_head in attended]
            scores[kv] = {j: sum(of_head[j] for of_head in errors) / len(errors) for j in slots}
            cached[kv] = sorted(sorted(slots, key=lambda j: -scores[kv][j])[:BUDGET])
        after.append([list(positions) for positions in cached])
    return after, np.array([list(of_head.values()) for of_head in scores])


def moved(attended: dict[int, float], values: np.ndarray, score: str) -> dict[int, float]:
    """Equations 7 and 8 with the shares of the attention sums; the shares themselves for H2O alone."""
    whole = sum(attended.values())
    h = {j: total / whole for j, total in attended.items()}
    if score == "attn":
        return h
    centre = sum((h[j] if score == "caote" else 1 / len(h)) * values[j] for j in h)
    return {j: h[j] / (1 - h[j]) * float(np.linalg.norm(centre - values[j])) for j in h}


def here(policy: Policy, score: Score, block: int) -> tuple[list[list[list[int]]], np.ndarray]:
    """The same of our code."""
    eviction = Eviction(policy.resolve(0, TOKENS, TokenBudget(BUDGET)), score, TokenBudget(BUDGET))
    incremental = IncrementalEviction(eviction, BUDGET)
    queries, keys, values = (torch.tensor(part, dtype=torch.float32) for part in arrays())
    layer = incremental.start(0, HEADS, KV_HEADS, torch.empty(HEAD_DIM))
    after, scores = [], np.empty(0)
    for start in range(0, TOKENS, block):
        new = slice(start, min(start + block, TOKENS))
        grown = layer.append(keys[:, new], values[:, new], start)
        step = incremental.step(grown, attend_layer(queries[:, new], grown, AttentionParams(HEAD_DIM**-0.5)))
        layer, scores = step.layer, torch.stack(slot_scores(step)).numpy()
        after.append([sorted(head.tolist()) for head in layer.positions.split(layer.lengths)])
    return after, scores


@pytest.mark.parametrize("score", ["attn", "caote", "fastcaote"])
def test_the_items_setting_keeps_what_the_paper_keeps_and_blocks_alone_another_reading_of_section_2(score: str) -> None:
    cell = CELLS[score]
    assert cell.schedule.prefill_block == 128
    kept, _ = here(cell.policy, cell.score, 128)
    assert [len(head) for heads in kept for head in heads] == [128, 128, *[BUDGET] * 4]
    assert kept == by_the_paper(score, 128)[0]
    assert kept != here(replace(cell.policy, window=16), cell.score, 128)[0]
    alone, _ = here(replace(cell.policy, state="overwrite"), cell.score, 128)
    assert alone == by_the_paper(score, 128, go_on=False)[0] != kept


@pytest.mark.parametrize("state", ["accumulate", "overwrite"])
@pytest.mark.parametrize("score", ["caote", "fastcaote"])
def test_query_heads_merge_errors_instead_of_attention(score: str, state: StateRule) -> None:
    """The kept sets may be the same: h / (1 - h) is nearly linear where no pair has much of the mass."""
    cell = CELLS[score]
    assert isinstance(cell.score, Caote)
    kept, scores = here(replace(cell.policy, state=state), replace(cell.score, merge="error"), 128)
    expected, errors = by_the_paper(score, 128, state == "accumulate", "error")
    assert kept == expected
    np.testing.assert_allclose(scores, errors, rtol=1e-4)
    assert not np.allclose(scores, by_the_paper(score, 128, state == "accumulate")[1], rtol=1e-3, atol=0)
