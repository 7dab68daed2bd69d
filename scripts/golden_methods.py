"""Golden cases of methods of 2025-26, computed in float64 by code of others: tests/golden/methods_2026/NAME.json.

    PYTHONPATH=KVPRESS PYTHON scripts/golden_methods.py NAME... [--lagkv lag_kv.py] [--triattention FOLDER]
        [--lukv step2_compute_curve.py]

PYTHON has kvpress' requirements (transformers < 5.3), not kvbench's. KVPRESS is a checkout of
github.com/NVIDIA/kvpress at 8bb29b9, lag_kv.py that of github.com/AI-Lab-China-Merchants-Bank/LagKV at 2a9d19e, FOLDER
one of github.com/WeianMao/triattention at c3744ee, step2_compute_curve.py that of github.com/baidu-baige/LU-KV. Presses
write `torch.float32` into some steps; here that name means float64. A file has numbers only; `made_up` draws the inputs
again.

A case: `seed` and `shape` of the inputs; `score`, its `params`, fields of the `policy` here; `budget`: pairs per head;
`scores`: what ranks the tokens of each KV head, null where the code gives a constant to what it always keeps;
`kept`: their positions. `rows`: how many of the last tokens are no context but repeat it. `drawn`: a seed of `sketch`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1] / "tests" / "golden" / "methods_2026"
AXES = ("query_heads", "kv_heads", "tokens", "head_dim", "hidden")
SHAPE = {"query_heads": 6, "kv_heads": 2, "tokens": 103, "head_dim": 8, "hidden": 20}

SNAPKV = {"window": 16, "recent": 16, "pool": {"kind": "avg", "size": 5}, "order": ["pool", "group"]}
"""`SnapKVPress(window_size=16, kernel_size=5)` as fields of a policy here."""


def made_up(seed: int, shape: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Queries, keys and values [heads, tokens, head_dim], and an output projection [hidden, query heads x head_dim].

    Drawn in this order from numpy's legacy generator, whose numbers never change, and rounded to float32. Values have
    norms that differ by token.
    """
    draw = np.random.RandomState(seed).standard_normal
    query_heads, kv_heads, tokens, head_dim, hidden = (shape[axis] for axis in AXES)
    arrays = {
        "queries": 1.5 * draw((query_heads, tokens, head_dim)),
        "keys": draw((kv_heads, tokens, head_dim)),
        "values": draw((kv_heads, tokens, head_dim)) * np.exp(draw((kv_heads, tokens, 1)) / 2) + 0.5,
        "output": draw((hidden, query_heads * head_dim)),
    }
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def sketch(seed: int, kv_heads: int, head_dim: int, directions: int) -> np.ndarray:
    """Random directions [kv_heads, head_dim, directions] that Compactor projects keys to."""
    return np.random.RandomState(seed).standard_normal((kv_heads, head_dim, directions)) / directions**0.5


class Layer:
    """An attention layer as presses see it, without rotation: its input is its queries and keys side by side."""

    def __init__(self, seed: int, shape: Mapping[str, int]) -> None:
        import torch

        arrays = {name: torch.from_numpy(array).double() for name, array in made_up(seed, shape).items()}
        self.keys, self.values = arrays["keys"][None], arrays["values"][None]
        self.hidden = torch.cat((arrays["queries"], arrays["keys"])).transpose(0, 1).flatten(1)[None]
        width = shape["query_heads"] * shape["head_dim"]
        config = SimpleNamespace(
            num_attention_heads=shape["query_heads"],
            num_key_value_heads=shape["kv_heads"],
            head_dim=shape["head_dim"],
            hidden_size=shape["hidden"],
            _attn_implementation="sdpa",
        )
        self.module: Any = SimpleNamespace(
            layer_idx=0,
            config=config,
            head_dim=shape["head_dim"],
            num_key_value_groups=shape["query_heads"] // shape["kv_heads"],
            q_proj=lambda hidden: hidden[..., :width],
            k_proj=lambda hidden: hidden[..., width:],
            o_proj=SimpleNamespace(weight=arrays["output"]),
        )
        angles = torch.zeros(1, shape["tokens"], shape["head_dim"], dtype=torch.float64)
        self.arguments = {"position_embeddings": (angles.cos(), angles.sin())}

    def score(self, press: Any) -> Any:
        """The scores [kv_heads, tokens] of a press."""
        return press.score(self.module, self.hidden, self.keys.clone(), self.values, None, self.arguments)[0]

    def kept(self, press: Any, budget: int) -> list[list[int]]:
        """Positions of what a press keeps of each head, found by the keys that it returns."""
        press.compression_ratio = 1 - (budget + 0.5) / self.keys.shape[2]
        keys, _ = press.compress(self.module, self.hidden, self.keys, self.values, None, self.arguments)
        same = (keys[0][:, :, None] == self.keys[0][:, None]).all(dim=-1)
        return [sorted(head.nonzero()[:, 1].tolist()) for head in same]


def case(
    press: Any,
    score: str,
    budget: int,
    params: Mapping[str, Any],
    constant: range | list[int] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A case of a press at a budget. constant: positions whose score says only that they are kept."""
    seed, shape = more.pop("seed", 1), SHAPE | more.pop("shape", {})
    layer = Layer(seed, shape)
    press.compression_ratio = 1 - (budget + 0.5) / shape["tokens"]
    rounded = [[float(f"{number:.10g}") for number in head] for head in layer.score(press).tolist()]
    scores: list[list[float | None]] = [
        [None if j in (constant or []) else number for j, number in enumerate(head)] for head in rounded
    ]
    described = {"seed": seed, "shape": shape, "score": score, "params": dict(params), "policy": more, "budget": budget}
    return described | {"scores": scores, "kept": layer.kept(press, budget)}


def chunkkv(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Chunks of 10 of 103 tokens by the norm of keys; over SnapKV's window of 16, which begins where a chunk does."""
    presses = import_module("kvpress")

    def kept(press: Any, tokens: int, budget: int, score: str, **policy: Any) -> dict[str, Any]:
        shape = SHAPE | {"tokens": tokens}
        positions = Layer(1, shape).kept(presses.ChunkKVPress(press, chunk_length=10), budget)
        policy |= {"heads": {"kind": "chunks", "size": 10}}
        described = {"seed": 1, "shape": shape, "score": score, "params": {}, "policy": policy}
        return described | {"budget": len(positions[0]), "scores": None, "kept": positions}

    return [
        kept(presses.KnormPress(), 103, 40, "key_norm"),
        kept(presses.SnapKVPress(window_size=16, kernel_size=5), 106, 50, "attn", **SNAPKV),
    ]


def gated_chunkkv(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Scores of both signs and positive ones, budgets up to the last tokens, chunks of 5, and a last chunk of one."""
    presses = import_module("kvpress")
    norms = presses.KnormPress(), "key_norm", {}
    attention = presses.NonCausalAttnPress(chunk_size=32), "non_causal", {"chunk": 32}

    def kept(of: tuple[Any, ...], budget: int, tokens: int = 103, **heads: int) -> dict[str, Any]:
        press, score, params = of
        lengths = {"chunk_length": heads.get("size", 10), "low_entropy_chunk_length": heads.get("spiky", 4)}
        shape = SHAPE | {"tokens": tokens}
        positions = Layer(1, shape).kept(presses.EntropyGatedChunkKVPress(press, **lengths), budget)
        policy = {"heads": {"kind": "gated_chunks", **heads}}
        described = {"seed": 1, "shape": shape, "score": score, "params": params, "policy": policy}
        return described | {"budget": budget, "scores": None, "kept": positions}

    return [
        *(kept(norms, budget) for budget in (25, 45, 90)),
        *(kept(attention, budget) for budget in (25, 45, 90)),
        kept(attention, 30, 101),
        kept(norms, 60, 103, size=5, spiky=2),
    ]


def compactor(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Keys as they are, or in 5 directions; chunks of 32 of 103 tokens; both, blended by a number or by the ratio."""
    import torch

    presses, tokens, width = import_module("kvpress"), SHAPE["tokens"], SHAPE["head_dim"]
    kv_heads, exact, chunk = SHAPE["kv_heads"], {"sketch": None}, {"chunk": 32}
    drawn = torch.from_numpy(sketch(2, kv_heads, width, 5))
    torch.randn = lambda *shape, **kind: (torch.eye(width) if shape[-1] == width else drawn) * shape[-1] ** 0.5
    left_out = [*range(8), *range(99, 103)]

    def blended(budget: int, blending: float | None) -> dict[str, Any]:
        press = presses.CompactorPress(chunk_size=32, sketch_dimension=width, blending=blending)
        if blending is None:  # `case` asks for half a pair more than it keeps
            press.blending = 1 - budget / tokens
        return case(press, "compactor", budget, {**exact, **chunk, "blending": blending}, left_out)

    return [
        case(presses.LeverageScorePress(sketch_dimension=width), "leverage", 40, exact),
        case(presses.LeverageScorePress(sketch_dimension=5), "leverage", 40, {"sketch": 5}) | {"drawn": 2},
        case(presses.NonCausalAttnPress(chunk_size=32), "non_causal", 40, chunk),
        *(blended(budget, blending) for budget, blending in ((20, None), (60, None), (40, 0.35))),
    ]


def criticalkv(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Over SnapKV: equal heads at three budgets; heads that compete as in AdaKV."""
    presses = import_module("kvpress")
    snapkv = presses.SnapKVPress(window_size=16, kernel_size=5)
    described = {"seed": 1, "shape": SHAPE, "score": "criticalkv", "params": {}, "policy": SNAPKV, "scores": None}
    cases = []
    for budget in (34, 48, 80):
        kept = Layer(1, SHAPE).kept(presses.CriticalKVPress(snapkv), budget)
        cases.append(described | {"budget": budget, "kept": kept})
    layer, press = Layer(1, SHAPE), presses.CriticalAdaKVPress(snapkv, alpha_safeguard=0.2)
    press.compression_ratio = 1 - 48.5 / SHAPE["tokens"]
    press.compress(layer.module, layer.hidden, layer.keys, layer.values, None, layer.arguments)
    _, heads, positions = (part.tolist() for part in layer.module.masked_key_indices)
    gone = {*zip(heads, positions, strict=True)}
    kept = [[j for j in range(SHAPE["tokens"]) if (head, j) not in gone] for head in range(SHAPE["kv_heads"])]
    policy = SNAPKV | {"heads": {"kind": "safeguard", "alpha": 0.2}}
    return [*cases, described | {"policy": policy, "budget": 48, "kept": kept}]


def cur(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """As kvpress sets it; every other leverage, over all tokens or spans of 10."""
    press = import_module("kvpress").CURPress
    sinks = range(4)
    cases = [case(press(), "cur", 40, {}, sinks)]
    for leverage, span in (("key", 10), ("value", None), ("kv_avg", 10)):
        other = press(leverage_type=leverage, use_local_approximation=span is not None, local_window_size=span or 1)
        cases.append(case(other, "cur", 40, {"leverage": leverage, "span": span}, sinks))
    return cases


GATES = {
    "linear": {"weight": (2, 20), "bias": (2,)},
    "kvzap": {"0.weight": (5, 20), "0.bias": (5,), "2.weight": (2, 5), "2.bias": (2,)},
    "fastkvzip": {
        **{"q_proj.weight": (24, 20), "q_proj.bias": (24,), "k_proj.weight": (8, 20), "q_norm.weight": (4,)},
        **{"k_norm.weight": (4,), "k_base": (2, 1, 5, 4), "b": (2, 1, 3)},
    },
}
"""Shapes of the weights of a layer: 2 KV heads of 3 query heads, hidden states of 20 numbers."""


def gate_weights(kind: str) -> list[dict[str, np.ndarray]]:
    """Weights of three layers."""
    draw = np.random.RandomState(3).standard_normal
    return [{name: draw(shape).astype(np.float32) for name, shape in GATES[kind].items()} for _ in range(3)]


def gates(arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores of 30 tokens by the gates of layer 1. Also writes the weights that other tests read, by kind."""
    import torch
    from safetensors.numpy import save_file

    kvzap, fast = (import_module(f"kvpress.presses.{name}_press") for name in ("kvzap", "fastkvzip"))
    for kind in ("kvzap", "fastkvzip"):
        layers = enumerate(gate_weights(kind))
        named = {f"layers.{index}.{name}": part for index, layer in layers for name, part in layer.items()}
        save_file(named, FOLDER.parent / "heads" / f"{kind}.safetensors")
    hidden = torch.from_numpy(made_up(1, {**SHAPE, "query_heads": 1, "tokens": 30, "head_dim": 20})["queries"]).double()
    scores = {}
    for kind in GATES:
        if kind == "fastkvzip":
            gate = fast.FastKVzipGate(1, 20, 2, 3, torch.float64, 4, 5)
        else:
            inner = None if kind == "linear" else 5
            config = kvzap.KVzapConfig(input_dim=20, output_dim=2, n_modules=3, hidden_dim=inner)
            gate = kvzap.KVzapModel(config).double().layers[1]
        gate.load_state_dict({name: torch.from_numpy(part).double() for name, part in gate_weights(kind)[1].items()})
        gate_scores = gate(hidden)[0]
        scores[kind] = (gate_scores if kind == "fastkvzip" else gate_scores.T).tolist()
    return {"hidden": hidden[0].tolist(), "scores": scores}


def dms_kvzap(arguments: argparse.Namespace) -> dict[str, Any]:
    """Pairs that `DMSPress(KVzapPress(), threshold, decoding=True)` leaves to each head of three layers: after a prompt
    of `prompt` tokens, and after each token of an answer. The hidden states of a layer are the queries of `made_up`.
    """
    import torch

    presses, kvzap = (import_module(name) for name in ("kvpress", "kvpress.presses.kvzap_press"))
    seed, window, prompt, shape = 2, 7, 31, {**SHAPE, "query_heads": 3, "tokens": 48, "head_dim": 20}
    states = torch.from_numpy(made_up(seed, shape)["queries"]).double()
    answering: dict[str, Any] = {}
    for kind, threshold in (("linear", -4.0), ("linear", 1.5), ("kvzap", -1.0), ("kvzap", 0.5)):
        inner = None if kind == "linear" else 5
        config = kvzap.KVzapConfig(input_dim=20, output_dim=2, n_modules=3, hidden_dim=inner)
        scorer = presses.KVzapPress()
        scorer.kvzap_model = kvzap.KVzapModel(config).double()
        for layer, weights in zip(scorer.kvzap_model.layers, gate_weights(kind), strict=True):
            layer.load_state_dict({name: torch.from_numpy(part).double() for name, part in weights.items()})
        press, steps = presses.DMSPress(scorer, threshold, window, decoding=True), [[] for _ in range(prompt, 49)]
        for index, hidden in enumerate(states):
            module = SimpleNamespace(layer_idx=index, masked_key_indices=None)
            scores = scorer.score(module, hidden[None], None, None, None, {})
            assert (scores - threshold).abs().min() > 1e-3, "float32 must decide as float64 does"
            for step, stop in zip(steps, range(prompt, 49), strict=True):
                start = 0 if stop == prompt else stop - 1
                keys = torch.zeros(1, 2, stop, 1)
                cache = SimpleNamespace(layers=[SimpleNamespace(keys=keys, values=keys)] * 3)
                read = {"hidden_states": hidden[None, start:stop], "cache_position": torch.arange(start, stop)}
                press.forward_hook(module, [], read | {"past_key_values": cache}, [])
                kept = np.ones((2, stop), dtype=bool)
                if module.masked_key_indices is not None:
                    kept[module.masked_key_indices[1], module.masked_key_indices[2]] = False
                step.append([np.flatnonzero(head).tolist() for head in kept])
        answering.setdefault(kind, {})[f"{threshold:g}"] = steps
    return {"seed": seed, "shape": shape, "window": window, "prompt": prompt, "kept_while_answering": answering}


def kvzip_plus(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The last 40 of 103 tokens repeat the others, of which the first four are the prompt's head."""
    import torch

    rows, tokens = 40, SHAPE["tokens"]
    press, layer = import_module("kvpress").KVzipPress(n_sink=4, kvzip_plus_normalization=True), Layer(1, SHAPE)
    press.context_length, press.start_idx, press.end_idx = tokens - rows, 4, tokens - rows
    press.score_val = torch.zeros(1, 1, SHAPE["kv_heads"], tokens - rows, dtype=torch.float64)
    angles = tuple(part[:, -rows:] for part in layer.arguments["position_embeddings"])
    arguments_of_rows = {"position_embeddings": angles}
    press.score_kvzip(layer.module, layer.hidden[:, -rows:], layer.keys, layer.values, None, arguments_of_rows)
    scores = [[float(f"{number:.10g}") for number in head] for head in press.score_val[0, 0].tolist()]
    best = [sorted(range(4, tokens - rows), key=head.__getitem__, reverse=True)[:20] for head in scores]
    described = {"seed": 1, "shape": SHAPE, "score": "kvzip_plus", "params": {}, "policy": {"sink": 4}, "rows": rows}
    return [described | {"budget": 24, "scores": scores, "kept": [sorted([*range(4), *head]) for head in best]}]


class Characters:
    """A tokenizer of one number a character, whose chat template names the user and the answer.

    templated: whether it has a chat template.
    """

    bos_token = bos_token_id = None

    def __init__(self, templated: bool) -> None:
        self.chat_template = "[user] {content} [answer]" if templated else None

    def __call__(self, text: str, **options: Any) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[ord(character) % 97 for character in text])

    def encode(self, text: str, **options: Any) -> Any:
        import torch

        return torch.tensor([self(text).input_ids], dtype=torch.long)

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        assert self.chat_template is not None
        return self.chat_template.format(content=messages[0]["content"])


def small_model(kind: str) -> Any:
    """A model of three layers, 6 query heads over 2 KV heads, in torch's default type, with drawn weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "head_dim": 10, "vocab_size": 97}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512}
    config = AutoConfig.for_model(kind, **sizes, **heads)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    draw = np.random.RandomState(5).standard_normal
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            drawn = draw(tuple(weight.shape))
            weight.copy_(torch.from_numpy(1 + 0.3 * drawn if weight.ndim == 1 else 0.2 * drawn))
    return model


def kvgrad(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `KVgradPress` repeats, scores and keeps of 53 tokens in whole models, with a chat template and without.

    `scores` are those of each layer and KV head, before the sinks get the highest.
    """
    import torch
    from transformers import DynamicCache

    module: Any = import_module("kvpress.presses.kvzip_press")
    ids, cases = np.random.RandomState(6).randint(0, 97, 53), []
    for kind, templated in (("llama", True), ("llama", False), ("qwen3", True)):
        model, tokenizer = small_model(kind), Characters(templated)
        press = import_module("kvpress").KVgradPress(compression_ratio=0.7, chunk_size=20)
        prepare, compress, seen = press.prepare, press.compress_post, {}

        def prepared(*given: Any, prepare: Any = prepare, seen: Any = seen) -> Any:
            seen["repeats"] = prepare(*given)
            return seen["repeats"]

        def compressed(model: Any, compress: Any = compress, press: Any = press, seen: Any = seen) -> None:
            seen["scores"] = press.score_val[:, 0].clone()
            compress(model)

        press.prepare, press.compress_post = prepared, compressed
        module.AutoTokenizer = SimpleNamespace(from_pretrained=lambda path, tokenizer=tokenizer: tokenizer)
        with press(model):
            model.model(input_ids=torch.from_numpy(ids)[None], past_key_values=DynamicCache(config=model.config))
        kept = torch.ones(3, 2, 53, dtype=torch.bool)
        for index, layer in enumerate(model.model.layers):
            _, heads, positions = layer.self_attn.masked_key_indices
            kept[index, heads, positions] = False
        cases.append(
            {
                "kind": kind,
                "templated": templated,
                "ids": ids.tolist(),
                "chunk": 20,
                "repeats": [repeat[0].tolist() for _, repeat in seen["repeats"]],
                "scores": [[[float(f"{x:.10g}") for x in head] for head in layer] for layer in seen["scores"].tolist()],
                "kept": [[head.nonzero()[:, 0].tolist() for head in layer] for layer in kept],
            }
        )
    return {"cases": cases}


def lagkv(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Partitions of 16 of 103 tokens; partitions that compete; a prompt without a reference; the published kept set."""
    import torch

    presses = import_module("kvpress")
    small = {"sink": 4, "lag": 16}
    tail = [*range(4), *range(84, 103)]
    cases = [
        case(presses.LagKVPress(n_sink=4, lag_size=16), "lagkv", 48, small, tail),
        case(
            presses.LagKVPress(n_sink=4, lag_size=16, cross_scoring=True), "lagkv", 51, {**small, "cross": True}, tail
        ),
        case(presses.LagKVPress(n_sink=4, lag_size=16), "lagkv", 20, small, range(35), shape={"tokens": 35}),
    ]
    source = Path(arguments.lagkv).read_text("utf-8").replace("from transformers.cache_utils", "from builtins")
    scope: dict[str, Any] = {}
    exec(source.replace("import DynamicCache", "import object as DynamicCache"), scope)
    layer = Layer(1, SHAPE)
    cache = SimpleNamespace(lag_size=16, ratio=5 / 16, score_v_ratio=1.0, _compressed_len=[4])
    cache.key_cache, cache.value_cache = [layer.keys.clone()], [layer.values.clone()]
    cache._get_states_score = scope["LagKV"]._get_states_score.__get__(cache)
    scope["LagKV"]._compress_algo(cache, 0, 4)
    same = (cache.key_cache[0][0][:, :, None] == layer.keys[0][:, None]).all(dim=-1)
    published = [sorted(head.nonzero()[:, 1].tolist()) for head in same]
    assert torch.tensor(published).shape == (2, 48)
    return [*cases, cases[0] | {"scores": None, "kept": published}]


def rotated(keys: np.ndarray, positions: np.ndarray, frequencies: np.ndarray, interleaved: bool) -> np.ndarray:
    """Keys [heads, tokens, head_dim] as a model rotates them, by positions [heads, tokens], in float64."""
    half, wide = len(frequencies), keys.astype(np.float64)
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))
    angles = positions[..., None] * frequencies
    turned = np.empty_like(wide)
    turned[..., first] = wide[..., first] * np.cos(angles) - wide[..., second] * np.sin(angles)
    turned[..., second] = wide[..., second] * np.cos(angles) + wide[..., first] * np.sin(angles)
    return turned


def triattention(arguments: argparse.Namespace) -> dict[str, Any]:
    """A prompt of 103 tokens; 103 pairs that evictions left of 400, other ones in each head; an ablation; and
    what is left of an answer after each of its windows.

    The statistics are those of the made-up queries, which nothing rotates. What each KV head keeps is chosen by
    `TriAttention` of the published code (`per_layer_perhead_pruning`), whose scores are standardised as it does.
    """
    import torch

    sys.path[:0] = [arguments.triattention, f"{arguments.triattention}/scripts"]
    method, utils = (import_module(f"triattention.methods.{name}") for name in ("triattention", "pruning_utils"))
    calibrate, arrays = import_module("calibrate"), made_up(1, SHAPE)
    heads, kv_heads, tokens, head_dim, _ = SHAPE.values()
    frequencies = 10000.0 ** (-2 * np.arange(head_dim // 2) / head_dim)
    evicted = np.stack([np.sort(np.random.RandomState(head).permutation(400)[:tokens]) for head in range(kv_heads)])
    whole = np.arange(tokens)[None].repeat(kv_heads, axis=0)

    def case(
        positions: np.ndarray,
        keys: np.ndarray = arrays["keys"],
        interleaved: bool = False,
        furthest: int = 65536,
        concentration: bool = True,
    ) -> dict[str, Any]:
        def rotary(like: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            angles = places[..., None] * torch.from_numpy(frequencies)
            angles = angles.repeat_interleave(2, dim=-1) if interleaved else torch.cat((angles, angles), dim=-1)
            return angles.cos(), angles.sin()

        style, stats = "interleaved" if interleaved else "half", {}
        for head, queries in enumerate(torch.from_numpy(arrays["queries"]).double()):
            numbers = calibrate._to_complex_pairs(queries, style=style)
            stats[0, head] = utils.HeadFrequencyStats(numbers.mean(dim=0), numbers.abs().mean(dim=0))
        device, read = torch.device("cpu"), int(positions.max()) + 1
        code = method.TriAttention.__new__(method.TriAttention)
        code.config = SimpleNamespace(device=device, dtype=torch.float64, layer_perhead_aggregation="max")
        code.sampled_heads, code.head_stats, code.rotary, code.rope_style = list(stats), stats, rotary, style
        code.num_attention_heads, code.num_key_value_heads = heads, kv_heads
        code.num_key_value_groups, code.head_dim, code.attention_scale = heads // kv_heads, head_dim, 1.0
        code.omega, code.freq_scale_sq = torch.from_numpy(frequencies), torch.ones(head_dim // 2)
        code.offsets, code.absolute_position = utils.build_geometric_offsets(furthest, device), read
        code.score_aggregation, code.normalize_scores, code.generator = "mean", True, None
        code.disable_mlr, code.disable_trig = not concentration, False
        code.cache_positions_per_layer_perhead = {(0, head): places for head, places in enumerate(positions.tolist())}
        cached, every = torch.from_numpy(rotated(keys, positions, frequencies, interleaved))[None], torch.arange(read)
        slots = every[: positions.shape[1]]
        kept = code._select_per_layer_perhead_independent(((cached, cached),), 40, 0, slots)[0]
        raw = code._compute_layer_head_scores(cached, slots, 0, 0, list(torch.from_numpy(positions)))
        scores = (raw - raw.mean(dim=1, keepdim=True)) / raw.std(dim=1, unbiased=False, keepdim=True)
        scores = scores.view(kv_heads, -1, len(slots)).amax(dim=1)
        params = {"furthest": furthest, "concentration": concentration}
        return {
            "positions": positions.tolist(),
            "interleaved": interleaved,
            "params": params,
            "scores": [[float(f"{number:.10g}") for number in head] for head in scores.tolist()],
            "kept": [sorted(head) for head in kept.tolist()],
        }

    cases = [case(whole), case(evicted), case(evicted, interleaved=True), case(evicted, furthest=1000)]
    cases.append(case(evicted, concentration=False))
    left, windows = whole[:, :40], []
    for first in range(40, tokens - 16, 16):
        left = np.concatenate((left, whole[:, first : first + 16]), axis=1)
        kept = case(left, np.take_along_axis(arrays["keys"], left[..., None], axis=1))["kept"]
        left = np.take_along_axis(left, np.array(kept), axis=1)
        windows.append(left.tolist())
    described = {"seed": 1, "shape": SHAPE, "frequencies": frequencies.tolist()}
    return described | {"cases": cases, "windows": windows}


def utilities(seed: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Utilities, whose spread differs by head, and scores that roughly follow them, [layers, KV heads, tokens]."""
    draw = np.random.RandomState(seed)
    utility = draw.exponential(size=shape) ** draw.uniform(0.5, 4, (*shape[:2], 1))
    return utility, utility * draw.exponential(size=shape)


def lukv_table(arguments: argparse.Namespace) -> dict[str, Any]:
    """How many tokens each head keeps by the table of one prompt, for every budget."""
    scope: dict[str, Any] = {"__name__": "step2"}
    exec(Path(arguments.lukv).read_text("utf-8"), scope)
    shape, sink, recent = (3, 2, 120), 4, 3
    evicted = scope["compute_optimal_budget_for_pair"](*utilities(1, *shape), sink, recent)
    kept = (shape[2] - evicted * shape[2]).round().astype(int).tolist()
    return {"seed": 1, "shape": shape, "sink": sink, "recent": recent, "kept": kept}


METHODS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "chunkkv": chunkkv,
    "compactor": compactor,
    "criticalkv": criticalkv,
    "cur": cur,
    "dms_kvzap": dms_kvzap,
    "gated_chunkkv": gated_chunkkv,
    "gates": gates,
    "kvgrad": kvgrad,
    "kvzip_plus": kvzip_plus,
    "lagkv": lagkv,
    "lukv_table": lukv_table,
    "triattention": triattention,
}


def main() -> None:
    """Write the files of the named methods."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+", choices=METHODS)
    parser.add_argument("--lagkv", help="lag_kv.py of the published code")
    parser.add_argument("--lukv", help="step2_compute_curve.py of the published code")
    parser.add_argument("--triattention", help="a clone of the published code")
    arguments = parser.parse_args()
    import torch

    import_module("kvpress")  # before the name of a type changes
    torch.float32 = torch.float64
    torch.set_default_dtype(torch.float64)
    FOLDER.mkdir(exist_ok=True)
    for name in arguments.names:
        golden = METHODS[name](arguments)
        text = json.dumps(golden) if isinstance(golden, dict) else "[\n" + ",\n".join(map(json.dumps, golden)) + "\n]"
        (FOLDER / f"{name}.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main()
