"""The oracle of block-wise reading with a shared budget: the full cache in double precision, and a mask per head.

Written down a second time in plain lists: nothing is shared with kvbench but the place where transformers calls.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams
from kvbench.cache.recurrent import RecurrentState
from kvbench.models import bridge

Entry = tuple[float, float, int, int, int]
"""Score, unpooled score, layer, head, position."""


@dataclass
class Shared:
    """A policy in numbers; kinds are those of the settings."""

    budget: int
    heads: str = "uniform"
    layers: str = "uniform"
    window: int = 8
    sink: int = 0
    recent: int = 4
    pool: int = 0
    alpha: float = 0.2
    beta: float = 20
    official: bool = False
    accumulate: bool = False
    threshold: float = 0.9
    table: np.ndarray | None = None

    @property
    def base(self) -> int:
        return self.budget - self.sink - self.recent


@dataclass
class MaskedReader:
    """Reads a prompt block by block; `evict` after each. held: positions by layer and head."""

    policy: Shared
    recurrent: RecurrentState | None = None
    num_tokens: int = 0
    held: dict[int, list[list[int]]] = field(default_factory=dict)
    most: int = 0
    _pairs: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _weights: dict[int, Tensor] = field(default_factory=dict)
    _sums: dict[int, list[dict[int, float]]] = field(default_factory=dict)

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, rule: AttentionParams) -> Tensor:
        """Every pair ever read stays; what was evicted is masked."""
        old = self._pairs.get(layer, (keys[0][:, :0], values[0][:, :0]))
        k, v = (torch.cat((before, new[0]), dim=1) for before, new in zip(old, (keys, values), strict=True))
        self._pairs[layer] = k, v
        first, group = self.num_tokens, queries.shape[1] // len(k)
        held = self.held.setdefault(layer, [[] for _ in k])
        seen = torch.zeros(len(k), queries.shape[2], k.shape[1], dtype=torch.bool)
        for head, positions in enumerate(held):
            seen[head, :, positions] = True
            seen[head, :, first:] = torch.tril(torch.ones(queries.shape[2], queries.shape[2], dtype=torch.bool))
            positions += range(first, k.shape[1])
        wide_k, wide_v, seen = (part.repeat_interleave(group, dim=0) for part in (k, v, seen))
        weights = (queries[0] @ wide_k.mT * rule.scaling).masked_fill(~seen, -math.inf).softmax(-1)
        self._weights[layer] = weights[:, -self.policy.window :]
        return (weights @ wide_v)[None]

    def evict(self, new: int) -> None:
        """After a block of `new` tokens."""
        self.num_tokens += new
        policy, layers = self.policy, sorted(self.held)
        self.most = max(self.most, sum(len(head) for layer in layers for head in self.held[layer]))
        entries = {layer: [self._ranked(layer, head) for head in range(len(self.held[layer]))] for layer in layers}
        if self.num_tokens <= policy.budget:
            return
        counts = divided(self, [entries[layer] for layer in layers], [self._worth(layer) for layer in layers])
        for layer, by_head in zip(layers, counts, strict=True):
            for head, count in enumerate(by_head):
                gone = {entry[4] for entry in entries[layer][head][count:]}
                self.held[layer][head] = [position for position in self.held[layer][head] if position not in gone]

    def _ranked(self, layer: int, head: int) -> list[Entry]:
        """The candidates of a head from best to worst."""
        policy, positions = self.policy, self.held[layer][head]
        group = len(self._weights[layer]) // len(self.held[layer])
        mine = self._weights[layer][head * group : (head + 1) * group].sum(1).mean(0)
        raw = {position: float(mine[position]) for position in positions}
        if policy.accumulate:
            sums = self._sums.setdefault(layer, [{} for _ in self.held[layer]])[head]
            raw = {position: value + sums.get(position, 0) for position, value in raw.items()}
            self._sums[layer][head] = raw
        columns, half = [raw[position] for position in positions[: len(positions) - policy.recent]], policy.pool // 2
        pooled = [max(columns[max(0, i - half) : i + half + 1]) for i in range(len(columns))]
        entries = [(pooled[i], columns[i], layer, head, positions[i]) for i in range(policy.sink, len(columns))]
        return sorted(entries, key=lambda entry: (-entry[0], -entry[1], entry[4]))

    def _worth(self, layer: int) -> float:
        """What preference and laziness read of a layer."""
        weights, group = self._weights[layer].numpy(), len(self._weights[layer]) // len(self.held[layer])
        dispersion = shift = evictable = 0.0
        for row, a in enumerate(weights):
            positions = self.held[layer][row // group]
            columns = a[:, positions[: len(positions) - self.policy.recent]]
            dispersion -= float((columns * np.log(columns + 1e-10)).sum())
            shift += float(columns.var(0, ddof=1).sum()) if len(columns) > 1 else 0
            evictable += float(columns[:, self.policy.sink :].sum())
        if self.policy.layers == "lazy":
            return 1 - evictable / weights.shape[0] / weights.shape[1]
        return dispersion * (shift if weights.shape[1] > 1 else 1)


def divided(reader: MaskedReader, entries: list[list[list[Entry]]], worths: list[float]) -> list[list[int]]:
    """How many candidates each head of each layer keeps."""
    policy, number, heads = reader.policy, len(entries), len(entries[0])
    available = [[len(head) for head in layer] for layer in entries]
    everything = reader.num_tokens - policy.sink - policy.recent
    if policy.layers == "table":
        assert policy.table is not None
        part = 1 - policy.table[min(98, max(0, round((1 - policy.budget / reader.num_tokens) * 100) - 1))]
        worth = np.maximum(0, part * reader.num_tokens - policy.sink - policy.recent).flatten().tolist()
        flat = split(number * heads * policy.base, worth, [everything] * (number * heads))
        return [[min(flat[i * heads + h], available[i][h]) for h in range(heads)] for i in range(number)]
    if policy.layers == "global" and policy.heads == "binary":
        return whole(entries, policy.base, everything)
    if policy.layers == "global":
        best = sorted((entry for layer in entries for head in layer for entry in head), key=order)
        kept = best[: number * heads * policy.base]
        return [[sum(entry[2:4] == (i, h) for entry in kept) for h in range(heads)] for i in range(number)]
    shares = layer_shares(reader, entries, worths, everything)
    return [head_counts(policy, layer, share, everything) for layer, share in zip(entries, shares, strict=True)]


def layer_shares(
    reader: MaskedReader, entries: list[list[list[Entry]]], worths: list[float], everything: int
) -> list[int]:
    """Candidates per head of each layer."""
    policy, number = reader.policy, len(entries)
    limits = [sum(map(len, layer)) // len(layer) for layer in entries]
    if policy.layers == "pyramid":
        low, high = policy.base / policy.beta, 2 * policy.base - policy.base / policy.beta
        low, high = (2 * policy.base - everything, everything) if high > everything else (low, high)
        line = [high - i * (high - low) / (number - 1) for i in range(number)]
        return rounded(line, number * policy.base, limits)
    if policy.layers == "entropy":
        worths = []
        for layer in entries:
            scores = np.array([entry[0] for head in layer for entry in head])
            p = scores / scores.sum()
            worths.append(float(-(p[p > 0] * np.log(p[p > 0])).sum() / math.log(p.size)))
        if policy.official:
            return [int(worth / sum(worths) * number * policy.base) for worth in worths]
    if policy.layers in ("entropy", "preference"):
        return split(number * policy.base, worths, limits)
    if policy.layers == "lazy":
        busy = sorted((i for i in range(number) if limits[i] == everything), key=lambda i: worths[i])
        stay = busy[: number * policy.base // everything]
        return [everything if i in stay else 0 for i in range(number)]
    return [policy.base] * number


def head_counts(policy: Shared, layer: list[list[Entry]], share: int, everything: int) -> list[int]:
    """Candidates of each head of a layer."""
    available = [len(head) for head in layer]
    pairs = share * len(layer)
    if policy.heads == "binary":
        return whole([layer], share, everything)[0]
    if policy.heads == "uniform":
        return [min(share, count) for count in available]
    if pairs > sum(available) - (policy.heads != "mix"):
        return available
    best = sorted((entry for head in layer for entry in head), key=order)
    flat = [sum(entry[3] == head for entry in best[:pairs]) for head in range(len(layer))]
    if policy.heads == "flat":
        return flat
    if policy.heads == "mix" and policy.official:
        floor = int((policy.budget if policy.layers == "entropy" else share) * policy.alpha)
        return [
            min(most, int(np.rint(np.float32(count * (1 - policy.alpha)) + np.float32(floor))))
            for count, most in zip(flat, available, strict=True)
        ]
    if policy.heads == "mix":
        return rounded([(1 - policy.alpha) * count + policy.alpha * share for count in flat], pairs, available)
    protected = policy.sink + policy.recent
    sure = max(0, int(policy.alpha * (share + protected)) - protected)
    counts = [min(sure, count) for count in available]
    rest = sorted((entry for head in layer for entry in head[sure:]), key=order)[: pairs - sum(counts)]
    return [count + sum(entry[3] == head for entry in rest) for head, count in enumerate(counts)]


def order(entry: Entry) -> tuple[float, ...]:
    return (-entry[0], -entry[1], *entry[2:])


def whole(entries: list[list[list[Entry]]], base: int, everything: int) -> list[list[int]]:
    """As many whole heads as are paid for, the one with the best pair first; a head that lost pairs is not whole."""
    heads = [(layer, head) for layer in range(len(entries)) for head in range(len(entries[layer]))]
    best = [
        (-max(e[0] for e in entries[i][h]), -max(e[1] for e in entries[i][h]), i, h)
        for i, h in heads
        if len(entries[i][h]) == everything
    ]
    kept = [place[2:] for place in sorted(best)[: len(heads) * base // everything]]
    return [[everything if (i, h) in kept else 0 for h in range(len(entries[i]))] for i in range(len(entries))]


def rounded(targets: list[float], total: int, limits: list[int]) -> list[int]:
    """Floors, then one each by descending fraction to those that are not full, until all are given."""
    targets = [round(target, 9) for target in targets]
    counts = [min(limit, math.floor(target)) for target, limit in zip(targets, limits, strict=True)]
    turns = sorted(range(len(targets)), key=lambda i: (-round(targets[i] - math.floor(targets[i]), 9), i))
    while sum(counts) < min(total, sum(limits)):
        for i in turns:
            counts[i] += counts[i] < limits[i] and sum(counts) < total
    return counts


def split(total: int, worths: list[float], limits: list[int]) -> list[int]:
    """In proportion to worth; who is full leaves the rest to the others, in proportion again."""
    total, full = min(total, sum(limits)), set[int]()
    while True:
        rest = total - sum(limits[i] for i in full)
        mass = sum(worths[i] for i in range(len(worths)) if i not in full)
        targets = [limits[i] if i in full else rest * worths[i] / mass for i in range(len(worths))]
        over = {i for i, target in enumerate(targets) if target > limits[i]}
        if not over:
            return rounded(targets, total, limits)
        full |= over


@torch.inference_mode()
def read_in_blocks(model: object, ids: Tensor, policy: Shared, block: int) -> tuple[MaskedReader, Tensor]:
    """The reader after the prompt, and the logits of its last token."""
    reader, logits = MaskedReader(policy), torch.empty(0)
    for part in ids.split(block):
        logits = bridge.forward(model, part[None], reader.num_tokens, reader)[0]
        reader.evict(len(part))
    return reader, logits
