"""Golden cases of `policy.apply`, computed in float64 and not by kvbench: tests/golden/apply/NAME.json.

    PYTHONPATH=. PYTHON scripts/golden_apply.py [--d2o FOLDER] [NAME ...]

PYTHON has kvpress 0.5.5 and its requirements (transformers < 5.3), as the environment of `benchmarks/press_sets.py`.
FOLDER is a clone of github.com/AIoT-MLSys-Lab/D2O at 12c99d8. `d2o`, `cam` and `think` are the definitions of the
papers, pair by pair in numpy; `d2o_official` runs the published class, `kvpress` its presses. A file has numbers only.

A case: `seed` and `shape` of the inputs (`scripts.golden_methods.made_up`); `apply`: the part of the policy, with
`variant`; `kept`: positions by cache head; `window`: observed queries; `drawn`: a seed of chances. `keys` and `values`:
[heads, pairs, head_dim] after the step, null where they do not change; with `sums`, the sum of each pair's numbers.
A case of kvpress also has `score`, `policy` and `budget`, which keep these pairs.
"""

import argparse
import ast
import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from scripts.golden_methods import SHAPE, SNAPKV, Layer, made_up

FOLDER = Path(__file__).parents[1] / "tests" / "golden" / "apply"
WIDE = {"query_heads": 32, "kv_heads": 32, "tokens": 40, "head_dim": 128, "hidden": 4}
"""What D2O's class is written for."""
Positions = Sequence[Sequence[int]]


def inputs(seed: int, shape: Mapping[str, int]) -> list[np.ndarray]:
    """Queries, keys and values in float64."""
    arrays = made_up(seed, shape)
    return [arrays[name].astype(np.float64) for name in ("queries", "keys", "values")]


def chances(seed: int, heads: int, tokens: int) -> np.ndarray:
    """Numbers from 0 to 1 that decide which values CaM merges, [heads, tokens]."""
    return np.random.RandomState(seed).random_sample((heads, tokens))


def some(seed: int, heads: int, tokens: int, counts: Sequence[int]) -> list[list[int]]:
    """So many positions of each head, at random, the newest 5 among them."""
    draw = np.random.RandomState(seed)
    newest = list(range(tokens - 5, tokens))
    return [
        sorted([*draw.choice(tokens - 5, counts[head] - 5, replace=False).tolist(), *newest]) for head in range(heads)
    ]


def case(apply: dict[str, Any], kept: Positions, keys: Any, values: Any, **more: Any) -> dict[str, Any]:
    """A case with its numbers rounded to ten digits."""

    def rounded(numbers: Any) -> Any:
        if isinstance(numbers, (list, tuple)) or getattr(numbers, "ndim", 0):
            return [rounded(number) for number in numbers]
        return float(f"{float(numbers):.10g}")

    parts = {"keys": keys if keys is None else rounded(keys), "values": values if values is None else rounded(values)}
    return {"seed": 1, "shape": SHAPE, "variant": "paper", "apply": apply, "kept": kept, **more, **parts}


def nearest(evicted: np.ndarray, kept: np.ndarray) -> tuple[int, float]:
    """The kept key of the greatest cosine similarity with an evicted one, and that similarity."""
    cosines = [float(evicted @ key) / math.sqrt(float(evicted @ evicted) * float(key @ key)) for key in kept]
    return int(np.argmax(cosines)), max(cosines)


def d2o(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One eviction, also with heads of different lengths; and a second one, whose threshold remembers the first."""
    _, keys, values = inputs(1, SHAPE)
    beta, cases = 0.7, []
    for seed, counts in ((2, (30, 30)), (3, (20, 47))):
        kept = some(seed, 2, SHAPE["tokens"], counts)
        steps = [_d2o_step(k, v, left, beta, None) for k, v, left in zip(keys, values, kept, strict=True)]
        parts = [[step[part] for step in steps] for part in (0, 1)]
        cases.append(case({"kind": "d2o", "beta": beta}, kept, *parts))
    first, then = some(4, 2, 60, (25, 31)), []  # of the first 60 tokens; then of what is left and the other 43
    for head, left in enumerate(first):
        new_keys, new_values, threshold = _d2o_step(keys[head][:60], values[head][:60], left, beta, None)
        grown = [np.concatenate((new, old[head][60:])) for new, old in ((new_keys, keys), (new_values, values))]
        slots = some(5 + head, 1, len(grown[0]), (22,))[0]
        then.append((slots, *_d2o_step(grown[0], grown[1], slots, beta, threshold)))
    parts = [[step[part] for step in then] for part in (1, 2)]
    cases.append(case({"kind": "d2o", "beta": beta}, first, *parts, later=60, then=[step[0] for step in then]))
    return cases


def _d2o_step(
    keys: np.ndarray, values: np.ndarray, kept: Sequence[int], beta: float, last: float | None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Kept keys and values of one head after merging, and its threshold."""
    evicted = [token for token in range(len(keys)) if token not in kept]
    places = [nearest(keys[token], keys[kept]) for token in evicted]
    mean = sum(cosine for _, cosine in places) / len(places)
    threshold = mean if last is None else beta * mean + (1 - beta) * last
    new_keys, new_values = keys[kept].copy(), values[kept].copy()
    for place, token in enumerate(kept):
        joined = [
            (other, math.exp(cosine))
            for other, (nearest_place, cosine) in zip(evicted, places, strict=True)
            if nearest_place == place and cosine >= threshold
        ]
        total = math.e + sum(weight for _, weight in joined)
        for new, old in ((new_keys, keys), (new_values, values)):
            new[place] = (math.e * old[token] + sum(weight * old[other] for other, weight in joined)) / total
    return new_keys, new_values, threshold


def d2o_official(options: argparse.Namespace) -> list[dict[str, Any]]:
    """`D2O_LayerKVCache`: two evictions in a row, as far as its shapes are written into it; sums of every pair."""
    import torch

    path = options.d2o / "LLM_merge_new" / "LMEval_kv_token_merge" / "modeling_llama3_7b_13b_d2o.py"
    is_cache = lambda node: getattr(node, "name", "") == "D2O_LayerKVCache"  # noqa: E731
    tree = ast.Module([node for node in ast.parse(path.read_text("utf-8")).body if is_cache(node)], [])
    names: dict[str, Any] = {"torch": torch, "print": lambda *_: None}
    exec(compile(tree, path.name, "exec"), names)
    _, keys, values = (torch.from_numpy(array)[None] for array in inputs(1, WIDE))
    official = names["D2O_LayerKVCache"](hh_size=8, recent_size=6, alpha=0.4, belta=0.6)
    draw = np.random.RandomState(9)
    held, slots = None, []
    for stop in (32, 40):
        new = keys[:, :, 32:40] if held else keys[:, :, :32], values[:, :, 32:40] if held else values[:, :, :32]
        pairs = (
            new if held is None else tuple(torch.cat((old, part), dim=2) for old, part in zip(held, new, strict=True))
        )
        length = pairs[0].shape[2]
        scores = torch.from_numpy(draw.random_sample((32, length)))
        official.hh_score = None  # the scores of each step are drawn anew
        held = official(pairs, scores.clone(), 0, 0, stop)
        ranked = scores.clone()[:, : length - 6]
        ranked[:, :4] = torch.inf
        best = ranked.argsort(dim=1, descending=True)[:, :8].sort().values
        newest = torch.arange(length - 6, length).expand(32, 6)
        slots.append(torch.cat((best, newest), dim=1).tolist())
    apply = {"kind": "d2o", "published_beta": 0.6}
    sums = [part[0].sum(dim=2).tolist() for part in held]
    changed = {"shape": WIDE, "variant": "official", "sums": True, "later": 32, "then": slots[1]}
    return [{**case(apply, slots[0], *sums, **changed)}]


def cam(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Two head sizes and spreads; in `official` the mean is over all that follows."""
    queries, keys, values = inputs(1, SHAPE)
    cases = []
    for variant, seed, counts, spread in (
        ("paper", 2, (30, 30), 4),
        ("paper", 3, (20, 47), 32),
        ("official", 3, (20, 47), 4),
    ):
        kept, window = some(seed, 2, SHAPE["tokens"], counts), 11
        drawn, attention = chances(8, 2, SHAPE["tokens"]), _attention(queries, keys, window)
        merged = []
        for head, left in enumerate(kept):
            new = values[head][left].copy()
            for token in range(SHAPE["tokens"]):
                behind = [place for place, other in enumerate(left) if other > token]
                receivers = behind[:spread]
                if token in left or not receivers:
                    continue
                among = behind if variant == "official" else receivers
                mean = sum(attention[head][left[place]] for place in among) / len(among)
                if drawn[head][token] < min(1, attention[head][token] / mean):
                    for place in receivers:
                        new[place] += values[head][token] / len(receivers)
            merged.append(new)
        apply = {"kind": "cam", "spread": spread}
        cases.append(case(apply, kept, None, merged, window=window, drawn=8, variant=variant))
    return cases


def _attention(queries: np.ndarray, keys: np.ndarray, window: int) -> np.ndarray:
    """Weights that the newest queries give each token, the mean over them and the query heads of a KV head."""
    heads, tokens = len(keys), keys.shape[1]
    group = len(queries) // heads
    received = np.zeros((heads, tokens))
    for number, rows in enumerate(queries):
        for token in range(tokens - window, tokens):
            logits = [float(rows[token] @ key) / math.sqrt(keys.shape[2]) for key in keys[number // group][: token + 1]]
            weights = np.exp(np.array(logits) - max(logits))
            received[number // group, : token + 1] += weights / weights.sum() / (group * window)
    return received


def think(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Channels by hand, with heads of one and of two lengths, and newest keys that stay whole."""
    queries, keys, _ = inputs(1, SHAPE)
    cases = []
    for seed, counts, ratio, window, recent in (
        (2, (30, 30), 0.4, 32, 5),
        (3, (20, 47), 0.63, 9, 0),
        (3, (20, 47), 0.5, 9, 30),
    ):
        kept, pruned = some(seed, 2, SHAPE["tokens"], counts), []
        for head, left in enumerate(kept):
            rows = [row for number in range(3) for row in queries[3 * head + number][-window:]]
            weights = [
                sum(row[d] ** 2 for row in rows) * sum(keys[head][token][d] ** 2 for token in left) for d in range(8)
            ]
            lowest = sorted(range(8), key=lambda d: weights[d])[: int(8 * ratio)]
            new = keys[head][left].copy()
            for place in range(len(left) - recent):
                new[place][lowest] = 0
            pruned.append(new)
        apply = {"kind": "think", "ratio": ratio, "window": window, "recent": recent}
        cases.append(case(apply, kept, pruned, None, window=window))
    return cases


def kvpress(options: argparse.Namespace) -> list[dict[str, Any]]:
    """ThinKPress alone, and after SnapKVPress as in ComposedPress; MergingPress; CAMPress with chances drawn here."""
    import torch

    presses, cases, shape = import_module("kvpress"), [], SHAPE
    tokens = shape["tokens"]
    snapkv = {"score": "attn", "policy": SNAPKV, "budget": 40}
    norm = {"score": "key_norm", "policy": {}, "budget": 40}

    def snapkv_press() -> Any:
        return presses.SnapKVPress(window_size=16, kernel_size=5, compression_ratio=1 - 40.5 / tokens)

    def of_layer(apply: dict[str, Any], method: dict[str, Any], *chain: Any, **more: Any) -> None:
        """The keys and values that presses leave one after the other, in the order of positions."""
        layer = Layer(1, shape)
        full_keys, full_values = layer.keys.clone(), layer.values.clone()
        held, kept = (layer.keys, layer.values), list(range(tokens))
        arguments = {**layer.arguments, "hidden_states": layer.hidden}
        for press in chain:
            held = press.compress(layer.module, layer.hidden, *held, None, arguments)
        unchanged = full_keys if apply["kind"] != "think" else full_values
        own = held[0] if apply["kind"] != "think" else held[1]
        same = (own[0][:, :, None] == unchanged[0][:, None]).all(dim=-1)
        kept = [head.nonzero()[:, 1] for head in same]
        order = [positions.argsort() for positions in kept]
        parts = [[part[0, h][order[h]].tolist() for h in range(len(kept))] for part in held]
        keys, values = (parts[0], None) if apply["kind"] == "think" else (None, parts[1])
        positions = [p[o].tolist() for p, o in zip(kept, order, strict=True)]
        cases.append(case(apply, positions, keys, values, **method, **more))

    for ratio, window in ((0.4, 32), (0.7, 5)):
        apply = {"kind": "think", "ratio": ratio, "window": window, "recent": 0}
        press = presses.ThinKPress(key_channel_compression_ratio=ratio, window_size=window)
        everything = {"score": "key_norm", "policy": {}, "budget": tokens}
        of_layer(apply, everything, press, window=window)
        of_layer(apply, snapkv, snapkv_press(), press, window=max(16, window))
    for threshold in (0.0, 0.45):
        apply = {"kind": "nearest", "threshold": threshold}
        of_layer(apply, snapkv, presses.MergingPress(snapkv_press(), similarity_threshold=threshold), window=16)
        press = presses.KnormPress(compression_ratio=1 - 40.5 / tokens)
        of_layer(apply, norm, presses.MergingPress(press, similarity_threshold=threshold), window=16)
    queries, keys, _ = inputs(1, shape)
    layer, drawn = Layer(1, shape), chances(8, 2, tokens)
    attention = torch.from_numpy(_attention(queries, keys, 11))[None]
    positions = (-layer.keys.norm(dim=-1)).mean(dim=1)[0].topk(40).indices.sort().values
    evicted = [token for token in range(tokens) if token not in positions.tolist()]
    chance = torch.from_numpy(drawn[:, evicted])[None]
    for spread in (4, 32):
        layer = Layer(1, shape)
        press = presses.CAMPress(presses.KnormPress(), target_size=40, merge_budget=spread)
        press.layer_step_counts[0], press._running_attn_sum[0] = len(evicted), attention.clone()
        torch.bernoulli = lambda probabilities: (chance < probabilities).double()
        _, values = press.compress(layer.module, layer.hidden, layer.keys, layer.values, attention, layer.arguments)
        shared = norm | {"policy": {"heads": {"kind": "shared"}, "window": 11}}
        kept = [positions.tolist()] * 2
        apply = {"kind": "cam", "spread": spread}
        cases.append(case(apply, kept, None, values[0].tolist(), window=11, drawn=8, **shared))
    return cases


def main() -> None:
    """Write the files that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--d2o", type=Path, help="a clone of D2O's code")
    options = parser.parse_args()
    makers: dict[str, Callable[[argparse.Namespace], list[dict[str, Any]]]] = {
        maker.__name__: maker for maker in (d2o, d2o_official, cam, think, kvpress)
    }
    FOLDER.mkdir(exist_ok=True)
    for name in options.names or makers:
        lines = ",\n".join(json.dumps(each) for each in makers[name](options))
        (FOLDER / f"{name}.json").write_text(f"[\n{lines}\n]\n", "utf-8")


if __name__ == "__main__":
    main()
