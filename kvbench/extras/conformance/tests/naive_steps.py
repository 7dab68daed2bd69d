"""The schedules of the golden cases' contract written down a second time: decoding, and reading block by block."""

from typing import Any

import numpy as np

from kvbench.extras.conformance.tests.naive import Array, best, shaped, signals
from kvbench.extras.conformance.tests.naive_budgets import expected

ALONE = ("recency", "key_norm", "key_diff")
"""Scores of which no row votes."""


class Head:
    """The cache of one stored head: its slots in slot order, and what is remembered of each."""

    def __init__(self, dim: int) -> None:
        self.positions = np.zeros(0, int)
        self.k, self.v, self.total = np.zeros((0, dim)), np.zeros((0, dim)), np.zeros(0)

    def append(self, positions: Array, k: Array, v: Array, total: Array | None = None) -> None:
        self.positions = np.concatenate((self.positions, positions))
        self.k, self.v = np.concatenate((self.k, k)), np.concatenate((self.v, v))
        self.total = np.concatenate((self.total, np.zeros(len(k)) if total is None else total))

    def choose(self, slots: Array) -> None:
        self.positions, self.k, self.v = self.positions[slots], self.k[slots], self.v[slots]
        self.total = self.total[slots]


class Layer:
    """The stored heads of one layer."""

    def __init__(self, spec: dict[str, Any], q: int, kv: int, dim: int) -> None:
        self.spec, self.q, self.kv, self.prompt = spec, q, kv, 0
        apart = spec["group"] == "none" and spec["score"]["name"] not in ALONE
        self.heads = [Head(dim) for _ in range(q if apart else kv)]

    def of_query(self, head: int) -> Head:
        return self.heads[head * len(self.heads) // self.q]

    def step(self, first: int, q: Array, k: Array, v: Array, capacity: int) -> tuple[list[Array], list[Array]]:
        """Read new tokens and cut; positions before the cut and what they were worth, by stored head."""
        new = k.shape[1]
        for stored, head in enumerate(self.heads):
            kv = stored * self.kv // len(self.heads)
            head.append(np.arange(first, first + new), k[kv], v[kv])
        raws = self._merged(q)
        before, worth = [head.positions for head in self.heads], []
        for head, raw in zip(self.heads, raws, strict=True):
            head.total = head.total + raw if self.spec["schedule"]["state"] == "accumulate" else raw
            worth.append(self._cut(head, capacity))
        return before, worth

    def _merged(self, q: Array) -> list[Array]:
        name, group = self.spec["score"]["name"], self.spec["group"]
        if name == "recency":
            return [head.positions.astype(float) for head in self.heads]
        if name == "key_norm":
            return [-np.linalg.norm(head.k, axis=1) for head in self.heads]
        if name == "key_diff":
            return [_unlike(head.k) for head in self.heads]
        raw = [self._raw(self.of_query(head), rows) for head, rows in enumerate(q)]
        if group == "none":
            return raw
        if group == "layer_mean":
            return [np.mean(raw, axis=0)] * self.kv
        merge = {"mean": np.mean, "max": np.max, "sum": np.sum}[group]
        size = self.q // self.kv
        return [merge(raw[start : start + size], axis=0) for start in range(0, self.q, size)]

    def _raw(self, head: Head, q: Array) -> Array:
        new, slots = len(q), len(head.k)
        z = q @ head.k.T / q.shape[1] ** 0.5
        seen = np.arange(slots) <= np.arange(slots - new, slots)[:, None]
        e = np.where(seen, np.exp(z - z.max(1, keepdims=True)), 0)
        lse = np.log(e.sum(1)) + z.max(1)
        a = e / e.sum(1, keepdims=True)
        if self.spec["kind"] == "decode" and self.spec["score"]["name"] == "cake":
            return a[-1]
        window = self.spec["window"]
        voting = slice(0 if window == "all" or window >= new else new - window, None)
        parts = (a, np.where(seen, z, 0), a @ head.v, lse)
        return signals(self.spec, head.v[None], *(part[None, voting] for part in parts))[0]

    def _cut(self, head: Head, capacity: int) -> Array:
        slots, sink, recent = len(head.k), self.spec["sink"], self.spec["recent"]
        worth, stop = np.full(slots, np.nan), slots - recent
        if stop <= sink:
            return worth
        spec = self.spec | {"order": ["group", "pool"], "group": "none"}
        scores, unpooled = (shaped(spec, head.total[None], head.v[None], pooled)[0] for pooled in (True, False))
        worth[sink:stop] = scores
        stays = [slot for slot in range(sink, stop) if head.positions[slot] < self.prompt]
        worth[stays] = np.nan
        goes = [j for j in range(stop - sink) if sink + j not in stays]
        ranked = stays + [sink + entry[4] for entry in best([(scores[j], unpooled[j], 0, 0, j) for j in goes])]
        kept = ranked[: max(0, capacity - sink - recent)]
        if self.spec["schedule"].get("slot_order", "position") == "position":
            kept = sorted(kept)
        head.choose(np.array([*range(sink), *kept, *range(stop, slots)], int))
        return worth


def _unlike(k: Array) -> Array:
    unit = k / np.linalg.norm(k, axis=1, keepdims=True)
    mean = unit.mean(0)
    return -(unit @ mean) / np.linalg.norm(mean)


def decoded(spec: dict[str, Any], arrays: dict[str, Array]) -> dict[str, Array]:
    """Everything that a case of kind `decode` expects."""
    q, k, v = (arrays[name].astype(float) for name in ("query", "key", "value"))
    layers, tokens = len(q), k.shape[2]
    layer_states = [Layer(spec, q.shape[1], k.shape[1], k.shape[3]) for _ in range(layers)]
    stored = len(layer_states[0].heads)
    if tokens <= spec["budget_tokens"]:
        scores, kept = np.full((layers, stored, tokens), np.nan), np.ones((layers, stored, tokens), bool)
        capacity, lengths = [spec["budget_tokens"]] * layers, kept.sum(2)
    else:
        scores, lengths, kept = expected(spec, q, k, v)
        capacity = lengths[:, 0].tolist()
    for index, layer in enumerate(layer_states):
        total = _totals(spec, layer, q[index], k[index], v[index])
        for head, cache in enumerate(layer.heads):
            places, kv = np.flatnonzero(kept[index, head]), head * layer.kv // stored
            cache.append(places, k[index, kv, places], v[index, kv, places], total[head][places])
            if spec["schedule"].get("slot_order") == "score" and tokens > spec["budget_tokens"]:
                cache.choose(_order(spec, places, scores[index, head], tokens))
    if answer := spec["schedule"].get("answer_budget"):
        capacity = [len(layer.heads[0].positions) + answer for layer in layer_states]
        for layer in layer_states:
            layer.prompt = tokens
    news = [arrays[f"{name}_step"].astype(float) for name in ("query", "key", "value")]
    cuts = [
        [
            (*layer.step(tokens + t, *(new[t, i] for new in news), capacity[i]), _snapshot(layer))
            for i, layer in enumerate(layer_states)
        ]
        for t in range(spec["schedule"]["steps"])
    ]
    return {"scores": scores, "lengths": lengths, "kept": kept} | _arrays(spec, cuts)


def _order(spec: dict[str, Any], places: Array, scores: Array, tokens: int) -> Array:
    stop = tokens - spec["recent"]
    middle = [i for i, place in enumerate(places) if spec["sink"] <= place < stop]
    middle.sort(key=lambda i: (-scores[places[i]], i))
    first = [i for i, place in enumerate(places) if place < spec["sink"]]
    return np.array([*first, *middle, *(i for i, place in enumerate(places) if place >= stop)], int)


def _totals(spec: dict[str, Any], layer: Layer, q: Array, k: Array, v: Array) -> list[Array]:
    """The prompt's unpooled, group-reduced score of the observed rows."""
    if spec["schedule"]["state"] != "accumulate" or spec["score"]["name"] in ALONE:
        return [np.zeros(k.shape[1])] * len(layer.heads)
    whole = Layer(spec | {"kind": "prefill"}, layer.q, layer.kv, k.shape[2])
    for stored, head in enumerate(whole.heads):
        kv = stored * layer.kv // len(whole.heads)
        head.append(np.arange(k.shape[1]), k[kv], v[kv])
    return whole._merged(q)


def by_blocks(spec: dict[str, Any], arrays: dict[str, Array]) -> dict[str, Array]:
    """Everything that a case of kind `blockwise` expects."""
    q, k, v = (arrays[name].astype(float) for name in ("query", "key", "value"))
    layer_states = [Layer(spec, q.shape[1], k.shape[1], k.shape[3]) for _ in q]
    tokens, block = k.shape[2], spec["schedule"]["block"]
    cuts = []
    for start in range(0, tokens, block):
        part = slice(start, start + block)
        parts = [[x[i, :, part] for x in (q, k, v)] for i in range(len(layer_states))]
        cuts.append(
            [
                (*layer.step(start, *new, spec["budget_tokens"]), _snapshot(layer))
                for layer, new in zip(layer_states, parts, strict=True)
            ]
        )
    shape = (len(layer_states), len(layer_states[0].heads), tokens)
    scores, kept = np.full(shape, np.nan), np.zeros(shape, bool)
    for index, (before, worth, left) in enumerate(cuts[-1]):
        for head, (positions, values, (stay, _)) in enumerate(zip(before, worth, left, strict=True)):
            scores[index, head, positions] = values
            kept[index, head, stay] = True
    return {"scores": scores, "lengths": kept.sum(2), "kept": kept} | _arrays(spec, cuts)


def _snapshot(layer: Layer) -> list[tuple[Array, Array]]:
    """Positions after the cut, ascending, with their running score."""
    order = [head.positions.argsort() for head in layer.heads]
    return [(head.positions[slots], head.total[slots]) for head, slots in zip(layer.heads, order, strict=True)]


def _arrays(spec: dict[str, Any], cuts: list[list[Any]]) -> dict[str, Array]:
    steps, layers, heads = len(cuts), len(cuts[0]), len(cuts[0][0][2])
    flat = [(layer[0][h], layer[1][h], *layer[2][h]) for cut in cuts for layer in cut for h in range(heads)]
    arrays = {
        "kept_positions": _padded([head[2] for head in flat], -1),
        "step_lengths": np.array([len(head[2]) for head in flat]),
        "step_scores": _padded([head[1][head[0].argsort()] for head in flat], np.nan),
    }
    if spec["schedule"]["state"] == "accumulate":
        arrays["accumulator"] = _padded([head[3] for head in flat], np.nan)
    return {name: array.reshape(steps, layers, heads, *array.shape[1:]) for name, array in arrays.items()}


def _padded(rows: list[Array], fill: float) -> Array:
    wide = np.full((len(rows), max(map(len, rows))), fill, dtype=rows[0].dtype)
    for row, values in zip(wide, rows, strict=True):
        row[: len(values)] = values
    return wide
