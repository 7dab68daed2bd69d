"""Block-wise H2O of CAOTE, as the items of its tables run it, against the paper's formulas in plain loops and float64.

CAOTE, Section 2: a block of m = 128 tokens attends to the cache and to itself, f_score,j = sum over i = 1..m of A_i,j,
then the cache goes down to b tokens. C.1: every query counts, the diagonal too. Equations 7 and 8 turn the sums into
scores; the smallest are evicted. Not in the paper: the sums of the tokens that stay go on from block to block, and the
query heads of a KV head are averaged.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from kvbench.cache.attention import Rule, over_layer
from kvbench.eviction.budget import Tokens
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score
from kvbench.papers.item import item_of
from kvbench.papers.settings import cells_of_item

HEADS, KV_HEADS, TOKENS, HEAD_DIM, BUDGET = 4, 2, 300, 8, 150
CELLS = {
    entry.cell.score.name: entry.cell
    for entry in cells_of_item(item_of("caote/table2"), []).entries
    if entry.cell.policy.name == "h2o"
}


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values [heads, tokens, head_dim] with some keys that draw attention, as float32 numbers."""
    draw = np.random.default_rng(5)
    queries = draw.normal(size=(HEADS, TOKENS, HEAD_DIM))
    keys = draw.normal(size=(KV_HEADS, TOKENS, HEAD_DIM)) * draw.uniform(0.2, 1.8, size=(KV_HEADS, TOKENS, 1))
    values = draw.normal(size=(KV_HEADS, TOKENS, HEAD_DIM)) + 1
    queries, keys, values = (part.astype(np.float32).astype(np.float64) for part in (queries, keys, values))
    return queries, keys, values


def kept_by_the_paper(score: str, block: int) -> list[list[list[int]]]:
    """The kept positions of each KV head after every block."""
    queries, keys, values = arrays()
    logits = [queries[head] @ keys[head * KV_HEADS // HEADS].T / math.sqrt(HEAD_DIM) for head in range(HEADS)]
    after = []
    cached: list[list[int]] = [[] for _ in range(KV_HEADS)]
    total: list[dict[int, float]] = [{} for _ in range(KV_HEADS)]
    for start in range(0, TOKENS, block):
        new = list(range(start, min(start + block, TOKENS)))
        for kv in range(KV_HEADS):
            slots = cached[kv] + new
            for i in new:
                seen = [j for j in slots if j <= i]
                for head in range(kv * HEADS // KV_HEADS, (kv + 1) * HEADS // KV_HEADS):
                    exponents = [math.exp(logits[head][i, j]) for j in seen]
                    mass = sum(exponents)
                    for j, exponent in zip(seen, exponents, strict=True):
                        total[kv][j] = total[kv].get(j, 0.0) + exponent / mass / (HEADS // KV_HEADS)
            whole = sum(total[kv][j] for j in slots)
            h = {j: total[kv][j] / whole for j in slots}
            if score == "attn":
                scores = h
            else:
                centre = sum((h[j] if score == "caote" else 1 / len(slots)) * values[kv, j] for j in slots)
                scores = {j: h[j] / (1 - h[j]) * float(np.linalg.norm(centre - values[kv, j])) for j in slots}
            cached[kv] = sorted(sorted(slots, key=lambda j: -scores[j])[:BUDGET])
            total[kv] = {j: total[kv][j] for j in cached[kv]}
        after.append([list(positions) for positions in cached])
    return after


def kept_here(policy: Policy, score: Score, block: int) -> list[list[list[int]]]:
    """The same of our code."""
    eviction = Eviction(policy.of_prompt(0, TOKENS, Tokens(BUDGET)), score, Tokens(BUDGET))
    incremental = IncrementalEviction(eviction, BUDGET)
    queries, keys, values = (torch.tensor(part, dtype=torch.float32) for part in arrays())
    layer = incremental.start(0, HEADS, KV_HEADS, torch.empty(HEAD_DIM))
    after = []
    for start in range(0, TOKENS, block):
        new = slice(start, min(start + block, TOKENS))
        grown = layer.append(keys[:, new], values[:, new], start)
        layer = incremental.step(grown, over_layer(queries[:, new], grown, Rule(HEAD_DIM**-0.5))).layer
        after.append([sorted(head.tolist()) for head in layer.positions.split(layer.lengths)])
    return after


@pytest.mark.parametrize("score", ["attn", "caote", "fastcaote"])
def test_the_items_setting_keeps_what_the_paper_keeps(score: str) -> None:
    cell = CELLS[score]
    assert cell.schedule.prefill_block == 128
    kept = kept_here(cell.policy, cell.score, 128)
    assert [len(head) for heads in kept for head in heads] == [128, 128, *[BUDGET] * 4]
    assert kept == kept_by_the_paper(score, 128)
    assert kept != kept_here(replace(cell.policy, window=16), cell.score, 128)
