"""Cases whose rows repeat the context: from the given queries and keys of the repetition to what KVzip records."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kvbench.cache.attention import Rule
from kvbench.conformance.golden.case import Case
from kvbench.eviction.scores.kvzip import strongest
from kvbench.eviction.scores.score import Repeat
from kvbench.support.errors import UserError

FIELDS = {"probe", "prefix", "chunks", "rows"}
"""Parameters of a score that is asked of a repetition."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Repetition:
    """Columns of each chunk, the rows that repeat it, and how many first columns every row sees besides."""

    prefix: int
    chunks: tuple[Span, ...]
    rows: tuple[Span, ...]

    @property
    def length(self) -> int:
        """Rows in all."""
        return max(stop for _, stop in self.rows)


def repetition_of(spec: dict[str, Any]) -> Repetition | None:
    """The repetition that a spec asks for, None where it asks for none. Raises ValueError for one that is not legal."""
    params = spec["score"]["params"]
    if params.get("probe") is None:
        return None
    tokens = spec["shape"]["tokens"]
    if spec["score"]["name"] != "attn_max" or params["probe"] != "repeat" or set(params) != FIELDS:
        raise UserError(f"score {spec['score']!r} is not supported; legal with a probe: attn_max, {sorted(FIELDS)}")
    if spec["kind"] != "prefill":
        raise UserError(f"probe repeat is not supported in a case of kind {spec['kind']}; legal: prefill")
    prefix = params["prefix"]
    if not isinstance(prefix, int) or isinstance(prefix, bool) or not 0 <= prefix <= tokens:
        raise UserError(f"prefix {prefix!r} is not legal; legal: a whole number up to {tokens}")
    chunks, rows = _spans("chunks", params["chunks"], tokens), _spans("rows", params["rows"], None)
    if len(chunks) != len(rows):
        raise UserError(f"{len(chunks)} chunks, but rows for {len(rows)}")
    return Repetition(prefix, chunks, rows)


def probed(case: Case, repetition: Repetition, repeat: Repeat) -> list[Tensor]:
    """What is recorded of every layer: [query heads, tokens], NaN where no chunk is."""
    arrays = (torch.from_numpy(case.arrays[name]) for name in ("query_repeat", "key_repeat", "key"))
    records, rule = [], Rule(case.shape["head_dim"] ** -0.5)
    for queries, repeated, keys in zip(*arrays, strict=True):
        record = torch.full((queries.shape[0], keys.shape[1]), torch.nan)
        record[:, : repetition.prefix] = 0
        for (start, stop), (first, last) in zip(repetition.chunks, repetition.rows, strict=True):
            seen = torch.cat((keys[:, : repetition.prefix], keys[:, start:stop], repeated[:, first:last]), dim=1)
            columns = slice(repetition.prefix, repetition.prefix + stop - start)
            record[:, start:stop] = strongest(queries[:, first:last], seen, columns, rule, repeat.softmax)
        records.append(record)
    return records


def _spans(name: str, value: Any, most: int | None) -> tuple[Span, ...]:
    """Pairs of whole numbers, each empty or more, one after the other."""
    legal = f"{name} {value!r} is not legal; legal: pairs of whole numbers, one after the other"
    if not isinstance(value, list) or not value:
        raise UserError(legal)
    for span in value:
        whole = isinstance(span, list) and len(span) == 2 and all(type(number) is int for number in span)
        if not whole or not 0 <= span[0] < span[1] or (most is not None and span[1] > most):
            raise UserError(legal)
    if any(before[1] > after[0] for before, after in pairwise(value)):
        raise UserError(legal)
    return tuple((start, stop) for start, stop in value)
