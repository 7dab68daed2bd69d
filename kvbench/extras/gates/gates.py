"""KVzap and Fast KVzip: gates, trained on KVzip's scores, that read a hidden state and score its pair at once.

KVzap (Jegou and Jeblick 2026, https://arxiv.org/abs/2601.07891), as `KVzapPress` of kvpress. Fast KVzip (Kim et al.
2026, https://arxiv.org/abs/2601.17668), as `prefill/attention/gate.py` of its code. Weights are read from a file.
"""

import hashlib
import re
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.support.annotations import Help
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.facts import LASTING, Claim
from kvbench.support.whole_file import check_size, check_unpacked

EPSILON = 1e-6
"""Added to the mean square in the norms of Fast KVzip."""
LARGEST = 2**32
"""Bytes of a file of gates, and of what a .pt is unpacked to."""
NAMED = re.compile(r"layers\.(\d+)\.(.+)")

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class _Gated(Score):
    """Base class: `gates` is the file of the weights, [layers], each by name and in float32.

    Raises MissingFile where there is none, UserError for a file of another kind.
    """

    gates: Annotated[
        str,
        Help(
            "a safetensors file of this model's gates",
            example="FILE with the weights of gates that were trained for this model",
        ),
    ]
    gates_sha256: str = field(init=False)
    inputs: ClassVar[ScoreInputs] = ScoreInputs(hidden_states="token")
    signed: ClassVar[bool] = True
    names: ClassVar[tuple[frozenset[str], ...]] = ()

    def __post_init__(self) -> None:
        if not Path(self.gates).is_file():
            raise MissingFile(f"score.gates={self.gates}: no such file; expected the weights of gates, one per layer")
        check_size(Path(self.gates), LARGEST)
        with open(self.gates, "rb") as file:
            object.__setattr__(self, "gates_sha256", hashlib.file_digest(file, "sha256").hexdigest()[:16])
        allowed = " or ".join(", ".join(sorted(names)) for names in self.names)
        for index, layer in enumerate(self._layers):
            if frozenset(layer) not in self.names:
                raise UserError(
                    f"score.gates={self.gates} holds {', '.join(sorted(layer))} for layer {index}; score {self.name} "
                    f"needs for each layer: {allowed}"
                )
            try:
                heads, width = self.shape(layer)
                fits = heads > 0 and self.gate(layer, torch.zeros(1, width)).shape == (heads, 1)
            except (IndexError, RuntimeError, ValueError, ZeroDivisionError):  # parts of other sizes, or of none
                fits = False
            if not fits:
                sizes = ", ".join(f"{name} {list(part.shape)}" for name, part in sorted(layer.items()))
                raise UserError(f"score.gates={self.gates}: the weights of layer {index} do not fit together: {sizes}")

    @cached_property
    def _layers(self) -> list[Weights]:
        return read_gates(self.gates)

    def shape(self, weights: Weights) -> tuple[int, int]:
        """KV heads, and the width of hidden states."""
        raise NotImplementedError

    def gate(self, weights: Weights, hidden: Float[Tensor, "new hidden"]) -> Scores:
        """Return the scores of tokens by KV head."""
        raise NotImplementedError

    def claims(self) -> Iterator[Claim]:
        yield from super().claims()
        yield Claim(f"score {self.name}", "", grants=frozenset({LASTING}))

    def check_model(self, layers: int, kv_heads: int, weights: str) -> None:
        heads, _ = self.shape(self._layers[0])
        if (len(self._layers), heads) != (layers, kv_heads):
            raise UserError(
                f"score.gates={self.gates}: gates of {len(self._layers)} layers of {heads} KV heads do not fit a model "
                f"of {layers} layers of {kv_heads} KV heads; name the file of this model's gates"
            )

    def read_hidden(self, layer: LayerCache, hidden: Float[Tensor, "new hidden"]) -> Scores:
        weights = self._layers[layer.index] if layer.index < len(self._layers) else self._layers[0]
        expected = layer.cache_heads, hidden.shape[1]
        if layer.index >= len(self._layers) or self.shape(weights) != expected:
            heads, width = self.shape(weights)
            raise UserError(
                f"score.gates={self.gates}: {len(self._layers)} layers of {heads} KV heads and hidden size {width} do "
                f"not fit layer {layer.index} with {expected[0]} KV heads and hidden size {expected[1]}; name this "
                "model's file"
            )
        return self.gate({name: part.to(hidden.device) for name, part in weights.items()}, hidden.float())

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return layer.recordings[self]


@dataclass(frozen=True)
class KVzap(_Gated):
    """B h + b, or B gelu(A h + a) + b, of the hidden state h that the attention of the layer reads."""

    name: str = "kvzap"
    names: ClassVar[tuple[frozenset[str], ...]] = (
        frozenset({"weight", "bias"}),
        frozenset({"0.weight", "0.bias", "2.weight", "2.bias"}),
    )

    def shape(self, weights: Weights) -> tuple[int, int]:
        if "weight" in weights:
            return weights["weight"].shape[0], weights["weight"].shape[1]
        return weights["2.weight"].shape[0], weights["0.weight"].shape[1]

    def gate(self, weights: Weights, hidden: Float[Tensor, "new hidden"]) -> Scores:
        if "weight" in weights:
            return F.linear(hidden, weights["weight"], weights["bias"]).T
        inner = F.gelu(F.linear(hidden, weights["0.weight"], weights["0.bias"]))
        return F.linear(inner, weights["2.weight"], weights["2.bias"]).T


@dataclass(frozen=True)
class FastKVzip(_Gated):
    """mean_g 1 / (1 + sum_s exp(q_g.(s - k) / sqrt(d) - b_g)) over the query heads g of a KV head and its sinks s.

    q_g and k are projections of the hidden state to d numbers, each over their root mean square times a weight.
    """

    name: str = "fastkvzip"
    signed: ClassVar[bool] = False
    names: ClassVar[tuple[frozenset[str], ...]] = (
        frozenset({"q_proj.weight", "q_proj.bias", "k_proj.weight", "q_norm.weight", "k_norm.weight", "k_base", "b"}),
    )

    def shape(self, weights: Weights) -> tuple[int, int]:
        return weights["k_base"].shape[0], weights["k_proj.weight"].shape[1]

    def gate(self, weights: Weights, hidden: Float[Tensor, "new hidden"]) -> Scores:
        heads, width = self.shape(weights)[0], weights["k_base"].shape[-1]
        queries = F.linear(hidden, weights["q_proj.weight"], weights["q_proj.bias"]).view(len(hidden), heads, -1, width)
        queries = F.rms_norm(queries, (width,), weights["q_norm.weight"], EPSILON).transpose(0, 1)
        keys = F.linear(hidden, weights["k_proj.weight"]).view(len(hidden), heads, width)
        keys = F.rms_norm(keys, (width,), weights["k_norm.weight"], EPSILON).transpose(0, 1)
        logits = (queries * keys[:, :, None]).sum(dim=-1) / width**0.5 + weights["b"]
        at_sinks = queries @ weights["k_base"].mT / width**0.5
        return (-(at_sinks - logits[..., None]).logsumexp(dim=-1)).sigmoid().mean(dim=-1)


def read_gates(path: str) -> list[Weights]:
    """Return the weights of each layer: of a .pt that holds them under `module` (Fast KVzip), else of a safetensors
    file whose names begin with `layers.NUMBER.` (KVzap). No code in a file is run.
    """
    by_layer: dict[int, Weights] = defaultdict(dict)
    try:
        if Path(path).suffix == ".pt":
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    check_unpacked(archive, LARGEST)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the pickle of whoever wrote the file
                content = torch.load(path, map_location="cpu", weights_only=True)
            by_layer |= dict(enumerate(content["module"]))
        else:
            from safetensors.torch import load_file

            for name, part in load_file(path).items():
                if match := NAMED.fullmatch(name):
                    by_layer[int(match[1])][match[2]] = part
        weights = {
            index: {name: _finite(name, part) for name, part in layer.items()} for index, layer in by_layer.items()
        }
    except UnpicklingError as error:  # torch goes on with how to run its code
        raise UserError(
            f"score.gates={path} holds more than tensors, or is no file of torch: it is not read"
        ) from error
    except Exception as error:  # readers of files raise many kinds
        raise UserError(f"score.gates={path} cannot be read: {' '.join(str(error).split())[:200]}") from error
    if sorted(by_layer) != list(range(len(by_layer))) or not by_layer:
        raise UserError(
            f"score.gates={path} has gates of layers {sorted(by_layer)}; expected names layers.0.NAME, layers.1.NAME, "
            "... in safetensors, or a .pt with a list of layers under `module`"
        )
    return [weights[index] for index in range(len(weights))]


def _finite(name: str, part: Tensor) -> Tensor:
    """Weights in float32. Raises ValueError for another type, NaN and infinity."""
    if not (isinstance(part, Tensor) and part.is_floating_point() and part.isfinite().all()):
        kind = f"a tensor of {part.dtype} or not finite" if isinstance(part, Tensor) else f"a {type(part).__name__}"
        raise ValueError(f"{name} is {kind}, not finite floating-point numbers")
    return part.float()
