"""How many rows a pass over a decode batch must have so that the bits of a row do not depend on the other rows.

Two things can change the last bits of a row on a CPU:

- A matrix product may sum in another order when it has another number of rows. Those of `linear_layers` need not.
  Models with others are read in passes of the whole batch, or of fewer rows that gave the same bits in a trial.
- Functions such as SiLU run over vectors of numbers. What is left over at the end of a tensor, or of a thread's share
  of it, is computed by a scalar routine with other last bits: rows are added, in a whole batch too, until nothing is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvbench.models import bridge
from kvbench.models.linear_layers import PaddedLinear, linear_layers_agree
from kvbench.models.loading.architecture import stateful_layers

DRAWS = 2
"""Passes of random tokens that must agree in every bit of the logits and of the last layer's keys and values."""
OUTPUT_ROWS = 4
"""Fewest rows of the output layer's product if only the logits of one token per cell are needed."""
PRODUCTS = ("mm", "addmm", "linear", "matmul", "einsum", "_grouped_mm")
"""Operations of torch that multiply all rows with one matrix; RoPE's `matmul` of single numbers is none."""
INEXACT = (
    *("cos", "sin", "tanh", "exp", "exp2", "expm1", "log", "log1p", "pow"),
    *("sigmoid", "silu", "gelu", "mish", "softplus", "erf", "elu"),
)
"""Functions that torch computes on vectors, with a scalar routine for the remaining numbers."""
FIRST = 3
"""The position of the first token of a trial; at 0 RoPE rotates nothing."""
VECTOR_BYTES = 128
"""Most bytes per step of a vector loop: two AVX-512 registers. AVX2 uses half of that."""
GRAIN = 2**15
"""Numbers from which on torch splits a tensor over threads."""


@dataclass(frozen=True)
class BatchInvariance:
    """How many rows a pass has, so that the bits of a row depend neither on the other rows nor on its index.

    any_rows: every product gives a row the same bits in any number of rows. steps: otherwise, the numbers of rows below
    the batch that do so for a pass over one token (`same_bits`); longer passes have the rows of the full batch, because
    a trial with random tokens can agree although real tokens differ in the last bit. widths: numbers per token that
    each inexact function computes. vector: how many of them its routine computes at a time.
    """

    steps: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    any_rows: bool = False
    vector: int = VECTOR_BYTES // 4

    def rows(self, cells: int, num_active: int, new: int) -> int:
        """Return rows of a pass over `new` tokens in `num_active` cells of a batch of `cells`; may be more than
        `cells`.
        """
        if self.any_rows:
            return self._whole_vectors(min(num_active, cells), new)
        fewer = [rows for rows in self.steps if rows >= num_active and self._fits(rows * new)] if new == 1 else []
        return min([*fewer, self._whole_vectors(cells, new)])

    def last_of(self, rows: int, new: int) -> int:
        """Return how many tokens of `new` get logits if only the last needs them."""
        return 1 if self.any_rows else min(new, -(-OUTPUT_ROWS // rows))

    def _whole_vectors(self, least: int, new: int) -> int:
        """Return the smallest number of rows from `least` on for which no function's work ends within a vector."""
        return next(rows for rows in count(least) if self._fits(rows * new))

    def _fits(self, tokens: int) -> bool:
        """Return whether no function's work over so many tokens ends within a vector in any thread.

        torch gives its threads equal shares of the numbers, and the last one the rest.
        """
        for numbers in (tokens * width for width in self.widths):
            threads = min(torch.get_num_threads(), ceil(numbers / GRAIN))
            share = ceil(numbers / max(1, threads))
            if share % self.vector or numbers % share % self.vector:
                return False
        return True


@torch.inference_mode()
def functions_of(model: Any) -> BatchInvariance:
    """Return the safe setting for any model attached to the bridge: full batches, on a CPU padded to full vectors."""
    return _record(model)[0] if model.get_input_embeddings().weight.device.type == "cpu" else BatchInvariance()


@torch.inference_mode()
def invariance_of(model: Any, cells: int) -> BatchInvariance:
    """Return the setting found by trial, for a model on a CPU that is attached to the bridge; with recurrent layers,
    whose functions need not treat rows alike, the safe one.
    """
    if stateful_layers(model.config):
        return functions_of(model)
    safe, products = _record(model)
    if not products and linear_layers_agree(model):
        any_rows = replace(safe, any_rows=True)
        for new in (1, 2):
            tried = [rows for rows in (1, 3, 8) if rows < cells and any_rows.rows(cells, rows, new) == rows]
            if _alike(model, cells, tried, new, any_rows, torch.Generator().manual_seed(0)) != tried:
                break
        else:
            return any_rows
    return replace(safe, steps=same_bits(model, cells, invariance=safe))


@torch.inference_mode()
def same_bits(
    model: Any, cells: int, tried: Sequence[int] = (1, 2, 4, 8), invariance: BatchInvariance = BatchInvariance()
) -> tuple[int, ...]:
    """Return numbers of rows below `cells` for which a pass over one token gives every row the bits of the whole
    batch.
    """
    rows, generator = [rows for rows in tried if rows < cells], torch.Generator().manual_seed(0)
    for _ in range(DRAWS):
        rows = _alike(model, cells, rows, 1, invariance, generator)
    return tuple(rows)


class _CallRecorder(TorchDispatchMode):
    """The products outside of padded linear layers, and the inexact functions, that torch runs in a pass over a token.

    in_layer: such a layer is running.
    """

    def __init__(self) -> None:
        super().__init__()
        self.in_layer = False
        self.widths: set[int] = set()
        self.products: set[str] = set()
        self.itemsize = 4

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__.removesuffix("_")
        if name in PRODUCTS and not self.in_layer and (name != "matmul" or args[0].shape[-1] > 1):
            self.products.add(name)
        if name in INEXACT:
            self.widths.add(result.numel())
            self.itemsize = min(self.itemsize, result.itemsize)
        return result


def _record(model: Any) -> tuple[BatchInvariance, set[str]]:
    """Return the setting for the functions of a pass, and its products of all rows with one matrix."""
    recorder, reader, ids = _CallRecorder(), bridge.TrialCache(), torch.zeros(1, 1, dtype=torch.long)
    if stateful_layers(model.config):  # answers begin with the state of a prompt
        bridge.logits(model, ids, FIRST - 1, reader, 1)
    hooks = [
        register(lambda *_, entered=entered: setattr(recorder, "in_layer", entered))
        for layer in model.modules()
        if isinstance(layer, PaddedLinear)
        for register, entered in ((layer.register_forward_pre_hook, True), (layer.register_forward_hook, False))
    ]
    with recorder:
        bridge.logits(model, ids, FIRST, reader, 1)
    for hook in hooks:
        hook.remove()
    vector = VECTOR_BYTES // recorder.itemsize
    return BatchInvariance(widths=tuple(sorted(recorder.widths)), vector=vector), recorder.products


def _alike(
    model: Any, cells: int, tried: Sequence[int], new: int, invariance: BatchInvariance, generator: torch.Generator
) -> list[int]:
    """Return the numbers of `tried` whose rows have the bits of a full batch in one pass over random tokens."""
    embedded, full_rows = model.get_input_embeddings().weight, invariance.rows(cells, cells, new)
    ids = torch.randint(len(embedded), (full_rows, new), generator=generator).to(embedded.device)
    batch, agreeing = _pass(model, ids, invariance.last_of(full_rows, new)), []
    for rows in tried:
        fewer = _pass(model, ids[:rows], invariance.last_of(rows, new))
        if all(torch.equal(fewer_rows, all_rows[:rows]) for fewer_rows, all_rows in zip(fewer, batch, strict=True)):
            agreeing.append(rows)
    return agreeing


def _pass(model: Any, ids: Tensor, last: int) -> tuple[Tensor, ...]:
    """Return the logits of the last token, and the queries, keys and values of the last layer."""
    reader = bridge.TrialCache()
    logits = bridge.logits(model, ids, FIRST, reader, last)
    by_layer = (reader.queries, reader.keys, reader.values)
    return (logits[:, -1], *(parts[max(parts)] for parts in by_layer if parts))
