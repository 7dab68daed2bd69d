"""Golden cases of readers, computed by published code: tests/golden/readers.json.

    PYTHON scripts/golden_readers.py --quest FOLDER --doublesparse FOLDER --frontier FOLDER --factory FOLDER
        --moba FOLDER

FOLDERs are checkouts of github.com/mit-han-lab/Quest at 01c1623, andy-yang-1/DoubleSparse at b0575e6, PiotrNawrot/
sparse-frontier at 31d86c1, Zefan-Cai/KVCache-Factory at c97f9d7 and MoonshotAI/MoBA at 61e456b. PYTHON has torch and
transformers. What they import besides (vllm, flash_attn, datasets, kernels) stands in empty: only functions that choose
pairs run, in float32 and without a rotation. Values are unit vectors where the code returns an output only: a number of
it that is not 0 is a pair that was read.

A case: `code` and `seed`, `query_heads`, `kv_heads`, `tokens` and `head_dim` of `drawn`; `reader` and its `settings`;
`read`: the positions that each query head reads. The file has numbers only.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import numpy as np
import torch
from torch import Tensor

FILE = Path(__file__).parents[1] / "tests" / "golden" / "readers.json"
SHAPE = {"query_heads": 6, "kv_heads": 2, "tokens": 61, "head_dim": 64}
PAGE = 4
Read = list[list[int]]


def drawn(seed: int, shape: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """A query [query heads, head_dim] and keys [kv heads, tokens, head_dim] from numpy's legacy generator, in float32.

    Channels differ in size, and neighbouring keys are alike.
    """
    draw = np.random.RandomState(seed).standard_normal
    query_heads, kv_heads, tokens, head_dim = (
        shape[axis] for axis in ("query_heads", "kv_heads", "tokens", "head_dim")
    )
    sizes = np.exp(draw((kv_heads, 1, head_dim)))
    keys = sizes * (
        draw((kv_heads, tokens, head_dim)) + np.repeat(draw((kv_heads, tokens // 6 + 1, head_dim)), 6, 1)[:, :tokens]
    )
    return draw((query_heads, head_dim)).astype(np.float32), keys.astype(np.float32)


def loaded(path: Path, name: str) -> ModuleType:
    """The module of a file, by itself."""
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Cache:
    """A cache that has all keys, and unit vectors for values."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys[None]
        self.values = torch.eye(keys.shape[2])[: keys.shape[1]].expand(1, len(keys), -1, -1)

    def update(self, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """All keys and values, whatever is new."""
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Tokens of the first layer, which has the new one when a later layer asks."""
        return self.keys.shape[2]


def layer(query: Tensor, keys: Tensor, **fields: Any) -> Any:
    """An attention layer that makes this query, and one more key and value that nobody reads."""
    heads, kv_heads, head_dim = len(query), len(keys), query.shape[1]
    return SimpleNamespace(
        num_heads=heads,
        num_key_value_heads=kv_heads,
        num_key_value_groups=heads // kv_heads,
        head_dim=head_dim,
        hidden_size=heads * head_dim,
        layer_idx=2,
        layer_id=2,
        q_proj=lambda _: query.reshape(1, 1, -1),
        k_proj=lambda _: torch.zeros(1, 1, kv_heads * head_dim),
        v_proj=lambda _: torch.zeros(1, 1, kv_heads * head_dim),
        o_proj=lambda output: output,
        rotary_emb=lambda *_: (None, None),
        config=SimpleNamespace(pretraining_tp=1),
        **fields,
    )


def positions(output: Tensor, heads: int, tokens: int) -> Read:
    """The pairs that have a weight in the output of unit vectors."""
    return [row.nonzero()[:, 0].tolist() for row in output.reshape(heads, -1)[:, :tokens] != 0]


def quest(folder: Path, query: Tensor, keys: Tensor, settings: Mapping[str, Any]) -> Read:
    """The forward of evaluation/quest_attention.py, for a query over keys that end with its own."""
    module = loaded(folder / "evaluation" / "quest_attention.py", "quest_attention")
    vars(module).update(apply_rotary_pos_emb=lambda query, key, *_: (query, key), DynamicCache=Cache)
    attention = layer(query, keys, chunk_size=settings["page"], token_budget=settings["budget"])
    output, *_ = module.forward(
        attention,
        torch.zeros(1, 1, 1),
        position_ids=torch.tensor([[keys.shape[1] - 1]]),
        past_key_value=Cache(keys),
        use_cache=True,
    )
    return positions(output, len(query), keys.shape[1])


def factory(folder: Path, query: Tensor, keys: Tensor, settings: Mapping[str, Any]) -> Read:
    """`select_quest_pages` of KVCache-Factory, with the keys of each query head."""
    module = loaded(folder / "pyramidkv" / "quest.py", "factory_quest")
    repeated = keys.repeat_interleave(len(query) // len(keys), dim=0)[None]
    pages = module.select_quest_pages(
        query[None], repeated, page_size=settings["page"], page_budget=settings["budget"] // settings["page"]
    )
    return of_pages(pages[0], settings["page"], keys.shape[1])


def frontier(folder: Path, query: Tensor, keys: Tensor, settings: Mapping[str, Any]) -> Read:
    """`_select_pages` of sparse-frontier, which adds the newest page to those of its budget."""
    for name in ("vllm", "vllm.distributed", "vllm.attention", "vllm.attention.backends"):
        sys.modules[name] = ModuleType(name)
    for name in ("flash_attn", "vllm.attention.backends.flash_attn", "vllm.distributed"):
        sys.modules[name] = MagicMock()
    package, place = "attention", folder / "sparse_frontier" / "modelling" / "attention"
    sys.modules[package] = ModuleType(package)
    sys.modules[package].__path__ = [str(place)]
    module = import_module(f"{package}.efficient_decoding")
    page, tokens = settings["page"], keys.shape[1]
    state = SimpleNamespace(page_size=page, page_reps_per_layer=[None], max_pages=-(-tokens // page))
    module.QuestAttention._init_page_reps(state, keys[None])
    pages, _ = module._select_pages(
        page_reps=state.page_reps_per_layer[0],
        query=query[None],
        cache_seqlens=tokens,
        page_size=page,
        page_budget=settings["budget"] // page - 1,
        offsets=torch.zeros(len(query), 1, dtype=torch.int32),
        share_pages=settings["selection"] == "kv_heads",
    )
    return of_pages(pages, page, tokens)


def of_pages(pages: Tensor, page: int, tokens: int) -> Read:
    """The pairs of pages, by query head."""
    every = ([number * page + place for number in sorted(row) for place in range(page)] for row in pages.tolist())
    return [[pair for pair in row if pair < tokens] for row in every]


def doublesparse(folder: Path, query: Tensor, keys: Tensor, settings: Mapping[str, Any]) -> Read:
    """The forward of evaluation/modify_llama.py, its channels by config/offline_calibration.py from these keys."""
    sys.modules["datasets"] = MagicMock()
    calibration = loaded(folder / "config" / "offline_calibration.py", "offline_calibration")
    module = loaded(folder / "evaluation" / "modify_llama.py", "modify_llama")
    vars(module)["apply_rotary_pos_emb"] = lambda query, key, *_: (query, key)
    kv_heads, tokens, head_dim = keys.shape
    statistics: dict[str, Tensor] = {}
    config = SimpleNamespace(
        hidden_size=kv_heads * head_dim, num_attention_heads=kv_heads, num_key_value_heads=kv_heads
    )
    states = keys.transpose(0, 1).reshape(1, tokens, -1)
    calibration.get_k_hook(None, None, states, "keys", statistics, SimpleNamespace(config=config))
    _, order = torch.sort(statistics["keys"], dim=-1, descending=True)
    attention = layer(
        query,
        keys,
        sorted_channel=order.repeat_interleave(len(query) // kv_heads, dim=0),
        heavy_const=settings["budget"],
        group_factor=head_dim // settings["channels"],
        label_bits=16,
    )
    output, *_ = module.LlamaAttention_heavy_hitter.forward(
        attention, torch.zeros(1, 1, 1), past_key_value=Cache(keys), position_embeddings=(None, None)
    )
    return positions(output, len(query), tokens)


def moba(folder: Path, query: Tensor, keys: Tensor, settings: Mapping[str, Any]) -> Read:
    """`moba_attn_varlen_naive`, the newest of as many queries as there are keys."""
    module = loaded(folder / "moba" / "moba_naive.py", "moba_naive")
    kv_heads, tokens, head_dim = keys.shape
    queries = torch.zeros(tokens, len(query), head_dim)
    queries[-1] = query
    repeated = keys.repeat_interleave(len(query) // kv_heads, dim=0).transpose(0, 1)
    values = torch.eye(head_dim)[:tokens, None].expand(-1, len(query), -1)
    ends = torch.tensor([0, tokens])
    arguments = (queries, repeated, values, ends, tokens, settings["page"], settings["budget"] // settings["page"])
    return positions(module.moba_attn_varlen_naive(*arguments)[-1], len(query), tokens)


NEWEST = {"budget": 16, "page": PAGE, "least_pages": 1, "recent": 1}
CASES = (
    (quest, "quest", {"budget": 20, "page": PAGE, "least_pages": 3}),
    (quest, "quest", {"budget": 4, "page": PAGE, "least_pages": 3}),
    (factory, "quest", {"budget": 20, "page": PAGE, "least_pages": 1}),
    (frontier, "quest", NEWEST | {"selection": "query_heads"}),
    (frontier, "quest", NEWEST | {"selection": "kv_heads"}),
    (doublesparse, "double_sparsity", {"budget": 11, "channels": 4, "variant": "prompt_keys"}),
    (doublesparse, "oracle_topk", {"budget": 11, "channels": SHAPE["head_dim"]}),
    (moba, "block_topk", NEWEST),
)
"""The code, the reader that it is, and the settings; `oracle_topk` is DoubleSparse with all channels for labels."""


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    codes = ("quest", "factory", "frontier", "doublesparse", "moba")
    for code in codes:
        parser.add_argument(f"--{code}", type=Path, required=True)
    folders = vars(parser.parse_args())
    cases = []
    for code, reader, settings in CASES:
        for seed in (0, 1):
            query, keys = map(torch.from_numpy, drawn(seed, SHAPE))
            read = code(folders[code.__name__], query, keys, settings)
            kept = {name: value for name, value in settings.items() if reader != "oracle_topk" or name != "channels"}
            cases.append(
                {"code": code.__name__, "seed": seed, **SHAPE, "reader": reader, "settings": kept, "read": read}
            )
    FILE.write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n", "utf-8")


if __name__ == "__main__":
    main()
