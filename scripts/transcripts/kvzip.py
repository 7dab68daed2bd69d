"""KVzip: its own loaders, `DataWrapper` and `ModelKVzip`, which writes templates out; model and cache only record."""

import json
import sys
import types
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from scripts.transcripts.stand_ins import Recorder, empty
from tests.transcripts.families import FAMILIES, tokenizer
from tests.transcripts.made_up import members
from tests.transcripts.transcript import Transcript, case, transcript

MODELS = {"chatml": "qwen2.5-7b", "qwen3": "qwen3-8b", "gemma": "gemma3-4b"}
MODELS |= {"llama3": "llama3.1-8b", "llama3_kvzip": "llama3.1-8b"}
"""Our chat templates, and the models whose template KVzip writes out."""
TEMPLATES = {"bytes": ("chatml", "qwen3"), "bytes_bos": ("gemma", "llama3", "llama3_kvzip")}
"""Those of a family; of all others Gemma's."""


class Cache:
    """`RetainCache` as the wrapper uses it; nothing is stored."""

    def __init__(self, model: Any, evict_range: tuple[int, int]) -> None:
        self.start_idx, self.end_idx = evict_range
        self.ctx_len = self.end_idx - self.start_idx
        self.score = [torch.zeros(1, self.ctx_len)]
        self.key_cache = [torch.zeros(1)]
        self._seen_tokens = 0

    def init_score(self) -> None: ...

    def slice(self, seen: int) -> None: ...

    def _mem(self) -> int:
        return 0


class Model(Recorder):
    """The model behind the wrapper."""

    name = ""
    dtype, config = torch.float32, None

    def model(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> Any:
        return types.SimpleNamespace(logits=torch.zeros(1, 2, 2))


class Rows(list):
    """A data set: rows by number, or made of columns."""

    @classmethod
    def from_dict(cls, columns: dict[str, list[Any]]) -> "Rows":
        return cls({name: column[row] for name, column in columns.items()} for row in range(len(columns["context"])))


def transcripts(checkout: Path, root: Path) -> Iterator[tuple[str, Transcript]]:
    """All questions of both contexts of every task."""
    empty("attention", "attention.kvcache", "model.quant_model", "model.load", "datasets")
    caches = {name: type(name, (Cache,), {}) for name in ("RetainCache", "EvictCache", "RetainHybridCache")}
    sys.modules["attention.kvcache"] = types.SimpleNamespace(**caches)  # type: ignore[assignment]
    quantised = {"OptimINT4KVCache": type("OptimINT4KVCache", (), {}), "LlamaForCausalLMW8A8": type("W8A8", (), {})}
    sys.modules["model.quant_model"] = types.SimpleNamespace(**quantised)  # type: ignore[assignment]
    files = {"rajpurkar/squad": "squad/train", "openai/gsm8k": "gsm8k/test"}

    def load_dataset(path: str, *_: Any, data_files: str = "", **__: Any) -> Rows:
        name = files.get(path) or data_files.replace("_", "/", 1).removesuffix(".parquet")
        return Rows(json.loads(line) for line in (root / f"{name}.jsonl").read_text("utf-8").split("\n") if line)

    sys.modules["datasets"] = types.SimpleNamespace(Dataset=Rows, load_dataset=load_dataset)  # type: ignore[assignment]
    sys.path.insert(0, str(checkout))
    from data.load import load_dataset_all  # type: ignore[import-not-found]
    from data.wrapper import DataWrapper  # type: ignore[import-not-found]
    from model import wrapper  # type: ignore[import-not-found]
    from utils.func import set_gen_length  # type: ignore[import-not-found]

    names = {f"scbench/{member}": f"scbench_{member}" for member in members("scbench")}
    for task, name in {**names, "squad": "squad", "gsm8k": "gsm"}.items():
        pairs = [(family, template) for family in FAMILIES for template in TEMPLATES.get(family, ("gemma",))]
        for family, template in pairs:
            inner, tok = Model(), tokenizer(family, template)
            inner.name = MODELS[template]
            wrapper.load_model = lambda _, inner=inner, tok=tok: (inner, tok)
            model = wrapper.ModelKVzip(inner.name, kv_type="retain")
            data = DataWrapper(name, load_dataset_all(name, tok), model)
            set_gen_length(name, model)
            asked = 0
            for index in range(len(data)):
                kv = data.prefill_context(index)
                inner.asked.clear()
                data._prepare_query(data.dataset[index], kv, defaultdict(list), "reason" if name == "gsm" else "qa")
                for request in inner.asked:
                    context = kv.prefill_ids.shape[1]
                    yield (
                        case(task, family, template, asked),
                        transcript(request["ids"], context, None, request["max_new_tokens"]),
                    )
                    asked += 1
