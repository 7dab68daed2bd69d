"""A worth for every head, the same for all of its pairs: which heads need their whole cache, and which do not.

From a table in the format of DuoAttention's `full_attention_heads.tsv` (Xiao et al. 2024,
https://arxiv.org/abs/2410.10819): a line a layer, a number for each KV head, tabs in between. Without a table a head is
worth what its best pair is when the model repeats the prompt at hand: KVzip by head (https://arxiv.org/abs/2505.23416,
`head_score` in attention/score.py of its code).
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvbench.cache import LayerCache, Window
from kvbench.scores.kvzip import CONTINUE, REPEAT, TAIL
from kvbench.scores.score import Evidence, Reduce, Repeat, Score
from kvbench.shapes import Scores
from kvbench.shaping import Group


@dataclass(frozen=True)
class HeadTable(Score):
    """The number that a table gives to the head of a pair; it costs nothing to ask.

    path: the table, or None to repeat each prompt (`chunk` and `repeat_prompt` as in KVzip). Numbers are taken into
    [0, 1], as DuoAttention's code does.

    Raises FileNotFoundError where there is no table, ValueError for one that is none.
    """

    path: str | None = None
    chunk: int = 2000
    repeat_prompt: str = REPEAT
    name: str = "head_table"
    table_sha256: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.path is not None:
            object.__setattr__(self, "table_sha256", hashlib.sha256(_read(self.path).tobytes()).hexdigest()[:16])

    @cached_property
    def evidence(self) -> Evidence:
        """Nothing, or a repetition."""
        repeat = Repeat(self.chunk, TAIL, self.repeat_prompt, CONTINUE, softmax=True)
        return Evidence(window=False, repeat=repeat if self.path is None else None)

    def check_model(self, layers: int, kv_heads: int) -> None:
        """Raise ValueError for a table of another model."""
        if self.path is not None and self.table.shape != (layers, kv_heads):
            raise ValueError(
                f"score.path={self.path}: a table of {self.table.shape[0]} layers and {self.table.shape[1]} KV heads "
                f"is not of a model with {layers} layers and {kv_heads} KV heads"
            )

    @property
    def group(self) -> Group:
        """The head of the group that needs its pairs most."""
        return "max"

    @cached_property
    def table(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """[layers, KV heads]."""
        assert self.path is not None
        return _read(self.path)

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Scores of a dense layer, the same along the tokens: [KV heads, tokens], or of query heads when repeated.

        Raises ValueError for a table that is not of this model.
        """
        if self.evidence.repeat is not None:
            assert self.evidence.repeat in layer.probed, "the engine repeats before it asks"
            best = layer.probed[self.evidence.repeat].amax(dim=1)
        else:
            layers, heads = self.table.shape
            if layer.index >= layers or layer.stored_heads != heads:
                raise ValueError(
                    f"score.path={self.path}: a table of {layers} layers and {heads} KV heads is not of a model whose "
                    f"layer {layer.index} has {layer.stored_heads} KV heads"
                )
            best = torch.from_numpy(self.table[layer.index]).float().to(layer.keys.device)
        return best[:, None].repeat(1, layer.lengths[0])


def _read(path: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"score.path={path}: no such file; a table has a line a layer, tabs between its heads")
    if not Path(path).read_text().strip():
        raise ValueError(f"score.path={path} is empty: a table has a line a layer, tabs between its heads")
    try:
        table = np.loadtxt(path, delimiter="\t", dtype=np.float64, ndmin=2)
    except ValueError as error:
        raise ValueError(f"score.path={path} is no table of numbers: {error}") from error
    if not np.isfinite(table).all():
        raise ValueError(f"score.path={path}: a table holds a finite number for each head of each layer")
    return table.clip(0, 1)
