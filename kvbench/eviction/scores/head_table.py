"""One number per KV head, the same for all of its KV pairs: which heads need their whole cache, and which do not.

The numbers come from a file in one of two forms. DuoAttention (Xiao et al. 2024, https://arxiv.org/abs/2410.10819)
publishes its trained `full_attention_heads.tsv` per model: a line per layer, a number per KV head, separated by tabs;
the model is not named. A JSON object also holds the hash of the model and how the numbers were measured, such as
KVzip's head scores on another task (https://arxiv.org/abs/2505.23416; `head` of attention/kvcache.py in its code).
"""

import hashlib
import json
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.score import Reduce, Score
from kvbench.support.annotations import Help
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.named import made
from kvbench.support.whole_file import read_whole

FORMAT = "kvbench head table 1"
"""The value of `format` in the JSON form."""
EXPECTED = "a table has one line per layer, tabs between its heads"


@dataclass(frozen=True)
class HeadFile:
    """Numbers of heads in 0..1, and what they are of.

    model, model_sha256: the model by name and by the bytes of its files; None where the file does not say. source: how
    the numbers were found.
    """

    scores: tuple[tuple[float, ...], ...]
    model: str | None = None
    model_sha256: str | None = None
    source: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and KV heads."""
        return len(self.scores), len(self.scores[0])

    def write(self, path: Path) -> None:
        """Write the numbers alone for a name in `.tsv`, else everything as JSON; every digit stays."""
        if path.suffix == ".tsv":
            text = "".join("\t".join(map(repr, layer)) + "\n" for layer in self.scores)
        else:
            text = json.dumps({"format": FORMAT, "shape": self.shape, **asdict(self)}, indent=1) + "\n"
        path.write_text(text, "utf-8")


@dataclass(frozen=True)
class HeadTable(Score):
    """The number that a table, the file at `path`, gives to the KV head of a pair.

    Raises MissingFile where there is none, UserError for one that is no table.
    """

    path: Annotated[
        str,
        Help(
            "a file: one line per layer with tabs between KV heads, or JSON that also names the model",
            example="FILE with a head table, such as full_attention_heads.tsv of DuoAttention",
            file="head_table",
        ),
    ]
    name: str = "head_table"
    table_sha256: str = field(init=False)
    group: ClassVar[Group] = "max"
    by_head: ClassVar[bool] = True
    _heads: ClassVar[tuple[int, ...] | None] = None

    def __post_init__(self) -> None:
        digest = hashlib.sha256(repr(self.table.scores).encode()).hexdigest()[:16]
        object.__setattr__(self, "table_sha256", digest)

    @cached_property
    def table(self) -> HeadFile:
        return read_head_file(self.path)

    def check_model(self, layers: int, kv_heads: int, weights: str) -> None:
        table = self.table
        if table.shape != (layers, kv_heads):
            raise UserError(
                f"score.path={self.path}: the table has {table.shape[0]} layers and {table.shape[1]} KV heads, the "
                f"model {layers} layers and {kv_heads} KV heads{made('head_table')}"
            )
        if table.model_sha256 not in (None, weights):
            raise UserError(
                f"score.path={self.path}: the table is of model {table.model} ({table.model_sha256}), not of this "
                f"one ({weights}){made('head_table')}"
            )

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        (layers, heads), own = self.table.shape, self._heads or range(layer.cache_heads)
        if layer.index >= layers or own[-1] >= heads or (self._heads is None and layer.cache_heads != heads):
            raise UserError(
                f"score.path={self.path}: the table has {layers} layers and {heads} KV heads, but layer "
                f"{layer.index} of the model has {layer.cache_heads} KV heads{made('head_table')}"
            )
        scores = [self.table.scores[layer.index][head] for head in own]
        by_head = torch.tensor(scores, dtype=torch.float, device=layer.keys.device)
        return by_head[:, None].repeat(1, layer.lengths[0])

    def of_heads(self, heads: Sequence[int]) -> "HeadTable":
        own = copy(self)
        object.__setattr__(own, "_heads", tuple(heads))
        return own


def read_head_file(path: str) -> HeadFile:
    """Read either form; numbers are taken into 0..1, as DuoAttention's code does.

    Raises MissingFile where there is no file, UserError for one that holds no such table.
    """
    if not Path(path).is_file():
        raise MissingFile(f"score.path={path}: no such file; {EXPECTED}")
    try:
        text = read_whole(Path(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"score.path={path} is not text: {error}") from error
    if text.lstrip().startswith("{"):
        return _from_json(path, text)
    if not text.strip():
        raise UserError(f"score.path={path} is empty: {EXPECTED}")
    try:
        return HeadFile(_rows(np.loadtxt(text.splitlines(), delimiter="\t", dtype=np.float64, ndmin=2)))
    except ValueError as error:
        message = str(error).partition(";")[0]  # numpy goes on with advice for those who call it
        raise UserError(f"score.path={path} is not a table of numbers: {message}: {EXPECTED}") from error


def _from_json(path: str, text: str) -> HeadFile:
    try:
        node = json.loads(text)
        kind, shape = node.pop("format", None), tuple(node.pop("shape"))
        table = HeadFile(_rows(np.array(node.pop("scores"), dtype=np.float64)), **node)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise UserError(f"score.path={path} is not a head table in JSON: {error}") from error
    if kind != FORMAT or shape != table.shape:
        raise UserError(
            f"score.path={path}: format {kind!r} and shape {list(shape)} of a table of {list(table.shape)}; "
            f"allowed: {FORMAT!r} and the shape of its table"
        )
    return table


def _rows(table: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[tuple[float, ...], ...]:
    if table.ndim != 2 or not table.size or not np.isfinite(table).all():
        raise ValueError("a table holds a finite number for each head of each layer")
    return tuple(map(tuple, table.clip(0, 1).tolist()))
