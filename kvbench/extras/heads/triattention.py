"""TriAttention: what the queries of a head are like before their rotation says which keys later tokens will read.

TriAttention (Mao et al. 2026, https://arxiv.org/abs/2604.04921), as in the files triattention/methods/pruning_utils.py
and triattention.py of its code. The statistics of the queries are measured once (`kvbench heads --queries`), as its
scripts/calibrate.py does, and read from a file.
"""

import hashlib
import json
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from kvbench.cache.kernels.choice import kernel_module
from kvbench.cache.kv_cache import LayerCache, ObservationWindow, query_heads_of
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.ragged import RaggedHeads, Slots
from kvbench.eviction.scores.score import RawTerm, Reduce, Score
from kvbench.models.key_rotation import ROTATED
from kvbench.support.annotations import Help
from kvbench.support.errors import MissingFile, UserError

FORMAT = "kvbench query statistics 1"
"""The value of `format` in the metadata of a file."""
COLUMN_CHUNK = 4096
"""Columns that are scored at a time."""
MAKE = "write one for this model: kvbench heads --queries --output FILE"


@dataclass(frozen=True, eq=False)
class QueryStatistics:
    """Queries of a model before their rotation, as one complex number per frequency, over all tokens that were read.

    mean, size: of the number and of its absolute value. frequencies: radians per position (`inv_freq`). A layer that is
    never evicted from has zeros. interleaved: whether numbers 2f and 2f + 1 of a query belong to frequency f, rather
    than f and f + head_dim / 2. model, model_sha256: the model by name and by the bytes of its files. source: how they
    were measured.
    """

    mean: Complex[Tensor, "layers query_heads half"]
    size: Float[Tensor, "layers query_heads half"]
    frequencies: Float[Tensor, "layers half"]
    interleaved: bool
    model: str
    model_sha256: str
    source: dict[str, Any]

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and query heads."""
        return self.size.shape[0], self.size.shape[1]

    def write(self, path: Path) -> None:
        """Write float32 numbers as safetensors, the rest as its metadata."""
        from safetensors.torch import save

        arrays = {"mean": torch.view_as_real(self.mean), "size": self.size, "frequencies": self.frequencies}
        words = {"format": FORMAT, "model": self.model, "model_sha256": self.model_sha256}
        words |= {"interleaved": json.dumps(self.interleaved), "source": json.dumps(self.source)}
        path.write_bytes(save({name: array.float().contiguous() for name, array in arrays.items()}, words))


@dataclass(frozen=True)
class TriAttention(Score):
    """max over the query heads of a KV head of their standardised scores, each over the pairs that the cache holds:

    sum over frequencies f of Re(m_f conj(k_f) mean_d exp(i w_f (n + d))) + (s_f - |m_f|) |k_f|,

    where m_f is the mean of the queries and s_f the mean of their absolute values, both before the rotation, k_f the
    cached key with its rotation, w_f the frequency, n the number of tokens read, and d = 1, 2, 4, ... up to `furthest`.
    concentration: False takes s_f |k_f| for the last term.

    Raises MissingFile where there are no `statistics`, UserError for a file of another kind.
    """

    statistics: Annotated[
        str,
        Help(
            "a file of kvbench heads --queries",
            example="FILE with query statistics (kvbench heads --queries writes one)",
        ),
    ]
    furthest: Annotated[int, Help("scores are averaged over 1, 2, 4, ... positions ahead, up to this one")] = 65536
    concentration: Annotated[
        bool, Help("false, disable_mlr of its code: norms weigh as much where the queries of a frequency are alike")
    ] = True
    name: str = "triattention"
    statistics_sha256: str = field(init=False)
    group: ClassVar[Group] = "max"
    signed: ClassVar[bool] = True
    row_term: ClassVar[RawTerm] = "nothing"
    _heads: ClassVar[tuple[int, ...] | None] = None

    def __post_init__(self) -> None:
        if self.furthest < 1:
            raise UserError(f"score.furthest={self.furthest}: allowed: 1 or more, positions ahead, e.g. 65536")
        read = self._read
        numbers = b"".join(part.numpy().tobytes() for part in (read.mean, read.size, read.frequencies))
        object.__setattr__(self, "statistics_sha256", hashlib.sha256(numbers).hexdigest()[:16])

    @cached_property
    def _read(self) -> QueryStatistics:
        return read_statistics(self.statistics)

    def check_model(self, layers: int, kv_heads: int, weights: str) -> None:
        read = self._read
        if read.model_sha256 != weights:
            raise UserError(
                f"score.statistics={self.statistics}: they are of model {read.model} ({read.model_sha256}), not of "
                f"this one ({weights}); {MAKE}"
            )
        held_layers, heads, _ = read.mean.shape
        if held_layers != layers or heads % kv_heads:
            raise UserError(
                f"score.statistics={self.statistics}: {held_layers} layers of {heads} query heads do not fit a model "
                f"of {layers} layers of {kv_heads} KV heads; {MAKE}"
            )

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        keys, group = layer.dense[0], layer.query_heads // layer.cache_heads
        queries = self._queries_of(layer.index, self._heads or range(layer.cache_heads), group, layer.keys)
        # Renumbered keys are rotated by their slots, and the next token comes behind them.
        later = layer.lengths[0] if ROTATED in layer.state else layer.positions.max() + 1
        turned, parts = queries.mean * queries.turn(later), []
        for chunk in keys.split(COLUMN_CHUNK, dim=1):
            numbers = complex_pairs(chunk.float(), self._read.interleaved)
            parts.append((turned @ numbers.mH).real + queries.spread @ numbers.abs().mT)
        scores = torch.cat(parts, dim=2).flatten(0, 1)
        deviation = scores.std(dim=1, keepdim=True, correction=0).clamp_min(1e-6)
        return (scores - scores.mean(dim=1, keepdim=True)) / deviation

    def of_heads(self, heads: Sequence[int]) -> "TriAttention":
        own = copy(self)
        object.__setattr__(own, "_heads", tuple(heads))
        return own

    def raw_segments(self, heads: RaggedHeads, sums: Slots | None) -> Slots:
        owned = [head for _, head in heads.owners]
        queries = heads.once(self, lambda: self._queries_of(heads.index, owned, heads.group, heads.keys))
        parts = queries.mean, queries.spread, queries.turn(heads.newest + 1), queries.interleaved, heads.merge
        return kernel_module("triattention").triattention(heads.keys, heads.segments, *parts)

    def _queries_of(
        self, index: int, cache_heads: Sequence[int], group: int, keys: Float[Tensor, "pairs head_dim"]
    ) -> "HeadQueries":
        """Return the queries of cache heads of a layer, on the device of its keys. Raises UserError for another number
        or size of heads.
        """
        device, read, head_dim, heads = keys.device, self._read, keys.shape[1], query_heads_of(cache_heads, group)
        layers, query_heads, half = read.mean.shape
        if index >= layers or max(heads) >= query_heads or head_dim != 2 * half:
            raise UserError(
                f"score.statistics={self.statistics}: {layers} layers of {query_heads} query heads of size {2 * half} "
                f"do not fit layer {index}, which has {len(heads)} of size {head_dim}; {MAKE}"
            )
        mean, size = (part[index, heads].unflatten(0, (-1, group)) for part in (read.mean, read.size))
        spread = size - mean.abs() if self.concentration else size
        ahead = 2.0 ** torch.arange(self.furthest.bit_length(), dtype=torch.float64)
        frequencies = read.frequencies[index].double()
        arrays = mean.to(device), spread.to(device), frequencies.to(device), ahead.to(device)
        return HeadQueries(*arrays, read.interleaved)


@dataclass(frozen=True, eq=False)
class HeadQueries:
    """Statistics of the queries of some heads. mean: m_f. spread: what |k_f| is multiplied by. ahead: d."""

    mean: Complex[Tensor, "heads group half"]
    spread: Float[Tensor, "heads group half"]
    frequencies: Float[Tensor, "half"]
    ahead: Float[Tensor, "distances"]
    interleaved: bool

    def turn(self, later: int | Int[Tensor, "*places"]) -> Complex[Tensor, "*places half"]:
        """Return the mean over d of exp(i w_f (n + d)), where the next tokens are `later`."""
        last = later[..., None] if isinstance(later, Tensor) else later
        angles = (last + self.ahead)[..., None] * self.frequencies
        return torch.polar(torch.ones_like(angles), angles).mean(dim=-2).to(self.mean.dtype)


def complex_pairs(vectors: Float[Tensor, "*rest head_dim"], interleaved: bool) -> Complex[Tensor, "*rest half"]:
    """Return the numbers that a rotation turns together, as one complex number each."""
    half = vectors.shape[-1] // 2
    parts = vectors.unflatten(-1, (half, 2)).unbind(-1) if interleaved else vectors.split(half, dim=-1)
    return torch.complex(*(part.contiguous() for part in parts))


def read_statistics(path: str) -> QueryStatistics:
    """Read a file of `QueryStatistics.write`. Raises MissingFile where there is none, UserError for another file."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise MissingFile(f"score.statistics={path}: no such file; {MAKE}")
    try:
        with safe_open(path, "pt") as file:
            words = file.metadata() or {}
            if words.get("format") != FORMAT:
                raise ValueError(f"its format is {words.get('format')!r}, not {FORMAT!r}")
            mean, size, frequencies = (file.get_tensor(name) for name in ("mean", "size", "frequencies"))
        fits = mean.shape == (*size.shape, 2) and frequencies.shape == (size.shape[0], size.shape[-1])
        arrays = (mean, size, frequencies)
        if not (fits and size.ndim == 3 and all(p.dtype == torch.float32 and p.isfinite().all() for p in arrays)):
            raise ValueError("its arrays do not fit together, or are not finite float32 numbers")
        others = json.loads(words["interleaved"]), words["model"], words["model_sha256"], json.loads(words["source"])
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise UserError(f"score.statistics={path} holds no statistics of queries: {error}; {MAKE}") from error
    return QueryStatistics(torch.view_as_complex(mean), size, frequencies, *others)
