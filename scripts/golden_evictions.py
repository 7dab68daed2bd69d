"""Golden cases of tests/golden/methods, computed in float64 by the published code of each method, not by kvbench.

    git clone https://github.com/Zefan-Cai/R-KV && git clone https://github.com/sail-sg/SimLayerKV
    git clone https://github.com/NVIDIA/kvpress && git clone https://github.com/AozhongZhang/DropKV
    PYTHONPATH=kvpress python scripts/golden_evictions.py --code . --output tests/golden/methods [NAME ...]

`--code` is the folder of the clones. Runs where torch, and for presses kvpress, can be imported; nothing of kvbench is.
A case has the fields of tests/golden/eviction/README.md. Inputs are made from a seed: keys of a few topics with noise,
queries that ask for some of them, values of uneven size, all rounded to float16.
"""

import argparse
import ast
import importlib.util
import json
import math
import sys
import types
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

TESTS = Path(__file__).parents[1] / "tests" / "golden"
Arrays = dict[str, np.ndarray]
Case = tuple[dict[str, Any], Arrays]
SHAPE = {"layers": 4, "query_heads": 4, "kv_heads": 2, "tokens": 48, "head_dim": 8}
TOLERANCES = {"score_tolerance": 1e-5, "score_floor": 1e-3, "tie_tolerance": 1e-5}


def inputs(seed: int) -> Arrays:
    """Queries, keys and values, [layers, heads, tokens, head_dim]."""
    numbers = np.random.default_rng(seed)
    layers, query_heads, kv_heads, tokens, size = SHAPE.values()
    topics = numbers.normal(size=(layers, kv_heads, 7, size))
    topic = numbers.integers(0, 7, size=tokens // 3 + 1).repeat(3)[:tokens]
    key = topics[:, :, topic] + 0.6 * numbers.normal(size=(layers, kv_heads, tokens, size))
    query = np.repeat(topics[:, :, topic[::-1]], query_heads // kv_heads, axis=1)
    query = query + 0.8 * numbers.normal(size=(layers, query_heads, tokens, size))
    value = numbers.normal(size=key.shape) * numbers.lognormal(sigma=0.5, size=(layers, kv_heads, tokens, 1))
    arrays = {"query": query, "key": key, "value": value}
    return {name: part.astype(np.float16).astype(np.float32) for name, part in arrays.items()}


def best(scores: np.ndarray, candidates: range, count: int, tokens: int) -> np.ndarray:
    """The `count` best candidates of each head and every token that is none, [layers, heads, tokens]."""
    kept = np.ones((*scores.shape[:2], tokens), dtype=bool)
    kept[..., candidates.start : candidates.stop] = False
    order = np.argsort(-scores[..., candidates.start : candidates.stop], axis=2, kind="stable")[..., :count]
    np.put_along_axis(kept, order + candidates.start, True, axis=2)
    return kept


def case(name: str, seed: int, scores: np.ndarray, kept: np.ndarray, **spec: Any) -> Case:
    """A case of one eviction; scores of tokens that are no candidates are NaN."""
    fields = {
        "name": name,
        "seed": seed,
        "shape": SHAPE,
        "kind": "prefill",
        "reduce": "mean",
        "pool": None,
        "group": "mean",
        "order": ["group", "pool"],
        "sink": 0,
        "heads": {"kind": "uniform"},
        "layers": {"kind": "uniform"},
        "variant": "paper",
        **TOLERANCES,
        "total_pairs": int(kept.sum()),
        **spec,
    }
    scores = scores.astype(np.float64)
    scores[..., : fields["sink"]] = np.nan
    scores[..., SHAPE["tokens"] - fields["recent"] :] = np.nan
    return fields, {**inputs(seed), "scores": scores, "lengths": kept.sum(axis=2), "kept": kept}


def rkv(folder: Path) -> Case:
    """`R1KV.update_kv` of rkv/compression/r1_kv.py, with the defaults of run_math.py; scores from its two parts."""
    seed, window, budget = 11, 8, 21
    utils, method = _package(folder, "rkv", "utils"), None
    sys.modules["rkv.compression"].__dict__.update(vars(utils))
    method = _package(folder, "rkv", "compression.r1_kv")
    arrays = {name: torch.from_numpy(part).double() for name, part in inputs(seed).items()}
    scores, kept = [], []
    for query, key, value in zip(*arrays.values(), strict=True):
        query, key, value = query[None], key[None], value[None]
        cluster = method.R1KV(budget=budget, window_size=window, kernel_size=7, mix_lambda=0.07)
        left, _ = cluster.update_kv(key.clone(), query[:, :, -window:], value)
        kept.append((key[0, :, :, None] == left[0, :, None]).all(dim=3).any(dim=2).numpy())
        logits = utils.compute_attention_scores(query[:, :, -window:], key)[..., :-window]
        pooled = torch.nn.functional.max_pool1d(logits.softmax(dim=-1).mean(dim=-2), 7, stride=1, padding=3)
        repeats = utils.cal_similarity(key.clone())[:, :-window]
        score = (0.07 * pooled - (1 - 0.07) * repeats)[0]
        scores.append(torch.nn.functional.pad(score, (0, window)).numpy())
    scores, kept = np.stack(scores), np.stack(kept)
    assert (kept == best(scores, range(SHAPE["tokens"] - window), budget - window, SHAPE["tokens"])).all()
    spec = {"score": {"name": "rkv", "params": {"importance": 0.07}}, "window": window, "recent": window}
    notes = "R1KV of rkv/compression/r1_kv.py"
    pool = {"kind": "max", "size": 7}
    return case("rkv", seed, scores, kept, notes=notes, budget_tokens=budget, pool=pool, score_floor=0.1, **spec)


def finch(_: Path) -> Case:
    """`FinchPress.score` and `FinchPress.compress` of kvpress with the attention weights of numbers in float64."""
    FinchPress = import_module("kvpress").FinchPress

    seed, window, budget = 13, 9, 24
    scores, kept = [], []
    module = types.SimpleNamespace(config=types.SimpleNamespace(num_attention_heads=SHAPE["query_heads"]))
    module.head_dim = SHAPE["head_dim"]
    for query, key, value in zip(*(torch.from_numpy(part).double() for part in inputs(seed).values()), strict=True):
        logits = query @ key.repeat_interleave(len(query) // len(key), dim=0).mT / math.sqrt(module.head_dim)
        later = torch.ones(logits.shape[1:], dtype=torch.bool).triu(1)
        attentions = logits.masked_fill(later, -math.inf).softmax(dim=-1)[None]
        press = FinchPress(compression_ratio=1 - budget / SHAPE["tokens"], rerotate_keys=False)
        press.window_size = window
        scores.append(press.score(module, None, key[None], value[None], attentions, {})[0].numpy())
        left, _ = press.compress(module, None, key[None], value[None], attentions, {})
        kept.append((key[:, :, None] == left[0, :, None]).all(dim=3).any(dim=2).numpy())
    spec = {"score": {"name": "finch", "params": {}}, "window": window, "recent": window}
    kept = np.stack(kept)
    return case("finch", seed, np.stack(scores), kept, notes="kvpress FinchPress", budget_tokens=budget, **spec)


def cap(_: Path) -> Case:
    """`CapPress.score` of kvpress, for queries that no position rotates, where float32 means float64."""
    CapPress = import_module("kvpress").CapPress

    seed, budget, recent = 14, 20, 6
    size, heads = SHAPE["head_dim"], SHAPE["query_heads"]

    class Still(torch.nn.Module):
        def forward(self, hidden: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ones = torch.ones(1, positions.shape[1], size, dtype=hidden.dtype)
            return ones, torch.zeros_like(ones)

    module = types.SimpleNamespace(config=types.SimpleNamespace(num_attention_heads=heads, num_key_value_heads=2))
    module.head_dim, module.q_proj, module.rotary_emb = size, torch.nn.Identity(), Still()
    scores, torch.float32 = [], torch.float64
    for query, key, value in zip(*(torch.from_numpy(part).double() for part in inputs(seed).values()), strict=True):
        hidden = query.transpose(0, 1).flatten(1)[None]
        scores.append(CapPress().score(module, hidden, key[None], value[None], None, {})[0].numpy())
    scores, tokens = np.stack(scores), SHAPE["tokens"]
    kept = best(scores, range(4, tokens - recent), budget - 4 - recent, tokens)
    spec = {"score": {"name": "cap", "params": {}}, "window": 1, "sink": 4, "recent": recent}
    return case("cap", seed, scores, kept, notes="kvpress CapPress", budget_tokens=budget, **spec)


def lukv() -> None:
    """Pairs that `LUKVPress.compress` of kvpress keeps in each head, by compression ratio; tests/golden/methods_2026.

    The table is that of tests/golden/heads/budgets.npy, which this writes: at each ratio, a random share of heads.
    """
    LUKVPress = import_module("kvpress").LUKVPress
    RandomPress = import_module("kvpress").RandomPress

    numbers, tokens = np.random.default_rng(15), 97
    uneven = numbers.normal(scale=0.8, size=(3, 2))
    ratio, shift = np.arange(1, 100)[:, None, None] / 100, np.zeros((99, 1, 1))
    for _ in range(60):  # until the mean over heads is the ratio
        table = 1 / (1 + np.exp(-(uneven + shift)))
        shift += np.log(ratio / (1 - ratio)) - np.log(table.mean((1, 2), keepdims=True) ** -1 - 1) * -1
    table = table.astype(np.float32)
    np.save(TESTS / "heads" / "budgets.npy", table)
    press, by_ratio = LUKVPress(press=RandomPress()), {}
    press._budget_curves = table
    module = types.SimpleNamespace(config=types.SimpleNamespace(_attn_implementation="sdpa"))
    for kept in (10, 31, 53, 90):
        press.compression_ratio, counts = 1 - kept / tokens, []
        for module.layer_idx in range(3):
            keys = torch.zeros(1, 2, tokens, 4, dtype=torch.float64)
            press.compress(module, None, keys, keys, None, {})
            _, heads, _ = module.masked_key_indices
            counts.append((tokens - torch.bincount(heads, minlength=2)).tolist())
        by_ratio[str(kept)] = counts
    text = json.dumps({"tokens": tokens, "kept_by_budget": by_ratio}) + "\n"
    (TESTS / "methods_2026" / "lukv.json").write_text(text, "utf-8")


def dropkv(folder: Path) -> None:
    """Scores of `dropkv_scores_reference` of DropKV's dropkv_triton.py, in float32; tests/golden/methods_2026."""
    seed, window = 17, 8
    scores_of = _function(folder / "dropkv_triton.py", "dropkv_scores_reference")
    scores = scores_of(*(torch.from_numpy(part) for part in inputs(seed).values()), window_size=window)
    described = {"seed": seed, "window": window, "scores": scores.double().numpy().tolist()}
    (TESTS / "methods_2026" / "dropkv.json").write_text(json.dumps(described) + "\n", "utf-8")


def dms() -> None:
    """Pairs that `DMSPress` of kvpress leaves to each head, by threshold; tests/golden/methods_2026.

    `kept_while_answering`: after a prompt of `prompt` tokens, and after each token of an answer of all others.
    """
    DMSPress, KnormPress = (getattr(import_module("kvpress"), name) for name in ("DMSPress", "KnormPress"))

    seed, window, tokens, left = 16, 7, SHAPE["tokens"], {}
    keys = torch.from_numpy(inputs(seed)["key"])
    layers = [types.SimpleNamespace(keys=key[None], values=key[None]) for key in keys]
    cache = types.SimpleNamespace(layers=layers)
    arguments = {"hidden_states": keys[:1, 0], "cache_position": torch.arange(tokens), "past_key_values": cache}
    module = types.SimpleNamespace(config=types.SimpleNamespace(_attn_implementation="sdpa"))

    def kept(read: int) -> list[list[int]]:
        kept = np.ones((SHAPE["kv_heads"], read), dtype=bool)
        if module.masked_key_indices is not None:
            kept[module.masked_key_indices[1], module.masked_key_indices[2]] = False
        return [np.flatnonzero(head).tolist() for head in kept]

    for threshold in (-0.5, -2.75, -3.5, -9.0):
        press, left[f"{threshold:g}"] = DMSPress(KnormPress(), threshold, window), []
        for module.layer_idx in range(len(layers)):
            module.masked_key_indices = None
            press.forward_hook(module, [], arguments, [])
            left[f"{threshold:g}"].append(kept(tokens))
    prompt, answering = 31, dict[str, list[list[list[list[int]]]]]()
    for threshold in (-2.75, -3.5):
        press, steps = DMSPress(KnormPress(), threshold, window, decoding=True), [[] for _ in range(prompt, tokens + 1)]
        for module.layer_idx, (layer, key) in enumerate(zip(layers, keys, strict=True)):
            module.masked_key_indices = None
            for step, stop in zip(steps, range(prompt, tokens + 1), strict=True):
                start = 0 if stop == prompt else stop - 1
                layer.keys = layer.values = key[None, :, :stop]
                arguments |= {"hidden_states": key[:1, start:stop], "cache_position": torch.arange(start, stop)}
                press.forward_hook(module, [], arguments, [])
                step.append(kept(stop))
        answering[f"{threshold:g}"] = steps
    described = {"seed": seed, "window": window, "kept_by_threshold": left}
    text = json.dumps(described | {"prompt": prompt, "kept_while_answering": answering}) + "\n"
    (TESTS / "methods_2026" / "dms.json").write_text(text, "utf-8")


def simlayerkv(folder: Path, variant: str) -> Case:
    """Laziness as the last lines of `ori_forward` have it, with its own attention, for 4 sinks and 9 recent tokens."""
    seed, sink, recent, threshold = 12, 4, 9, 0.42
    attend = _function(folder / "LongBench" / "SimLayerKV_attention_llama.py", "scaled_dot_product_attention")
    laziness = []
    for query, key, value in zip(*(torch.from_numpy(part).double() for part in inputs(seed).values()), strict=True):
        wide = (part.repeat_interleave(len(query) // len(part), dim=0)[None] for part in (key, value))
        _, attn_weight = attend(query[None, :, -1:], *wide)
        bos_weight = attn_weight[:, :, :, 0:sink].mean(dim=1).sum(dim=-1)
        bos_weight += attn_weight[:, :, :, -recent:].mean(dim=1).sum(dim=-1)
        laziness.append(float(bos_weight))
    layers, tokens = SHAPE["layers"], SHAPE["tokens"]
    budget = 32  # pays for two layers of four: 2 * 35 of 4 * 19 candidates
    lazy = np.array(laziness) > (threshold if variant == "official" else np.median(laziness))
    assert sum(lazy) == (2 if variant == "paper" else 1), laziness
    kept = np.ones((layers, SHAPE["kv_heads"], tokens), dtype=bool)
    kept[lazy, :, sink : tokens - recent] = False
    spec = {"score": {"name": "recency", "params": {}}, "window": 1, "recent": recent, "sink": sink}
    kind = {"kind": "lazy", "published_threshold": threshold}
    notes = "ori_forward of LongBench/SimLayerKV_attention_llama.py"
    scores = np.broadcast_to(np.arange(tokens), kept.shape)
    name = "simlayerkv" if variant == "paper" else "simlayerkv_published"
    return case(name, seed, scores, kept, notes=notes, budget_tokens=budget, layers=kind, variant=variant, **spec)


def _function(file: Path, name: str) -> Callable[..., Any]:
    """A function of a file that reads torch and math alone, without running the rest of the file."""
    parts = ast.Module(
        [node for node in ast.parse(file.read_text("utf-8")).body if getattr(node, "name", "") == name], []
    )
    names: dict[str, Any] = {"torch": torch, "math": math, "F": torch.nn.functional}
    exec(compile(parts, file.name, "exec"), names)
    return names[name]


def _package(folder: Path, package: str, module: str) -> Any:
    """A module of a folder, without running the `__init__.py` of the packages around it."""
    parts = module.split(".")
    for depth in range(len(parts)):
        name = ".".join([package, *parts[:depth]])
        if name not in sys.modules or depth == 0:
            sys.modules.setdefault(name, types.ModuleType(name)).__path__ = [str(folder.joinpath(*name.split(".")))]
    sys.modules.setdefault(f"{package}.compression", types.ModuleType(f"{package}.compression"))
    spec = importlib.util.spec_from_file_location(
        f"{package}.{module}", folder.joinpath(package, *parts).with_suffix(".py")
    )
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def main() -> None:
    """Write the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--code", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    makers: dict[str, Callable[[], Case]] = {
        "rkv": lambda: rkv(options.code / "R-KV"),
        "cap": lambda: cap(options.code),
        "finch": lambda: finch(options.code),
        "simlayerkv": lambda: simlayerkv(options.code / "SimLayerKV", "paper"),
        "simlayerkv_published": lambda: simlayerkv(options.code / "SimLayerKV", "official"),
    }
    files = {"lukv": lukv, "dms": dms, "dropkv": lambda: dropkv(options.code / "DropKV")}
    for name in files.keys() & options.names:
        files[name]()
    for name in [name for name in options.names if name not in files] or ([] if options.names else makers):
        spec, arrays = makers[name]()
        np.savez_compressed(
            options.output / f"{name}.npz", allow_pickle=False, spec=np.array(json.dumps(spec)), **arrays
        )
        print(f"{name}: {spec['total_pairs']} pairs")


if __name__ == "__main__":
    main()
