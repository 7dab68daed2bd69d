"""How many rows a pass over a decode batch must have for no row's bits to depend on the rows beside it.

Two things can change the last bits of a row on a CPU:

- A matrix product may sum in another order when it has another number of rows. Where all products of a model are those
  of `OneDnnLinear`, any number of rows gives the same bits. Elsewhere every pass has the rows of the whole batch, and
  the numbers of rows below it that give the same bits are found by trial when the model is loaded.
- Functions such as SiLU run over vectors of numbers. What is left over at the end of a tensor, or of a thread's share
  of it, is computed by a scalar routine with other last bits: the last row would differ from the first. Rows are added
  until nothing is left over. This holds for a whole batch too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from kvbench.cache.attention import Rule
from kvbench.models import bridge

TRIED_ROWS = (1, 2, 4, 8)
"""Numbers of rows that are tried."""
DRAWS = 2
"""Passes of random tokens that must agree in every bit of every logit and of what the last layer would cache."""
OUTPUT_ROWS = 4
"""Fewest rows of the output layer's product where all products are alike but one token of each cell is wanted."""
PRODUCTS = ("mm", "addmm", "linear", "matmul", "einsum", "_grouped_mm")
"""Operations of torch that multiply all rows with one matrix."""
INEXACT = (
    *("cos", "sin", "tanh", "exp", "exp2", "expm1", "log", "log1p", "pow"),
    *("sigmoid", "silu", "gelu", "mish", "softplus", "erf", "elu"),
)
"""Functions that torch computes by vectors, with a scalar routine for the numbers left over."""
FIRST = 3
"""The position of the first token of a trial: at 0 nothing is rotated."""
VECTOR_BYTES = 128
"""Most bytes that a vector loop takes at a time: two AVX-512 registers. A machine with AVX2 takes half of that."""
GRAIN = 2**15
"""Numbers from which on torch splits a tensor over threads."""
LINEAR_ROWS = (1, 2, 3, 5, 8, 13, 16, 24, 33, 64, 100)
"""Numbers of rows that must give the bits of `TOGETHER` rows in a linear layer."""
TOGETHER = 128
LEAST_ROWS = 4
"""Fewest rows of a linear layer: fewer take as long or longer, and a single one is summed in another order."""


class OneDnnLinear(nn.Module):
    """A linear layer in float32 on a CPU that gives a row the same bits in any number of rows.

    torch's own product of one row is another routine than that of several, with other last bits. oneDNN with a weight
    that was laid out for it once sums every row alike, and is faster for few rows and for many. That is not promised by
    its authors: `linear_layers_agree` tries it on every shape of a model. Only the laid-out weight is held.
    """

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = plain.in_features, plain.out_features, plain.bias
        self._laid_out = torch.ops.mkldnn._reorder_linear_weight(plain.weight.detach().contiguous(), None)

    @property
    def weight(self) -> Float[Tensor, "out_features in_features"]:
        """The matrix, in the usual order, made anew each time."""
        return self._laid_out.to_dense()

    def forward(self, inputs: Float[Tensor, "*rows in_features"]) -> Float[Tensor, "*rows out_features"]:
        """Multiply, with more rows where there are few."""
        rows = inputs.reshape(-1, self.in_features)
        num_rows = rows.shape[0]
        if num_rows == 1:
            rows = rows.expand(LEAST_ROWS, -1)
        elif num_rows < LEAST_ROWS:
            rows = F.pad(rows, (0, 0, 0, LEAST_ROWS - num_rows))
        outputs = torch.ops.mkldnn._linear_pointwise(rows, self._laid_out, self.bias, "none", [], "")
        return outputs[:num_rows].view(*inputs.shape[:-1], self.out_features)


def use_onednn(model: Any) -> None:
    """Replace the linear layers of a float32 model on a CPU, where torch has oneDNN; else leave it as it is."""
    weights = model.get_input_embeddings().weight
    if weights.device.type != "cpu" or weights.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if type(part) is nn.Linear and part.weight.dtype == torch.float32:
                setattr(module, name, OneDnnLinear(part))


@torch.inference_mode()
def linear_layers_agree(model: Any) -> bool:
    """Whether all linear layers are `OneDnnLinear` and a row has the same bits in any company, tried for each shape."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | OneDnnLinear)]
    by_shape = {(layer.out_features, layer.in_features): layer for layer in layers if isinstance(layer, OneDnnLinear)}
    if not by_shape or any(isinstance(layer, nn.Linear) for layer in layers):
        return False
    generator = torch.Generator().manual_seed(0)
    for layer in by_shape.values():
        inputs = torch.randn(TOGETHER, layer.in_features, generator=generator)
        outputs = layer(inputs)
        if not all(torch.equal(layer(inputs[:rows]), outputs[:rows]) for rows in LINEAR_ROWS):
            return False
    return True


class EchoReader:
    """A reader that attends to nothing: queries come back as they are. `received` is what the last layer gave it."""

    def __init__(self) -> None:
        self.received: tuple[Tensor, ...] = ()

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "cells heads new head_dim"],
        keys: Float[Tensor, "cells kv_heads new head_dim"],
        values: Float[Tensor, "cells kv_heads new head_dim"],
        rule: Rule,
    ) -> Float[Tensor, "cells heads new head_dim"]:
        """The queries."""
        self.received = (queries, keys, values)
        return queries


@dataclass(frozen=True)
class BatchInvariance:
    """How many rows a pass has, so that a row's bits depend neither on the other rows nor on its place among them.

    any_rows: every product gives a row the same bits in any number of rows. steps: else, numbers of rows below the
    batch that do so for a pass over one token (`same_bits`); longer passes have the rows of the whole batch, because a
    trial with random tokens can agree where the real ones differ in the last bit. widths: how many numbers each inexact
    function takes per token. vector: how many of them its routine takes at a time.
    """

    steps: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    any_rows: bool = False
    vector: int = VECTOR_BYTES // 4

    def rows(self, cells: int, num_active: int, new: int) -> int:
        """Rows of a pass over `new` tokens in `num_active` cells of a batch of `cells`; may be more than `cells`."""
        if self.any_rows:
            return self._whole_vectors(min(num_active, cells), new)
        fewer = [rows for rows in self.steps if rows >= num_active and self._fits(rows * new)] if new == 1 else []
        return min([*fewer, self._whole_vectors(cells, new)])

    def last_of(self, rows: int, new: int) -> int:
        """Of how many tokens a pass over `new` takes logits, where only those of the last one are wanted."""
        return 1 if self.any_rows else min(new, -(-OUTPUT_ROWS // rows))

    @property
    def description(self) -> list[int] | str:
        """For the environment file."""
        return "any" if self.any_rows else list(self.steps)

    def _whole_vectors(self, least: int, new: int) -> int:
        """The smallest number of rows from `least` on for which no function's work ends within a vector."""
        return next(rows for rows in count(least) if self._fits(rows * new))

    def _fits(self, tokens: int) -> bool:
        """Whether no part of any function's work over so many tokens ends within a vector."""
        return all(part % self.vector == 0 for width in self.widths for part in _parts(tokens * width))


@torch.inference_mode()
def functions_of(model: Any) -> BatchInvariance:
    """What holds of any model attached to the bridge: whole batches, padded to whole vectors on a CPU.

    No other number of rows is tried.
    """
    return _record(model).invariance if model.get_input_embeddings().weight.device.type == "cpu" else BatchInvariance()


@torch.inference_mode()
def invariance_of(model: Any, cells: int) -> BatchInvariance:
    """What is found by trial of a model on a CPU that is attached to the bridge."""
    calls = _record(model)
    if linear_layers_agree(model) and not calls.products:
        invariance = replace(calls.invariance, any_rows=True)
        if all(_any_rows(model, cells, new, invariance) for new in (1, 2)):
            return invariance
    return replace(calls.invariance, steps=same_bits(model, cells, invariance=calls.invariance))


def _any_rows(model: Any, cells: int, new: int, invariance: BatchInvariance) -> bool:
    """Whether passes over `new` tokens agree with what is believed of the model."""
    tried = [rows for rows in (1, 3, 8) if rows < cells and invariance.rows(cells, rows, new) == rows]
    return _alike(model, cells, tried, new, invariance, torch.Generator().manual_seed(0)) == tried


@torch.inference_mode()
def same_bits(
    model: Any, cells: int, tried: Sequence[int] = TRIED_ROWS, invariance: BatchInvariance | None = None
) -> tuple[int, ...]:
    """Numbers of rows below `cells` for which a pass over one token gives every row the bits of the whole batch.

    `model` is attached to the bridge.
    """
    rows, generator = [rows for rows in tried if rows < cells], torch.Generator().manual_seed(0)
    for _ in range(DRAWS):
        rows = _alike(model, cells, rows, 1, invariance or BatchInvariance(), generator)
    return tuple(rows)


class _CallRecorder(TorchDispatchMode):
    """Which products and inexact functions torch is asked for in a pass over one token."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: set[int] = set()
        self.products: set[str] = set()
        self.itemsize = 4

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__.removesuffix("_")
        if name in PRODUCTS:
            self.products.add(name)
        if name in INEXACT:
            self.widths.add(result.numel())
            self.itemsize = min(self.itemsize, result.itemsize)
        return result

    @property
    def invariance(self) -> BatchInvariance:
        """The functions alone."""
        return BatchInvariance(widths=tuple(sorted(self.widths)), vector=VECTOR_BYTES // self.itemsize)


def _record(model: Any) -> _CallRecorder:
    recorder = _CallRecorder()
    with recorder:
        _pass(model, torch.zeros(1, 1, dtype=torch.long), 1)
    return recorder


def _parts(numbers: int) -> Iterator[int]:
    """How torch splits so many numbers over its threads: equal shares, and what is left for the last thread."""
    threads = min(torch.get_num_threads(), ceil(numbers / GRAIN))
    share = ceil(numbers / max(1, threads))
    yield from (share, numbers % share)


def _alike(
    model: Any,
    cells: int,
    tried: Sequence[int],
    new: int,
    invariance: BatchInvariance,
    generator: torch.Generator,
) -> list[int]:
    """Those of `tried` whose rows have the bits of a whole batch in one pass over random tokens."""
    embedded, whole_rows = model.get_input_embeddings().weight, invariance.rows(cells, cells, new)
    ids = torch.randint(len(embedded), (whole_rows, new), generator=generator).to(embedded.device)
    batch, agreeing = _pass(model, ids, invariance.last_of(whole_rows, new)), []
    for rows in tried:
        fewer = _pass(model, ids[:rows], invariance.last_of(rows, new))
        if all(torch.equal(few, many[:rows]) for few, many in zip(fewer, batch, strict=True)):
            agreeing.append(rows)
    return agreeing


def _pass(model: Any, ids: Tensor, last: int) -> tuple[Tensor, ...]:
    """The logits of the last token, and what the last layer would cache."""
    reader = EchoReader()
    logits = bridge.logits(model, ids, FIRST, reader, last)
    return (logits[:, -1], *reader.received)
