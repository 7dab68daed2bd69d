"""KVgrad: how much of a pair reaches the model's last hidden states while the model repeats the context.

KVgrad (https://openreview.net/forum?id=cg1wTCJjjk), as `KVgradPress` of kvpress 0.5.5.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kvbench.cache.attention import AttentionParams, strongest
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import KVCache
from kvbench.eviction.scores.kvzip import KVzipPlus
from kvbench.eviction.scores.score import ContextRepetition, ScoreInputs
from kvbench.models import bridge
from kvbench.models.linear_layers import PaddedLinear
from kvbench.models.prefill import Attend, Heads, KVHeads
from kvbench.models.repeat import FrozenAttentionCache, RepeatPass
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError

PART = "\n\nRepeat the part of the previous context exactly, starting with"
SINKS = 4
"""First tokens of a prompt to which the weights of a row spread, beside its chunk and the repetition."""
SUM = "AddBackward0"
PRODUCTS = frozenset({"MmBackward0", "AddmmBackward0", "BmmBackward0", "ProductBackward"})
MOVES = frozenset(
    f"{name}Backward0"
    for name in ("View", "UnsafeView", "ReshapeAlias", "Alias", "Transpose", "Permute", "Unsqueeze", "Squeeze", "Slice")
) | {"CloneBackward0", "ToCopyBackward0"}
"""Steps of a graph that move numbers, leave some out, or round them."""

Graph = Mapping[Any, list[Any]]
"""The steps of a graph that read what a step makes."""


@dataclass(frozen=True)
class KVgrad(KVzipPlus):
    """max_i A_ij |W_o v_j| |g_i| over the rows i of the repetition of the chunk of j.

    W_o is the part of the output projection for the query head. g_i is the gradient of the sum of the squares of all
    numbers that the last layer puts out, before the last norm, at what the attention of the layer of j adds to row i.

    A row attends to the whole prompt, as in the model. A spreads its weights over the first 4 tokens of the prompt,
    which the code calls sinks, the chunk and the repetition alone.
    """

    chunk: Annotated[int, Help("tokens repeated at a time, with a backward pass; as in KVgradPress")] = 512
    name: str = "kvgrad"
    continue_prompt: Annotated[str, Help("followed by the last 8 tokens of the previous chunk, without a blank")] = PART
    head: Annotated[bool, Help("the softmax includes the first 4 tokens, as in KVgradPress")] = True

    @cached_property
    def inputs(self) -> ScoreInputs:
        repeat = super().inputs.repeat
        assert repeat is not None
        return ScoreInputs(repeat=replace(repeat, by_norm=False, by_gradient=weighed), projections=("output",))


class Product(torch.autograd.Function):
    """The product of a linear layer, whichever it is, with a gradient for the rows: oneDNN's has none of its own."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, layer: PaddedLinear) -> Tensor:
        """Multiply as the layer does outside of this pass."""
        ctx.layer = layer
        return type(layer).multiply(layer, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the rows."""
        return gradients[0] @ ctx.layer.weight, None


class GradientCache(FrozenAttentionCache):
    """A `FrozenAttentionCache` of a pass that a gradient goes back through.

    Keys and values of the cache are joined to the new ones again on the way back, a layer at a time, instead of being
    held for all layers.

    By layer: queries [heads, new, head_dim], keys [KV heads, new, head_dim] and rule of its attention, what the heads
    put out, and what its module puts out. last: the output of the last layer [1, new, hidden].
    """

    def __init__(self, cache: KVCache, max_length: int | None, attend: Attend) -> None:
        super().__init__(cache, max_length, attend, lambda *new: None)
        self.read: dict[int, tuple[Tensor, Tensor, AttentionParams]] = {}
        self.heads: dict[int, Tensor] = {}
        self.outputs: dict[int, Tensor] = {}
        self.last: Tensor | None = None

    def attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams) -> Heads:
        self.read[layer] = queries[0].detach(), keys[0].detach(), rule.within(self._max_length)
        arguments = layer, queries, keys, values, rule
        self.heads[layer] = checkpoint(super().attend, *arguments, use_reentrant=False, preserve_rng_state=False)
        return self.heads[layer]

    def keep_output(self, module: Any, arguments: Any, output: Any) -> None:
        """Keep the output of the module that has just attended: the first of its layer to be left."""
        if module.layer_idx in self.heads:
            self.outputs.setdefault(module.layer_idx, _first(output))

    def keep_last(self, module: Any, arguments: Any, output: Any) -> None:
        """Keep the output of the last layer."""
        self.last = _first(output)


def weighed(
    model: Any,
    cache: KVCache,
    part: RepeatPass,
    repeat: ContextRepetition,
    max_length: int | None,
    attend: Attend,
    kernels: Kernels,
) -> dict[int, Float[Tensor, "heads columns"]]:
    """Run one pass and its backward pass: by layer, the largest weight that a row gives each column of the chunk, times
    the norm of the row's gradient.

    Raises UserError for a model whose attention is not added as its output matrix makes it.
    """
    if bridge.traits(model).stateful:
        raise UserError(
            f"score kvgrad: {type(model).__name__} has layers with a recurrent state, which take no gradient here: "
            "use score=kvzip_plus"
        )
    layers = {layer.index: layer for layer in cache.evictable}
    with torch.inference_mode(False), torch.enable_grad(), frozen(model):
        reader = GradientCache(cache, max_length, attend)
        ids = torch.tensor([part.ids], device=model.get_input_embeddings().weight.device)
        with hooked(model, reader):
            bridge.forward(model, ids, cache.num_tokens, reader)
        assert reader.last is not None
        squares = reader.last.float().square().sum()
        check_added(model, reader, squares)
        found = torch.autograd.grad(squares, [reader.outputs[index] for index in layers])
    records, first = {}, min(SINKS, part.start) if repeat.head else 0
    for (index, layer), gradient in zip(layers.items(), found, strict=True):
        queries, new, rule = reader.read[index]
        dense, _ = layer.dense
        keys = torch.cat((dense[:, :first], dense[:, part.start : part.stop], new), dim=1)
        columns = slice(first, first + part.stop - part.start)
        divisors = gradient[0].float().norm(dim=-1).reciprocal()
        records[index] = strongest(queries, keys, columns, rule, repeat.softmax, kernels, divisors)
    return records


@contextmanager
def frozen(model: Any) -> Iterator[None]:
    """Inside, no parameter takes a gradient, so that a pass holds nothing for one, and every product has one."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    layers = [part for part in model.modules() if isinstance(part, PaddedLinear)]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        for layer in layers:
            vars(layer)["multiply"] = lambda rows, layer=layer: Product.apply(rows, layer)
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
        for layer in layers:
            vars(layer).pop("multiply", None)


@contextmanager
def hooked(model: Any, reader: GradientCache) -> Iterator[None]:
    """Inside, embeddings take a gradient and the reader gets the outputs of attention modules and of the last layer.

    The last layer ends the list of modules with attention: the last such list to be left in a pass.
    """
    modules = [part for part in model.modules() if _attends(part)]
    stacks = [part for part in model.modules() if isinstance(part, torch.nn.ModuleList)]
    stacks = [stack for stack in stacks if any(map(_attends, stack.modules()))]
    with ExitStack() as hooks:
        embeddings = model.get_input_embeddings()
        hooks.enter_context(embeddings.register_forward_hook(lambda module, arguments, output: output.requires_grad_()))
        for module in modules:
            hooks.enter_context(module.register_forward_hook(reader.keep_output))
        for stack in stacks:
            hooks.enter_context(stack[-1].register_forward_hook(reader.keep_last))
        yield


def check_added(model: Any, reader: GradientCache, result: Tensor) -> None:
    """Raise UserError for a layer whose attention is not one product of what its heads put out, added as it is.

    Norms, factors and gates would be part of a gradient at that output, and are none of the weights and values.
    """
    graph = graph_of(result)
    for index, heads in reader.heads.items():
        _, products = moved(graph, {heads.grad_fn})
        passed, sums = moved(graph, products)
        multiplied, added = ({step.name() for step in steps} for steps in (products, sums))
        whole = index in reader.outputs and reader.outputs[index].grad_fn in passed
        if len(products) != 1 or not multiplied <= PRODUCTS or added != {SUM} or not whole:
            raise UserError(
                f"score kvgrad: layer {index} of {type(model).__name__} does not add the output of its attention as "
                "the output matrix makes it: a norm, a factor or a gate stands between; use score=kvzip_plus"
            )


def graph_of(result: Tensor) -> Graph:
    """Return the graph that made a tensor."""
    readers: dict[Any, list[Any]] = defaultdict(list)
    waiting, seen = [result.grad_fn], {result.grad_fn}
    while waiting:
        step = waiting.pop()
        assert step is not None
        for source, _ in step.next_functions:
            if source is not None:
                readers[source].append(step)
                if source not in seen:
                    seen.add(source)
                    waiting.append(source)
    return readers


def moved(graph: Graph, steps: set[Any]) -> tuple[set[Any], set[Any]]:
    """Return the steps and those that only move what they make, and the first others behind them."""
    passed, others, waiting = set(steps), set[Any](), list(steps)
    while waiting:
        for reader in graph.get(waiting.pop(), ()):
            if reader.name() not in MOVES:
                others.add(reader)
            elif reader not in passed:
                passed.add(reader)
                waiting.append(reader)
    return passed, others


def _attends(module: Any) -> bool:
    return getattr(module, "layer_idx", None) is not None


def _first(output: Any) -> Tensor:
    """Return the hidden states of the output of a module."""
    return output[0] if isinstance(output, tuple) else output
