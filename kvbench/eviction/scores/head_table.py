"""A worth for every head, the same for all of its pairs: which heads need their whole cache, and which do not.

The numbers come from a file: DuoAttention's trained ones (Xiao et al. 2024, https://arxiv.org/abs/2410.10819), or
KVzip's by head, found once on samples of another task (https://arxiv.org/abs/2505.23416; `head` of attention/kvcache.py
in its code), which `kvbench heads` writes. For the formats see `kvbench.eviction.scores.head_file`.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.head_file import HeadFile, read
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.support.errors import UserError


@dataclass(frozen=True)
class HeadTable(Score):
    """The number that a table gives to the head of a pair; it costs nothing to ask.

    path: the file. Raises FileNotFoundError where there is none, ValueError for one that is no table.
    """

    path: str
    name: str = "head_table"
    table_sha256: str = field(init=False)
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=False)
    group: ClassVar[Group] = "max"
    by_head: ClassVar[bool] = True

    def __post_init__(self) -> None:
        digest = hashlib.sha256(repr(self.table.scores).encode()).hexdigest()[:16]
        object.__setattr__(self, "table_sha256", digest)

    @cached_property
    def table(self) -> HeadFile:
        """What the file says."""
        return read(self.path)

    def check_model(self, layers: int, kv_heads: int, weights: str) -> None:
        """Raise ValueError for a table of another model."""
        table = self.table
        if table.shape != (layers, kv_heads):
            raise UserError(
                f"score.path={self.path}: a table of {table.shape[0]} layers and {table.shape[1]} KV heads "
                f"is not of a model with {layers} layers and {kv_heads} KV heads"
            )
        if table.model_sha256 not in (None, weights):
            raise UserError(
                f"score.path={self.path}: a table of model {table.model} ({table.model_sha256}) is not of this one "
                f"({weights}): write one for it with kvbench heads"
            )

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores [KV heads, tokens] of a dense layer, the same along the tokens.

        Raises ValueError for a table that is not of this model.
        """
        layers, heads = self.table.shape
        if layer.index >= layers or layer.cache_heads != heads:
            raise UserError(
                f"score.path={self.path}: a table of {layers} layers and {heads} KV heads is not of a model whose "
                f"layer {layer.index} has {layer.cache_heads} KV heads"
            )
        own = torch.tensor(self.table.scores[layer.index], dtype=torch.float, device=layer.keys.device)
        return own[:, None].repeat(1, layer.lengths[0])
