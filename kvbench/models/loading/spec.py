"""The model of a cell as settings, and the hash of its files. Neither weights nor torch are loaded here."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from kvbench.cache.kernels.choice import Kernels, check_kernels_exist
from kvbench.models.loading.model_file import is_model_file, reader_of
from kvbench.support.annotations import Help, Range, check_ranges
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.named import named
from kvbench.support.paths import assets, home
from kvbench.support.quantity import shortened
from kvbench.support.whole_file import check_size, sha256_of

Dtype = Literal["auto", "float64", "float32", "bfloat16", "float16"]
"""Type of weights and cache; `auto` is the one that the weights are stored in, but for half precision on a CPU where a
product in float32 is faster."""
ATTENTIONS = ("sdpa", "eager")
"""Attention of the prefill, see `load.prompt_attention`; members of the group `attention` bring more."""
CpuProducts = Literal["auto", "onednn", "torch", "mixed"]
"""Products of a float32 model on a CPU, see `kvbench.models.linear_layers`; `auto`: the fastest, by timing."""
Chat = Literal["auto", "never", "required"]
"""Whether prompts use the tokenizer's chat template: if there is one, never, or always."""

THINKING = "enable_thinking"
"""The variable of chat templates that says whether a model may think; kvpress and KVzip turn it off."""

TOKENIZER = (
    *("tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
    *("*.jinja", "additional_chat_templates/*.jinja"),
)
ADAPTER = "adapter_config.json"
"""The file that marks a folder as a PEFT adapter, for which transformers would load another model."""
WEIGHT_FILES = "*.safetensors"
"""The files that may have any size."""
HASHED = ("config.json", "generation_config.json", *TOKENIZER, WEIGHT_FILES, "*.safetensors.index.json")
"""The files that answers depend on; weights are read as safetensors only."""
LARGE = 2**24
"""Size in bytes from which the hash of a file is cached: a gigabyte takes a second or more to read."""
MOST_THREADS, MOST_CELLS, MOST_LAYERS = 1024, 4096, 10_000
"""More threads than a machine can start end the process; a decode batch is padded to all of its cells; each layer of a
shape takes time and memory before anything is read."""
WEIGHTS = re.compile(r"\.safetensors(\.index\.json)?$")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
"""Weights as pickles: reading one runs the code in it."""


@dataclass(frozen=True)
class Shape:
    """A model by its dimensions: `config` holds settings of transformers' configuration class for `model_type`.

    Weights are random, drawn from `seed` as that model class initialises itself.
    """

    model_type: str
    config: dict[str, Any]
    seed: int = 0

    def __post_init__(self) -> None:
        layers = self.config.get("num_hidden_layers", 1)
        if not isinstance(layers, int) or not 1 <= layers <= MOST_LAYERS:
            raise UserError(f"model.shape.config.num_hidden_layers={layers}: allowed: 1 to {MOST_LAYERS}")

    def __hash__(self) -> int:
        return hash(json.dumps([self.model_type, self.config, self.seed], sort_keys=True))


@dataclass(frozen=True)
class ModelSpec:
    """The model settings of a cell: `path` is a folder or a hub id, `shape` the dimensions of a random model; with
    neither it is the embedded reference model. In names of cells `kernels=None` counts as `torch`. The embedded
    weights, stored in bfloat16, are computed with in float32.

    Raises UserError for values outside the allowed set.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("shape",)
    backend: ClassVar[str] = "kvbench.run.local:Local"
    """Where its answers come from, a `kvbench.run.procedure.Backend`, as module:class."""
    runs_here: ClassVar[bool] = True
    """Whether its weights are loaded, and its caches evicted from, by this process."""
    holder: ClassVar[Any] = None
    """What holds the pairs of all its cells, a `Holder`; None: what each cell names."""
    is_pulled: ClassVar[bool] = False
    """Whether `kvbench data pull` wrote its folder."""
    left_out: ClassVar[tuple[str, ...]] = (
        *("name", "path", "revision", "template_kwargs"),
        *("threads", "max_batch", "device", "device_map", "cuda_graph", "products"),
    )
    """Fields that do not name a cell by themselves: the hash of the files does, and arguments of a chat template that
    is used."""

    name: str
    path: Annotated[
        str | None,
        Help("a folder with config.json, tokenizer and safetensors, or a name on the hub; null: the embedded weights"),
    ] = None
    revision: Annotated[str | None, Help("of a model of the hub: a commit or a tag")] = None
    dtype: Annotated[Dtype, Help("auto: as stored in the weights; float32, bfloat16, float16")] = "auto"
    attention: Annotated[
        str, Help("attention during prefill: sdpa, eager (written out), or of a GPU, see kvbench list attentions")
    ] = "sdpa"
    kernels: Annotated[
        Kernels | None,
        Help("torch, or an extra's, as kvbench doctor lists; null: an extra's on a GPU where it runs, else torch"),
    ] = None
    chat: Annotated[
        Chat, Help("a chat template is used when the tokenizer has one (auto), never, or always (required)")
    ] = "auto"
    system: Annotated[str | None, Help("the text of a system turn, for chat templates that have one")] = None
    template_kwargs: Annotated[
        dict[str, Any] | Literal["auto"],
        Help("of the chat template; auto: {enable_thinking:false} where it has that, as kvpress and KVzip"),
    ] = field(default="auto", hash=False)
    max_length: Annotated[
        int | None, Help("tokens of prompt and answer; null: the limit of the model's configuration")
    ] = None
    threads: Annotated[int | None, Help("CPU threads; null: torch's default"), Range(1, MOST_THREADS)] = None
    max_batch: Annotated[int, Help("cells that decode together"), Range(1, MOST_CELLS)] = 24
    device: Annotated[str | None, Help("cpu, cuda or cuda:1; null: the first GPU, or the CPU if there is none")] = None
    device_map: Annotated[Literal["auto"] | None, Help("auto: layers spread over all GPUs")] = None
    cuda_graph: Annotated[
        Literal["auto", "never"], Help("answers are decoded by a CUDA graph if possible; never: without one")
    ] = "auto"
    products: Annotated[
        CpuProducts,
        Help("of a float32 model on a CPU: onednn, torch or mixed (torch for prompts); auto: the fastest, by timing"),
    ] = "auto"
    shape: Shape | None = None

    def __post_init__(self) -> None:
        embedded = "reference" if self.shape is None and not self.is_pulled else self.name
        if self.path is not None and self.name == embedded:
            raise UserError(
                f"model.path={self.path}: model={embedded} has its own weights; use model=hf model.path={self.path}"
            )
        if self.path is None and self.name != embedded:
            raise UserError(f"model.path is missing: add model.path=FOLDER_OR_HUB_ID to model={self.name}")
        if self.max_length is not None and self.max_length < 1:
            raise UserError(
                f"model.max_length={self.max_length}: allowed: 1 token or more, or null for the model's own limit"
            )
        if self.revision is not None and self.path is None:
            raise UserError(
                f"model.revision={self.revision}: model={self.name} has no revisions; set model.path=HUB_ID too"
            )
        check_ranges(self, "model")
        if self.attention not in ATTENTIONS and self.attention not in (brought := named("attention")):
            raise UserError(f"model.attention={self.attention}: allowed: {', '.join((*ATTENTIONS, *brought))}")
        check_kernels_exist(self.kernels)
        if self.device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise UserError(
                f"model.device={self.device}: allowed: cpu, cuda, cuda:1, or null for a GPU if there is one"
            )
        if self.device is not None and self.device_map is not None:
            raise UserError(f"model.device={self.device} and model.device_map={self.device_map}: give only one of them")
        if self.is_embedded and self.dtype == "auto":
            object.__setattr__(self, "dtype", "float32")

    def adapted(self, config: Any) -> Any:
        """Return the configuration that kvbench reads the model by. Default: its own."""
        return config

    def adapt(self, engine: Any) -> None:
        """Change an engine whose model has kvbench's attention. Default: nothing."""

    def in_memory(self) -> Any:
        """Return a model of transformers to run in place of its files. Default: None."""

    def described(self) -> dict[str, Any]:
        """Return what names it in cells: the hash of its files rather than its path, so that a folder that moves keeps
        its rows. Raises as `folder` does.

        Arguments of a chat template are named where there are some.
        """
        description = {name: value for name, value in asdict(self).items() if name not in self.left_out}
        description["kernels"] = self.kernels or "torch"  # the default may run others on a GPU, as the environment says
        if arguments := template_arguments(self):
            description["template_kwargs"] = arguments
        return description | {"sha256": self.sha256(), "chat_template": has_chat_template(self.folder())}

    @property
    def is_real(self) -> bool:
        """Whether it is neither the embedded model nor a random one."""
        return self.path is not None or self.is_pulled

    @property
    def is_embedded(self) -> bool:
        """Whether its weights are part of kvbench."""
        return not self.is_real and self.shape is None

    @property
    def label(self) -> str:
        """The value of the `model` column."""
        return self.name if self.path is None else self.path.rstrip("/")

    def sha256(self) -> str:
        """Return a hash of the files that answers depend on (of a shape: its tokenizer's). Raises as `folder` does."""
        if is_model_file(self.path):
            return file_hash(self.folder())
        return content_hash(self.folder(), HASHED if self.shape is None else TOKENIZER)

    def folder(self) -> Path:
        """Return the folder with config, weights and tokenizer, fetched from the hub when `path` is a hub id, or the
        file that holds them.

        Of a shape, the embedded model's, whose tokenizer it has. Raises MissingFile if anything is missing.
        """
        if self.path is None:
            return _checked(assets() / "reference", "null, the embedded model")
        local = Path(self.path).expanduser()
        if is_model_file(self.path):
            if not local.is_file():
                raise MissingFile(f"model.path={self.path}: no such file; give another file, a folder or a hub id")
            return local
        if local.is_dir():
            return _checked(local, self.path)
        if local.is_absolute() or self.path.startswith((".", "~")) or self.path.count("/") != 1:
            raise MissingFile(f"model.path={self.path}: no such folder; give a model folder or a hub id")
        return _checked(_fetch(self.path, self.revision), self.path)


@lru_cache
def describe_model(spec: ModelSpec) -> dict[str, Any]:
    """Return `ModelSpec.described` of a model as it was when it was asked for first."""
    return spec.described()


def check_model_unchanged(spec: ModelSpec, named: str) -> None:
    """Raise MissingFile if a model that was just read no longer has the hash that its cells are named by."""
    if spec.sha256() != named:
        raise MissingFile(
            f"a file of the model {spec.label} has changed while it was read: rows of what is in it now belong to "
            "other cells; run the same command again"
        )


def has_chat_template(folder: Path) -> bool:
    """Return whether the tokenizer of a model folder, or of a model file, has a chat template."""
    return bool(_template(folder))


def template_arguments(spec: ModelSpec) -> dict[str, Any]:
    """Return the arguments that the model's chat template gets; none if it is not used.

    `auto`: `enable_thinking=false` where the template has the variable, as kvpress (pipeline.py) and KVzip
    (model/template.py, for Qwen3) do.
    """
    if spec.chat == "never":
        return {}
    if spec.template_kwargs != "auto":
        return spec.template_kwargs
    return {THINKING: False} if THINKING in _template(spec.folder()) else {}


def _template(folder: Path) -> str:
    """Return the text of all chat templates of a tokenizer; empty without one."""
    if folder.is_file():
        return reader_of(folder).template(folder)
    inside = read_json(folder / "tokenizer_config.json").get("chat_template")
    files = (path.read_text("utf-8", "replace") for path in sorted(folder.glob("chat_template*.jinja")))
    return "\n".join((json.dumps(inside) if inside else "", *files)).strip()


@lru_cache
def quantization(spec: ModelSpec) -> str | None:
    """Return how quantised weights are stored: `Q4_1`, `fp8`, `nf4`, `mxfp4`; None for plain numbers."""
    if spec.shape is not None:
        return None
    folder = spec.folder()
    if folder.is_file():
        return reader_of(folder).quantization(folder)
    config = read_json(folder / "config.json")
    settings = quantization_settings(config)
    if not settings:
        return config.get("stored_as")  # by `kvbench data pull`, which writes plain numbers
    if settings.get("load_in_4bit"):
        return settings.get("bnb_4bit_quant_type", "fp4")
    if settings.get("load_in_8bit"):
        return "int8"
    method, bits = settings.get("quant_method", "quantized"), settings.get("bits")
    return f"{method} {bits} bits" if bits else method


def quantization_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of quantised weights in `config.json`, of the model or its text part; empty for none."""
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict)]
    settings = [part["quantization_config"] for part in parts if part.get("quantization_config")]
    return settings[0] if settings and isinstance(settings[0], dict) else {}


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file of a model; empty if there is none or it is broken: the loader says so."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _checked(folder: Path, path: str) -> Path:
    """Return the folder, if all that a model is made of is in it; nothing but names is read of the weights."""
    where = f"model.path={path}: the folder"
    kinds = {
        "config.json": ("config.json",),
        "*.safetensors": ("*.safetensors",),
        "tokenizer": ("tokenizer.json", "tokenizer.model", "vocab.json"),
    }
    missing = [kind for kind, names in kinds.items() if not any(any(folder.glob(name)) for name in names)]
    if missing:
        pickles = sorted(file.name for name in PICKLES for file in folder.glob(name))
        advice = (
            f"; {', '.join(pickles[:3])}: kvbench reads no pickles, since they run code: save the model as "
            "safetensors (save_pretrained of transformers does)"
        )
        fix = advice if pickles and "*.safetensors" in missing else ""
        raise MissingFile(f"{where} holds no {' and no '.join(missing)}{fix}")
    if (folder / ADAPTER).is_file():
        raise MissingFile(
            f"{where} holds {ADAPTER}: kvbench does not load adapters; merge it into its model (merge_and_unload of "
            "peft) and save the result"
        )
    for file in (file for name in HASHED if name != WEIGHT_FILES for file in folder.glob(name)):
        check_size(file)
    for source, weight_files in _named_weights(folder, where).items():
        if outside := [
            file for file in weight_files if Path(file).name != file or "\\" in file or not WEIGHTS.search(file)
        ]:
            raise MissingFile(
                f"{where} holds {source}, which names {shortened(outside, 3)}; allowed: safetensors files in the "
                "same folder; put the weights there (save_pretrained of transformers does)"
            )
        if absent := [file for file in weight_files if not (folder / file).is_file()]:
            raise MissingFile(
                f"{where} holds {source}, but not {shortened(absent, 3)}, which it names: download the model again"
            )
    return folder


def _named_weights(folder: Path, where: str) -> dict[str, list[str]]:
    """Return the files of weights that a configuration or an index names, by the name of that file."""
    weight_files: dict[str, list[str]] = {}
    for index in sorted(folder.glob("*.safetensors.index.json")):
        try:
            weight_files[index.name] = sorted(
                {str(name) for name in json.loads(index.read_text("utf-8"))["weight_map"].values()}
            )
        except (OSError, ValueError, RecursionError, TypeError, AttributeError, LookupError) as error:
            raise MissingFile(
                f"{where} holds {index.name}, which is not an index of weights: download it again"
            ) from error
    if weights := read_json(folder / "config.json").get("transformers_weights"):
        weight_files["config.json"] = [str(weights)]
    return weight_files


def _fetch(hub_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    unreachable = (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError)
    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=list(HASHED)))
    except unreachable as error:
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise MissingFile(
            f"model.path={hub_id}: no such folder, and no download from the hub ({type(error).__name__}: {reason})"
        ) from error


def content_hash(folder: Path, patterns: Iterable[str]) -> str:
    """SHA-256 over names and contents of the files of a folder that match one of the patterns."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        digest.update(f"{path.relative_to(folder).as_posix()} {file_hash(path)}\n".encode())
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes; the hash of a large file is remembered by path, size, times of change and inode.

    Without a writable folder for it the file is hashed every time.
    """
    state = _state(path := path.resolve())
    if path.stat().st_size < LARGE:
        return _hash(path, state)
    record = home() / "hashes" / hashlib.sha256(state.encode()).hexdigest()
    with suppress(OSError):
        if len(remembered := record.read_text()) == 64:
            return remembered
    digest = _hash(path, state)
    with suppress(OSError):
        if _state(path) == state:  # not written to meanwhile
            record.parent.mkdir(parents=True, exist_ok=True)
            temporary = record.with_suffix(f".{os.getpid()}")
            temporary.write_text(digest)
            temporary.replace(record)  # another process may read at the same moment
    return digest


def _state(path: Path) -> str:
    """Return a key that changes with the file; a copy that keeps the modification time has another inode."""
    stat = path.stat()
    return f"{path} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"


@lru_cache
def _hash(path: Path, state: str) -> str:
    return sha256_of(path)
