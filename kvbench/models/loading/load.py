"""From a `ModelSpec` to an engine and its tokenizer, in two steps: all cheap checks run before weights are loaded."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from kvbench.cache.attention import explicit, fused
from kvbench.cache.kernels.choice import check_installed, check_softcap, chosen_kernels
from kvbench.models import bridge
from kvbench.models.batch_invariance import BatchInvariance, invariance_of
from kvbench.models.decode.decoding import decoding_of
from kvbench.models.engine import Engine
from kvbench.models.linear_layers import Products, chosen_products, use_products
from kvbench.models.loading.architecture import (
    cache_heads,
    check_architecture,
    check_code,
    check_sizes,
    sliding_windows,
    text_config,
)
from kvbench.models.loading.check import check_model, eager_logits
from kvbench.models.loading.model_file import reader_of
from kvbench.models.loading.process import default_threads, keep_freed_memory, make_deterministic
from kvbench.models.loading.spec import ModelSpec, template_arguments
from kvbench.models.loading.tokenizer_file import check_growth, check_reading
from kvbench.models.loading.weights import LOCAL, from_folder, random, shape_config
from kvbench.models.prefill import Attend
from kvbench.models.prompts.chat import after_answer, check_chat, check_ends, give_arguments, uses_template
from kvbench.models.rope import length_rope
from kvbench.models.wide_head import widen
from kvbench.support.errors import MissingFile, UserError, is_panic
from kvbench.support.named import code_of, member
from kvbench.support.shared_gpus import processes_of_gpu


@dataclass(frozen=True)
class ModelInfo:
    """A model without its weights: its folder, configuration, tokenizer, device and longest sequence."""

    spec: ModelSpec
    folder: Path
    config: Any
    tokenizer: Any
    device: torch.device

    @property
    def max_length(self) -> int:
        """Most tokens of prompt and answer together."""
        return self.spec.max_length or text_config(self.config).max_position_embeddings

    @property
    def heads(self) -> tuple[int, int]:
        """Layers, and KV heads of each."""
        return len(sliding_windows(self.config)), cache_heads(self.config)[0]


@dataclass(frozen=True)
class LoadedModel:
    """An engine with its tokenizer; `stop`: the tokens that end an answer. `device`: the hardware and numerics on which
    the last bits of an answer may depend. notes: choices of this machine that a user should know of.
    """

    engine: Engine
    tokenizer: Any
    stop: frozenset[int]
    max_length: int
    device: dict[str, Any]
    notes: tuple[str, ...] = ()


def model_info(spec: ModelSpec) -> ModelInfo:
    """Read configuration and tokenizer, and check everything that can be checked without weights.

    Raises MissingFile for missing or broken files, UserError for models, devices and packages that cannot be used.
    """
    device = choose_device(spec)
    prompt_attention(spec.attention)
    check_installed(spec.kernels or "torch")
    folder = spec.folder()
    check_code(folder, spec.path)
    where = f"model={spec.name}" if spec.path is None else f"model.path={spec.path}"
    if spec.shape is None:
        check_sizes(folder, where)
    config = config_of(spec)
    check_softcap(spec.kernels or "torch", getattr(text_config(config), "attn_logit_softcapping", None))
    length_rope(config)
    if spec.max_length is None and getattr(text_config(config), "max_position_embeddings", None) is None:
        raise UserError(f"{where}: its configuration has no longest sequence; set model.max_length=TOKENS")
    tokenizer = _from(spec, lambda: _tokenizer(folder))
    if spec.shape is not None and len(tokenizer) > text_config(config).vocab_size:
        least = f"the {len(tokenizer)} tokens of the embedded tokenizer, whose ids are used as they are"
        raise UserError(f"model.shape.config.vocab_size={text_config(config).vocab_size} is less than {least}")
    give_arguments(tokenizer, template_arguments(spec))
    if spec.is_real and uses_template(tokenizer, spec.chat):
        check_ends(tokenizer, spec.system, where)
    check_chat(tokenizer, spec.chat, spec.system)
    return ModelInfo(spec, folder, config, tokenizer, device)


def config_of(spec: ModelSpec) -> Any:
    """Return the configuration of a model. Raises as `read_config`, and UserError if kvbench cannot read the model."""
    where = f"model={spec.name}" if spec.path is None else f"model.path={spec.path}"
    config = shape_config(spec.shape) if spec.shape else _from(spec, lambda: read_config(spec.folder()))
    check_architecture(config := spec.adapted(config), where)
    return config


def read_config(folder: Path) -> Any:
    """Return the configuration in a folder or model file."""
    from transformers import AutoConfig

    if folder.is_file():
        return reader_of(folder).read_config(folder)
    return AutoConfig.from_pretrained(folder, **LOCAL)


def _tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder or model file, which has read a text: some faults appear only then."""
    from transformers import AutoTokenizer

    check_growth(folder)
    if folder.is_file():
        tokenizer = reader_of(folder).read_tokenizer(folder)
    else:
        tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
    tokenizer("One text, 2 numbers.\n")
    check_reading(tokenizer, folder)
    return tokenizer


def _from(spec: ModelSpec, read: Callable[[], Any]) -> Any:
    """Call a reader of the model's files; any exception is an error in the files, not a bug."""
    try:
        return read()
    except (MissingFile, UserError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        reason = str(error).strip().split("\n")[0]
        where = f"model={spec.name}" if spec.is_pulled else f"model.path={spec.path or 'null, the embedded model'}"
        raise MissingFile(f"{where}: cannot be loaded: {type(error).__name__}: {reason}") from error


def load(info: ModelInfo, recorded: Products | None = None) -> LoadedModel:
    """Load, make or share the weights, attach kvbench's attention, and check the result on a few tokens.

    recorded: the products of earlier rows, which `model.products=auto` takes again. Raises MissingFile for missing or
    broken weights, UserError if the logits differ from transformers'.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    spec, device, threads = info.spec, info.device, default_threads()
    torch.set_num_threads(spec.threads or threads)
    switches, sharing = make_deterministic(), processes_of_gpu()
    if device.type == "cuda" and sharing > 1:  # what one of them takes too much of runs out for itself alone
        torch.cuda.set_per_process_memory_fraction(1 / sharing, device)
    dtype = spec.dtype if spec.dtype == "auto" else getattr(torch, spec.dtype)
    model = spec.in_memory() or make_model(info, dtype)
    model.eval()
    notes = to_faster_dtype(model, spec, device)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UserError(f"model.device_map={spec.device_map}: the GPUs cannot hold all layers: use more or larger ones")
    check_attention(spec.attention, device, model.dtype)
    kernels = chosen_kernels(spec.kernels, device, model.dtype, cache_heads(model.config)[1])
    engine = Engine(
        model,
        max_batch=spec.max_batch,
        max_length=info.max_length,
        attend=prompt_attention(spec.attention),
        kernels=kernels,
        rope=length_rope(info.config),
    )
    try:
        products, wide = _attach(engine, spec, recorded)
    except ValueError as error:
        raise UserError(f"{spec.label}: {error}") from error
    if device.type == "cpu":
        suit_cpu(engine)
    stop = end_tokens(model, spec.label)
    if spec.is_real and uses_template(info.tokenizer, spec.chat):
        notes += ends_unseen(info.tokenizer, spec.system, stop, spec.label)
    invariance = engine.batch_invariance or BatchInvariance()
    return LoadedModel(
        engine=engine,
        tokenizer=info.tokenizer,
        stop=stop,
        max_length=info.max_length,
        device={
            **_hardware(device, sharing),
            "dtype": str(model.dtype).removeprefix("torch."),
            "attention": spec.attention,
            "kernels": kernels,
            "cuda_graph": spec.cuda_graph,
            "prefill_chunk": engine.prefill_chunk,
            "max_batch": engine.max_batch,
            "narrow": "any" if invariance.any_rows else list(invariance.steps),
            **({} if products is None else {"products": products}),
            "float32_logits": wide or model.dtype.itemsize > 2,
            **switches,
        },
        notes=notes,
    )


def _attach(engine: Engine, spec: ModelSpec, recorded: Products | None) -> tuple[Products | None, bool]:
    """Give the model kvbench's attention and products, and check its logits on a few tokens against transformers'.

    Returns the products, and whether the logits were made float32. Raises ValueError if the logits differ.
    """
    model = engine.model
    expected = eager_logits(model)
    wide = widen(model)
    if (products := chosen_products(model, spec.products, recorded)) is not None:
        use_products(model, products)
    bridge.attach(model)
    spec.adapt(engine)
    check_model(engine, expected)
    engine.decoding = decoding_of(engine, spec.cuda_graph)
    return products, wide


def _hardware(device: torch.device, sharing: int) -> dict[str, Any]:
    """Return what last bits may depend on. sharing: processes that share the GPU."""
    if device.type == "cpu":
        return {"name": f"cpu, {torch.get_num_threads()} threads"}
    name, gpus = torch.cuda.get_device_name(device), torch.cuda.device_count()
    return {"name": name, "cuda": torch.version.cuda, "gpus": gpus} | ({"processes": sharing} if sharing > 1 else {})


def make_model(info: ModelInfo, dtype: torch.dtype | str) -> Any:
    """Return the model of the files, or a random one of its shape. Raises MissingFile for files that are broken."""
    spec = info.spec
    if spec.shape is not None:
        return random(info.config, spec.shape.seed, dtype, info.device)
    return _from(spec, lambda: from_folder(spec, info.folder, info.config, dtype, info.device))


def to_faster_dtype(model: Any, spec: ModelSpec, device: torch.device) -> tuple[str, ...]:
    """Widen a model in half precision to float32 if `model.dtype=auto` and this CPU is slower in half precision.

    Returns what to tell the user.
    """
    stored, quantised = model.dtype, getattr(model, "hf_quantizer", None) is not None
    half_is_slower = member("timing", "half_is_slower")
    if spec.dtype != "auto" or device.type != "cpu" or quantised or stored.itemsize > 2:
        return ()
    if half_is_slower is None or not half_is_slower.load()(stored):
        return ()
    model.float()
    name = str(stored).removeprefix("torch.")
    return (
        f"{spec.label}: the weights are stored in {name}, but this processor multiplies faster in float32, which is "
        f"used (model.dtype=auto; model.dtype={name} keeps the stored type)",
    )


def suit_cpu(engine: Engine) -> None:
    """Determine how few rows a pass may have, and keep freed memory."""
    keep_freed_memory()
    engine.batch_invariance = invariance_of(engine.model, engine.max_batch)


def choose_device(spec: ModelSpec) -> torch.device:
    """Return the device of a model, or of its first layers. Raises UserError for a missing GPU or package."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if spec.device_map is not None and find_spec("accelerate") is None:
        raise UserError(f"model.device_map={spec.device_map} needs accelerate: pip install 'kvbench[accelerate]'")
    device = torch.device(spec.device or ("cuda" if gpus else "cpu"))
    if device.type == "cpu":
        return device
    if (device.index or 0) >= gpus:
        available = f"torch sees {gpus} GPUs" if gpus else "torch sees no GPU"
        raise UserError(f"model.device={spec.device}: {available}; use another one, or null for a GPU if there is one")
    return torch.device("cuda", device.index or 0)


def end_tokens(model: Any, where: str) -> frozenset[int]:
    """Return the tokens that end an answer, of which the tokenizer knows only one.

    Raises UserError where generation_config.json has something else than numbers of tokens. where: the model, for it.
    """
    ids = model.generation_config.eos_token_id
    ends = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if not all(isinstance(end, int) and end >= 0 for end in ends):
        raise UserError(
            f"{where}: eos_token_id of generation_config.json is {ids!r}: allowed: numbers of tokens, or null"
        )
    return frozenset(ends)


def ends_unseen(tokenizer: Any, system: str | None, stop: frozenset[int], where: str) -> tuple[str, ...]:
    """Warn the user where the chat template ends an answer with a token that does not end generation."""
    try:
        after = after_answer(tokenizer, system, "A question?")
    except UserError:  # the template rewrites earlier turns, so what ends them is not known
        return ()
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    end = next((token for token in tokenizer(after, add_special_tokens=False).input_ids if token in special), None)
    if end is None or end in stop or not after.lstrip().startswith(text := tokenizer.decode([end])):
        return ()
    known = ", ".join(repr(tokenizer.decode([token])) for token in sorted(stop)) or "none"
    return (
        f"{where}: the chat template ends a turn with {text!r}, which is not among the end tokens of "
        f"generation_config.json ({known}): answers may run to their limit; use task.stop=['{text}'], or add "
        f"{end} to its eos_token_id",
    )


def prompt_attention(name: str) -> Attend:
    """Return the function that `model.attention` names for reading prompts.

    sdpa: torch's fused attention, or `explicit` for layers that it does not support. eager: `explicit` for every layer,
    the reference. Others: what a member of the group `attention` names. Raises UserError if its package is missing.
    """
    return {"sdpa": fused, "eager": explicit}.get(name) or code_of("attention", name).attention_of(name)


def check_attention(name: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raise UserError for attention that cannot run in this dtype on this device."""
    if (brought := member("attention", name)) is not None:
        brought.load().check(name, device, dtype)
