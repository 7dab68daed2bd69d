"""The one place where transformers calls kvbench, and the only file that depends on its version (5.17 and later).

transformers lets a model's attention be replaced by a registered function (`AttentionInterface`). Ours hands queries,
keys and values of exactly the new tokens, already rotated, to the reader of the current forward pass, which travels in
a context variable: not every model class passes keyword arguments down to its attention. No mask function is registered
under our name, so every layer gets `attention_mask=None`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.attention import Rule
from kvbench.cache.recurrent import RecurrentState
from kvbench.eviction.scores.score import AttentionCall, Projection
from kvbench.models.loading.architecture import stateful_layers
from kvbench.support.errors import UserError

NAME = "kvbench"  # must not contain "sdpa", "flash" or "/": transformers chooses code paths by such substrings

OPTIONS = ("scaling", "softcap", "s_aux", "sliding_window", "is_causal", "dropout", "position_ids", "use_cache")
"""Options that models pass: the first five determine attention, the others do not matter for it."""

PROJECTIONS: dict[Projection, tuple[str, ...]] = {
    "output": ("o_proj", "out_proj", "dense", "c_proj", "wo"),
    "query": ("q_proj", "qkv_proj", "query", "wq"),
}
"""Names that model classes give the projections of their attention. `qkv_proj` begins with that of queries."""


@runtime_checkable
class Reader(Protocol):
    """The owner of the cache in a forward pass: gets the new tokens of a layer, returns their attention output.

    recurrent: the state of layers without keys after the tokens read so far; None before the first, and for models
    that have no such layers.
    """

    recurrent: RecurrentState | None

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "cells heads new head_dim"],
        keys: Float[Tensor, "cells kv_heads new head_dim"],
        values: Float[Tensor, "cells kv_heads new head_dim"],
        rule: Rule,
    ) -> Float[Tensor, "cells heads new head_dim"]:
        """Append keys and values to the cache of `layer` and let the queries attend to all of it."""
        ...


_reader: ContextVar[Reader | None] = ContextVar("kvbench_reader", default=None)
_cells: ContextVar[int] = ContextVar("kvbench_cells", default=1)
_stateful_layers: WeakKeyDictionary[Any, tuple[int, ...]] = WeakKeyDictionary()


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """The registered function. Raises ValueError for attention features that it does not support."""
    reader = _reader.get()
    assert reader is not None, "attention called outside bridge.forward"
    unknown = [
        name for name, value in options.items() if name not in OPTIONS and value is not None and value is not False
    ]
    if attention_mask is not None:
        unknown.append("attention_mask")
    if unknown or options.get("is_causal") is False:
        features = ", ".join(unknown) or "attention that is not causal"
        raise UserError(f"{type(module).__name__} asks for {features}, which is not supported")
    rule = Rule(options["scaling"], options.get("softcap"), options.get("s_aux"), options.get("sliding_window"))
    output = reader.attend(module.layer_idx, query, key, value, rule)
    return output.transpose(1, 2).contiguous(), None


def attach(model: Any) -> None:
    """Make `model` call `attention`, and run its experts on one cell at a time."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)
    model.set_attn_implementation(NAME)
    for module in experts(model):
        module.forward = _by_cell(module.forward)


def experts(model: Any) -> list[Any]:
    """The modules that run a model's experts."""
    return [module for module in model.modules() if type(module).__name__.endswith("Experts")]


@contextmanager
def attached(model: Any) -> Iterator[None]:
    """`attach` while the block runs; afterwards the model has the attention and the experts that it had."""
    if model.config._attn_implementation == NAME:
        yield
        return
    configs = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    before = [(config, config._attn_implementation) for config in configs.values()]  # a part comes after its whole
    forwards = [(part, vars(part).get("forward")) for part in experts(model)]
    try:
        attach(model)
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation = implementation
        for part, own in forwards:
            vars(part).pop("forward", None)
            if own is not None:
                part.forward = own


def forward(
    model: Any, ids: Int[Tensor, "cells new"], first: int | Sequence[int], reader: Reader
) -> Float[Tensor, "cells vocabulary"]:
    """Logits of the last of the new tokens, at positions first, first + 1, ...; `first`: for all cells, or for each."""
    return logits(model, ids, first, reader, last=1)[:, -1]


def logits(
    model: Any,
    ids: Int[Tensor, "cells new"],
    first: int | Sequence[int] | Int[Tensor, "cells"],
    reader: Reader,
    last: int,
) -> Float[Tensor, "cells last vocabulary"]:
    """`forward`, with the logits of the `last` newest tokens."""
    start = first if isinstance(first, Tensor) else torch.tensor(first).to(ids.device, non_blocking=True)
    positions = (start.view(-1, 1) + torch.arange(ids.shape[1], device=ids.device)).expand(ids.shape[0], -1)
    options: dict[str, Any] = {"use_cache": False}
    if stateful := _stateful(model):
        options = {"use_cache": True, "past_key_values": _keyless_cache(model.config, reader.recurrent, ids.shape[0])}
    reader_token, cells_token = _reader.set(reader), _cells.set(ids.shape[0])
    try:
        output = model(input_ids=ids, position_ids=positions, logits_to_keep=last, **options).logits
        if stateful:
            states = options["past_key_values"].layers
            reader.recurrent = RecurrentState({layer: states[layer] for layer in stateful}, ids.shape[0])
        return output
    finally:
        _reader.reset(reader_token)
        _cells.reset(cells_token)


def _keyless_cache(config: Any, state: RecurrentState | None, rows: int) -> Any:
    """A cache of transformers for one pass: it holds recurrent states alone and hands new keys and values on.

    A batch may be read in more or fewer rows than in the pass before; rows beyond the first ones only fill it up.
    """
    keyless = _keyless_class()(config=config)
    if state is not None:
        if state.cells != rows:
            state = state.of_cells([cell if cell < state.cells else 0 for cell in range(rows)])
        for layer, held in state.layers.items():
            keyless.layers[layer] = held
    return keyless


@cache
def _keyless_class() -> type[Any]:
    from transformers import DynamicCache

    class KeylessCache(DynamicCache):
        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
            return key_states, value_states

    return KeylessCache


def _stateful(model: Any) -> tuple[int, ...]:
    """The layers of a model with a recurrent state; looked up once, as every pass asks."""
    if model not in _stateful_layers:
        _stateful_layers[model] = stateful_layers(model.config)
    return _stateful_layers[model]


def state_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes of the recurrent states of one sequence, whatever its length: of a pass over a token by shapes alone."""
    if not (stateful := stateful_layers(config)):
        return 0
    from transformers import AutoModelForCausalLM, DynamicCache

    with torch.inference_mode(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager").eval()
        for part in experts(model):
            part.forward = lambda hidden, *_: hidden
        states = DynamicCache(config=model.config)
        model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=states, use_cache=True)
    return RecurrentState({layer: states.layers[layer] for layer in stateful}, 1).bytes_held


def frequencies(model: Any) -> list[Float[Tensor, "half"]]:
    """The tables of rotary frequencies of a model, without those from before scaling."""
    return [table for name, table in model.named_buffers() if name.endswith("inv_freq") and "original" not in name]


def projection(model: Any, layer: int, width: int, which: Projection = "output") -> Float[Tensor, "out in"]:
    """A matrix of the attention of a layer, without bias or norm; `width` = heads x head_dim.

    output: W of y = W concat_h(o_h). query: W of concat_h(q_h) = W x. Raises UserError if there is none.
    """
    for module in model.modules():
        if getattr(module, "layer_idx", None) != layer:
            continue
        for name in PROJECTIONS[which]:
            linear = getattr(module, name, None)
            weight = getattr(linear, "weight", None)
            if weight is None or not weight.is_floating_point() or weight.ndim != 2:
                continue
            matrix = weight.detach().T if type(linear).__name__ == "Conv1D" else weight.detach()
            if which == "query" and (len(matrix) == width or name == "qkv_proj"):
                return matrix[:width]
            if which == "output" and matrix.shape[1] == width:
                return matrix
    raise UserError(
        f"{type(model).__name__} has no {which} projection of width {width} in the attention of layer {layer} (looked "
        f"for {', '.join(PROJECTIONS[which])}): scores and probes that need it cannot be computed"
    )


@contextmanager
def attention_calls(model: Any, receive: Callable[[AttentionCall], None]) -> Iterator[None]:
    """Inside, `receive` gets the input of every attention layer before the layer attends."""

    def pass_on(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        hidden = named["hidden_states"] if "hidden_states" in named else next(iter(arguments), None)
        if isinstance(hidden, Tensor) and hidden.ndim == 3:
            # the module that attends is the last one of its layer to be entered
            receive(AttentionCall(model, module, hidden, named))

    modules = (module for module in model.modules() if getattr(module, "layer_idx", None) is not None)
    hooks = [module.register_forward_pre_hook(pass_on, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _by_cell(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Experts' `forward`, called with the tokens of one cell at a time: arguments have one row per token.

    Experts multiply all tokens routed to them at once. How many those are depends on the other cells of a batch, and
    the last bits of a product depend on its shape: a cell's answer would depend on which cells decode with it.
    """

    def by_cell(*arrays: Tensor, **named: Tensor) -> Tensor:
        cells = _cells.get()
        if cells == 1:
            return forward(*arrays, **named)
        assert all(len(array) % cells == 0 for array in (*arrays, *named.values())), "tokens do not divide into cells"
        by_position = [array.chunk(cells) for array in arrays]
        by_name = {name: array.chunk(cells) for name, array in named.items()}
        outputs = [
            forward(*(chunks[cell] for chunks in by_position), **{name: by_name[name][cell] for name in named})
            for cell in range(cells)
        ]
        return torch.cat(outputs)

    return by_cell
