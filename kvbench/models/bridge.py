"""The one place where transformers calls kvbench, and the only file that depends on its version (5.17 and later).

transformers lets a model's attention be replaced by a registered function (`AttentionInterface`). Ours hands queries,
keys and values of exactly the new tokens, already rotated, to the `AttentionCache` of the current forward pass, which
travels in a context variable: not every model class passes keyword arguments down to its attention. No mask function is
registered under our name, so every layer gets `attention_mask=None`.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kvbench.cache.attention import AttentionParams
from kvbench.cache.recurrent import RecurrentState
from kvbench.eviction.scores.score import AttentionCall, Projection
from kvbench.models.loading.architecture import stateful_layers
from kvbench.support.errors import UserError

NAME = "kvbench"  # must not contain "sdpa", "flash" or "/": transformers chooses code paths by such substrings

OPTIONS = (
    *("scaling", "softcap", "s_aux", "sliding_window", "is_causal", "dropout", "position_ids", "use_cache"),
    *("logits_to_keep", "head_mask", "indices"),
)
"""Options that models pass: the first five, and the last of a layer that chooses what it reads, determine attention."""

PROJECTIONS: dict[Projection, tuple[str, ...]] = {
    "output": ("o_proj", "out_proj", "dense", "c_proj", "wo", "out_lin"),
    "query": ("q_proj", "qkv_proj", "query", "wq", "q_lin"),
}
"""Names that model classes give the projections of their attention. `qkv_proj` begins with the queries."""

OWN_ATTENTION = {
    **{"big_bird": "BigBirdSelfAttention", "codegen": "CodeGenAttention", "falcon": "FalconAttention"},
    **{"git": "GitSelfAttention", "gpt_neo": "GPTNeoSelfAttention", "gpt_neox_japanese": "GPTNeoXJapaneseAttention"},
    **{"gptj": "GPTJAttention", "megatron_bert": "MegatronBertSelfAttention", "mvp": "MvpAttention"},
    **{"openai": "Attention", "rembert": "RemBertSelfAttention", "roformer": "RoFormerSelfAttention"},
    **{"trocr": "TrOCRAttention", "xglm": "XGLMAttention", "xlm": "MultiHeadAttention"},
}
"""The class that writes attention out instead of calling the interface, by the package of transformers that has it."""
SCALED = ("gpt_neo", "mvp", "trocr", "xglm", "xlm")
"""Those of these packages whose queries are scaled before they are multiplied, or not at all."""
PRODUCTS = (torch.matmul, torch.bmm, torch.baddbmm, Tensor.matmul, Tensor.__matmul__)


@runtime_checkable
class AttentionCache(Protocol):
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
        rule: AttentionParams,
    ) -> Float[Tensor, "cells heads new head_dim"]:
        """Append keys and values to the cache of `layer` and let the queries attend to all of it."""
        ...


class TrialCache:
    """The cache of a trial pass, in which every token attends to itself alone.

    By layer: queries, keys and values [cells, heads, new, head_dim], and the rule.
    """

    def __init__(self) -> None:
        self.recurrent: RecurrentState | None = None
        self.queries: dict[int, Tensor] = {}
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.rules: dict[int, AttentionParams] = {}

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, rule: AttentionParams) -> Tensor:
        self.queries[layer], self.keys[layer], self.values[layer], self.rules[layer] = queries, keys, values, rule
        return values.repeat_interleave(queries.shape[1] // values.shape[1], dim=1)


_attention_cache: ContextVar[AttentionCache | None] = ContextVar("kvbench_attention_cache", default=None)
_cells: ContextVar[int] = ContextVar("kvbench_cells", default=1)
_layer: ContextVar[int | None] = ContextVar("kvbench_layer", default=None)
_traits: WeakKeyDictionary[Any, "ModelTraits"] = WeakKeyDictionary()


def reads_alone() -> bool:
    """Return whether the pass that is running reads a prompt by itself, so that no other row can meet its rows
    later.
    """
    return getattr(_attention_cache.get(), "alone", False)


class ModelTraits(NamedTuple):
    """How a model class differs in a pass from Llama's.

    stateful: the layers with a recurrent state. counts_positions: it numbers positions itself, by the length of a
    cache: BART's relatives take no positions, RoBERTa's count them from the padding token. starts_anew: a pass over
    several tokens ignores the state before it (Mamba 1 in transformers), so that only single tokens can follow.
    """

    stateful: tuple[int, ...]
    counts_positions: bool
    starts_anew: bool


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend in one layer of a model; transformers calls this function.

    query: [cells, heads, new tokens, head_dim]; key and value: [cells, KV heads, new tokens, head_dim]. Returns the
    outputs [cells, new tokens, heads, head_dim], and None for the weights. Raises UserError for attention features
    that it does not support.
    """
    attention_cache = _attention_cache.get()
    assert attention_cache is not None, "attention called outside bridge.forward"
    unknown = [
        name for name, value in options.items() if name not in OPTIONS and value is not None and value is not False
    ]
    choice = options.get("indices")
    if attention_mask is not None and choice is None:
        unknown.append("attention_mask")
    if unknown or options.get("is_causal") is False:
        features = ", ".join(unknown) or "attention that is not causal"
        raise UserError(f"{type(module).__name__} asks for {features}, which is not supported")
    rule = AttentionParams(
        options["scaling"], options.get("softcap"), options.get("s_aux"), options.get("sliding_window"), choice
    )

    def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        queries, keys, values = (queries, keys, values) if choice is None else choice.joined(queries, keys, values)
        return attention_cache.attend(layer, queries, keys, values, rule)

    layer = module.layer_idx if (index := _layer.get()) is None else index
    if query.ndim == 3:  # some classes have the heads of all cells in one dimension
        query, key = query.unflatten(0, (_cells.get(), -1)), key.unflatten(0, (_cells.get(), -1))
    value = value.unflatten(0, (_cells.get(), -1)) if value.ndim == 3 else value
    if hasattr(module, "expand_kv"):
        output = _attend_to_latents(module, query, key, value, attend)
    else:
        output = attend(query, key, value)
    return output.transpose(1, 2).contiguous(), None


def _attend_to_latents(
    module: Any, query: Tensor, latent: Tensor, rotated: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """Attention of a layer that caches one latent per token for all heads (MLA of DeepSeek-V2, section 2.1).

    The matrices that would expand latents to keys and values multiply queries and outputs instead, so that the cache
    sees one head of keys, which are the values too: the rotated numbers first, then the latent.
    """
    heads, rank, plain = query.shape[1], latent.shape[-1], module.qk_nope_head_dim
    expand = module.kv_b_proj.weight.view(heads, -1, rank)
    query = torch.cat((query[..., plain:], query[..., :plain] @ expand[:, :plain]), dim=-1)
    keys = torch.cat((rotated, latent), dim=-1)
    output = attend(query, keys, keys)
    return output[..., -rank:] @ expand[:, plain:].mT


def attach(model: Any) -> None:
    """Make `model` call `attention`, which gets latents as they are, and run its experts on one cell at a time."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)
    if own_attention(model):  # transformers would refuse; the name keeps it from making masks
        for config in configs(model):
            config._attn_implementation = NAME
    else:
        model.set_attn_implementation(NAME)
    for module, name, value in replaced(model):
        setattr(module, name, value)


def experts(model: Any) -> list[Any]:
    """Return the modules that run a model's experts."""
    return [module for module in model.modules() if type(module).__name__.endswith("Experts")]


def replaced(model: Any) -> list[tuple[Any, str, Any]]:
    """Return the attributes that `attach` replaces, and what by."""
    writing_out = own_attention(model)
    return [
        *((module, "forward", _by_cell(module.forward)) for module in experts(model)),
        *((module, "expand_kv", _latents) for module in model.modules() if hasattr(module, "expand_kv")),
        *((module, "forward", _with_attention(module)) for module in writing_out),
        *((module, "layer_idx", _layer_of(module, position)) for position, module in enumerate(writing_out)),
    ]


def own_attention(model: Any) -> list[Any]:
    """Return the modules of `model` that write attention out, in the order of its layers."""
    return [module for module in model.modules() if type(module).__name__ == OWN_ATTENTION.get(_package(module))]


def _package(module: Any) -> str:
    return type(module).__module__.rpartition(".")[0].rpartition(".")[2]


def _layer_of(module: Any, position: int) -> int:
    """Return the layer of a module of `own_attention`; `position`: its place there."""
    numbers = (getattr(module, name, None) for name in ("layer_idx", "layer_id"))
    return next((number for number in numbers if number is not None), position)


def _with_attention(module: Any) -> Callable[..., Any]:
    """`module.forward` with `attention` in the place of its own."""
    forward = module.forward

    def attending(*arrays: Any, **named: Any) -> Any:
        if _package(module) == "falcon":  # adds its mask without asking whether there is one
            named["attention_mask"] = torch.zeros((), device=arrays[0].device)
        with _Products(module):
            return forward(*arrays, **named)

    return attending


class _Products(TorchFunctionMode):
    """Replaces the two products of a module that multiplies queries by keys, masks, takes the softmax and multiplies by
    values: the first product is zeros, the second is what `attention` makes of queries, keys and values.

    Masks in between are without effect, and any other step there would show in the check of a loaded model.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        self.pair: tuple[Tensor, Tensor] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = args[1:3] if func is torch.baddbmm else args
        if func not in PRODUCTS or operands[1].ndim < 3:  # weights have two dimensions
            return func(*args, **(kwargs or {}))
        left, right = operands
        if self.pair is None:
            self.pair = left, right.mT
            return left.new_zeros(*left.shape[:-1], right.shape[-1])
        queries, keys = (rows.to(right.dtype) for rows in self.pair)  # some are widened to float32 for the product
        module = self.module
        window = module.config.window_size if getattr(module, "attention_type", None) == "local" else None
        scaling = 1.0 if _package(module) in SCALED else queries.shape[-1] ** -0.5
        output, _ = attention(module, queries, keys, right, None, scaling=scaling, sliding_window=window)
        return output.transpose(1, 2).reshape(*left.shape[:-1], -1)


def configs(model: Any) -> list[Any]:
    """Return the configurations of a model and its parts; a part comes after its whole."""
    return list({id(part.config): part.config for part in model.modules() if hasattr(part, "config")}.values())


def _latents(latent: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values of a layer that caches latents, for `attention`: the latents, not expanded."""
    return latent, rotated


@contextmanager
def attached(model: Any) -> Iterator[None]:
    """`attach` while the block runs; afterwards the model has the attention and the attributes that it had."""
    if model.config._attn_implementation == NAME:
        yield
        return
    before = [(config, config._attn_implementation) for config in configs(model)]
    attributes = [(part, name, vars(part).get(name)) for part, name, _ in replaced(model)]
    try:
        attach(model)
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation = implementation
        for part, name, attribute in attributes:
            vars(part).pop(name, None)
            if attribute is not None:
                setattr(part, name, attribute)


def forward(
    model: Any, ids: Int[Tensor, "cells new"], first: int | Sequence[int], attention_cache: AttentionCache
) -> Float[Tensor, "cells vocabulary"]:
    """Logits of the last of the new tokens, at positions first, first + 1, ...; `first`: for all cells, or for each."""
    return logits(model, ids, first, attention_cache, last=1)[:, -1]


def logits(
    model: Any,
    ids: Int[Tensor, "cells new"],
    first: int | Sequence[int] | Int[Tensor, "cells"],
    attention_cache: AttentionCache,
    last: int,
) -> Float[Tensor, "cells last vocabulary"]:
    """`forward`, with the logits of the `last` newest tokens."""
    start = first if isinstance(first, Tensor) else torch.tensor(first).to(ids.device, non_blocking=True)
    positions = (start.view(-1, 1) + torch.arange(ids.shape[1], device=ids.device)).expand(ids.shape[0], -1)
    stateful, counts, starts_anew = traits(model)
    if starts_anew and attention_cache.recurrent is not None and ids.shape[1] > 1:
        raise UserError(
            f"{type(model).__name__} of transformers starts its recurrent layers anew with each pass over several "
            "tokens: after the prompt, which is read in one pass, only single tokens can be read"
        )
    options: dict[str, Any] = {"use_cache": False} if counts else {"use_cache": False, "position_ids": positions}
    if stateful or counts:
        tokens = int(start.view(-1)[0]) if counts else 0
        cache = _keyless_cache(model.config, attention_cache.recurrent, ids.shape[0], tokens)
        options |= {"use_cache": True, "past_key_values": cache}
    cache_token = _attention_cache.set(attention_cache)
    cells_token, layer_token = _cells.set(ids.shape[0]), _layer.set(None)
    try:
        output = model(input_ids=ids, logits_to_keep=last, **options).logits[:, -last:]
        if stateful:
            states = options["past_key_values"].layers
            attention_cache.recurrent = RecurrentState({layer: states[layer] for layer in stateful}, ids.shape[0])
        return output
    finally:
        _attention_cache.reset(cache_token)
        _cells.reset(cells_token)
        _layer.reset(layer_token)


def _keyless_cache(config: Any, state: RecurrentState | None, rows: int, tokens: int) -> Any:
    """Return a cache of transformers for one pass after `tokens`: it holds recurrent states alone and hands new keys
    on.

    A batch may be read in more or fewer rows than in the pass before; rows beyond the first ones only fill it up.
    """
    keyless = _keyless_class()(config=config)
    keyless.tokens = tokens
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
        tokens = 0

        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **options: Any
        ) -> tuple[Tensor, Tensor]:
            _layer.set(layer_idx)  # layers that share one attention module differ in it alone (Zamba)
            return key_states, value_states

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return self.tokens

    return KeylessCache


def traits(model: Any) -> ModelTraits:
    """Return the traits of a model; looked up once, as every pass asks."""
    if model not in _traits:
        takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        shifts = any(hasattr(module, "create_position_ids_from_input_ids") for module in model.modules())
        starts_anew = model.config.model_type in ("jamba", "zamba")
        _traits[model] = ModelTraits(stateful_layers(model.config), not takes_positions or shifts, starts_anew)
    return _traits[model]


def state_bytes(config: Any, dtype: torch.dtype) -> int:
    """Return bytes of the recurrent states of one sequence, whatever its length: of a pass over a token by shapes
    alone.
    """
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
    """Return the tables of rotary frequencies of a model, without those from before scaling."""
    return [table for name, table in model.named_buffers() if name.endswith("inv_freq") and "original" not in name]


def projection(model: Any, layer: int, width: int, which: Projection = "output") -> Float[Tensor, "out in"]:
    """Return a matrix of the attention of a layer, without bias or norm; `width` = heads x head_dim.

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
        f"{type(model).__name__} has no {which} projection of width {width} in the attention of layer {layer} "
        f"(looked for {', '.join(PROJECTIONS[which])}): choose a score or probe that does not need it"
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
