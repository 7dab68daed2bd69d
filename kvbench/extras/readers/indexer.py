"""The indexer of a model as its reader (DeepSeek-V3.2, GLM-5, ...): each query attends to the pairs that it chooses.

The model's own code in transformers, `forward` of the indexer, makes the choice in every pass over prompt and answer.
The index key of a token lies before its latent, as more channels of one key, so that they are evicted as one pair.
Queries and values have zeros there.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from kvbench.cache.attention import (
    LOGITS_AT_ONCE,
    AttentionParams,
    attend_segments,
    hidden,
    logits_by_chunk,
    row_blocks,
)
from kvbench.cache.kv_cache import ObservationWindow
from kvbench.cache.shapes import Dense, Rows
from kvbench.extras.readers.reader import OWN_CHOICE
from kvbench.extras.readers.reading_batch import CountingBatch
from kvbench.models.decode.batch import DecodeBatch, EqualLengthSegments, RaggedLayer
from kvbench.models.decode.holder import Holder, shown
from kvbench.support.facts import (
    ALL_READ,
    ANSWER,
    FULL_CACHE,
    MODEL_KEYS,
    NO_LATER_EVICTION,
    OWN_ROTATION,
    PLAIN_COPY,
    UNCHANGED,
    UNTIMED,
    Claim,
)

if TYPE_CHECKING:
    from kvbench.models.engine import Engine

Unread = Bool[Tensor, "queries tokens"]


@dataclass(frozen=True)
class Indexer(Holder):
    """A copy of the kept pairs, of which each token reads those that the indexer of the model chooses."""

    name: str = "indexer"
    group: ClassVar[str] = "reader"
    idle: ClassVar[bool] = False
    joins: ClassVar[bool] = False

    def described(self) -> Mapping[str, Any]:
        return {"reader": {"name": self.name}}

    def batch(self, held: list[Any], engine: "Engine", room: int, question_tokens: int) -> DecodeBatch:
        return IndexedBatch(shown(held), engine.max_batch, room)

    def claims(self) -> Iterator[Claim]:
        """Return what it needs of other settings: an answer over a plain copy of the pairs, as the model made them."""
        of_pairs = (PLAIN_COPY, MODEL_KEYS, OWN_ROTATION, UNCHANGED, OWN_CHOICE)
        facts, does = (ANSWER, UNTIMED, FULL_CACHE, NO_LATER_EVICTION, *of_pairs), "reads what its indexer chooses"
        yield Claim("model=indexed", "another model", dict.fromkeys(facts, does), {ALL_READ: does})


class Indexed:
    """The input of an indexer in a pass, and its choice by it: the `choice` of `AttentionParams`.

    forward: of the indexer, in transformers. A layer that shares the choice of an earlier one has the numbers of that
    layer, and chooses by them among what it holds itself.
    """

    def __init__(
        self,
        forward: Callable[..., Tensor],
        hidden_states: Float[Tensor, "cells new hidden"],
        q_resid: Float[Tensor, "cells new rank"],
        position_embeddings: tuple[Tensor, Tensor],
        *_: Any,
        **__: Any,
    ) -> None:
        self._forward, self._inputs = forward, (hidden_states, q_resid, *position_embeddings)

    @cached_property
    def index_keys(self) -> Float[Tensor, "cells new index_dim"]:
        """The index keys of the new tokens."""
        keys = _IndexKeys(None)
        self._chosen(slice(None), keys, self._inputs[0].new_ones(1, self._inputs[0].shape[1], 1).bool())
        assert keys.new is not None
        return keys.new

    def joined(self, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the arrays with an index key in front of each key, which leaves logits and outputs as they are."""
        front = (self.index_keys.shape[2], 0)
        return F.pad(queries, front), torch.cat((self.index_keys[:, None], keys), dim=-1), F.pad(values, front)

    def unread(self, keys: Float[Tensor, "tokens head_dim"], row: int = 0) -> Unread:
        """Return True where a query of a row of the pass does not read a key, later ones included."""
        tokens, new = len(keys), self._inputs[0].shape[1]
        later = hidden(new, tokens, slice(0, tokens), keys.device)
        held = _IndexKeys(keys[None, :, : self.index_keys.shape[2]])
        chosen = self._chosen(slice(row, row + 1), held, ~later[None])[0]
        return torch.ones_like(later).scatter_(1, chosen.long(), False) | later

    def observer(self, tokens: int) -> Callable[[Rows, Rows, Dense, AttentionParams], ObservationWindow]:
        """Return what records the newest rows over the pairs that they read, of a prompt of so many tokens: other pairs
        have no part in the log-sum-exp.
        """

        def observe(queries: Rows, outputs: Rows, keys: Dense, rule: AttentionParams) -> ObservationWindow:
            unread = self.unread(keys[0])[-queries.shape[1] :]
            chunks = logits_by_chunk(queries, keys, rule.scaling, rule.softcap)
            parts = [part.masked_fill_(unread[:, columns], -torch.inf).logsumexp(dim=-1) for columns, part in chunks]
            if rule.sinks is not None:
                parts.append(rule.sinks.float()[:, None].expand(parts[0].shape))
            lse, padding = torch.stack(parts).logsumexp(dim=0), (0, tokens - keys.shape[1])
            unread = F.pad(unread, padding, value=True)[None]
            return ObservationWindow(queries, outputs, lse, rule.scaling, rule.softcap, unread=unread)

        return observe

    def _chosen(self, rows: slice, keys: "_IndexKeys", visible: Bool[Tensor, "1 new tokens"]) -> Tensor:
        """Return the places of the keys that the new tokens of some rows of the pass choose."""
        hidden_states, q_resid, *rotation = (part[rows] for part in self._inputs)
        return self._forward(hidden_states, q_resid, tuple(rotation), visible, None, past_key_values=keys)


class _IndexKeys:
    """Stands for the cache of transformers: gives an indexer all keys of one row, or takes the new ones of all rows.

    held: new ones included. Without them the first new one is given, which costs least.
    """

    def __init__(self, held: Float[Tensor, "1 tokens index_dim"] | None) -> None:
        self.held = held
        self.new: Tensor | None = None

    def update_indexer(self, index_keys: Tensor, layer: int) -> Tensor:
        self.new = index_keys
        return index_keys[:, :1] if self.held is None else self.held


class IndexedBatch(CountingBatch):
    """Cells of a model whose layers choose what their tokens read; tokens read together choose one after the other."""

    def _unread(
        self,
        layer: int,
        state: RaggedLayer,
        run: EqualLengthSegments,
        rows: Float[Tensor, "segments rows head_dim"],
        keys: Float[Tensor, "segments pairs head_dim"],
        new: int,
        rule: AttentionParams,
    ) -> Bool[Tensor, "segments rows pairs"]:
        choice, places = rule.choice, self._rows(state, run)
        assert isinstance(choice, Indexed)
        unread = torch.stack([choice.unread(held, row) for held, row in zip(keys, places, strict=True)])
        if new == 1:
            index = choice.index_keys.shape[2]
            latents = replace(state, pair_bytes=state.pair_bytes - 2 * index * keys.itemsize)
            self._count(latents, run, (~unread[:, 0]).sum(dim=1).tolist(), keys.shape[1] * index * keys.itemsize)
        return unread.repeat(1, rows.shape[1] // new, 1)


def attend(queries: Rows, keys: Dense, values: Dense, rule: AttentionParams) -> Rows:
    """Return outputs of the newest rows over the keys that their layer chooses: attention of a prompt."""
    assert isinstance(rule.choice, Indexed)
    (heads, new, _), tokens = queries.shape, keys.shape[1]
    unread, parts = rule.choice.unread(keys[0]), []
    for block, stop in row_blocks(queries, tokens, max(1, LOGITS_AT_ONCE // (heads * tokens))):
        end = new - tokens + stop
        mask = unread[end - block.shape[1] : end].repeat(heads, 1)[None]
        sinks = None if rule.sinks is None else rule.sinks.repeat_interleave(block.shape[1])[None]
        part = attend_segments(block.flatten(0, 1)[None], keys, values, None, rule.scaling, sinks=sinks, unread=mask)
        parts.append(part.view(block.shape))
    return torch.cat(parts, dim=1)


def use_indexers(engine: "Engine") -> None:
    """Let the layers of an engine's model read what their indexers choose, in prompts and in answers."""
    for module in engine.model.modules():
        if hasattr(module, "indexer"):
            module.forward = partial(_without_mask, module.forward)
            if module.indexer is not None:
                module.indexer.forward = partial(Indexed, module.indexer.forward)
    engine.attend = attend


def _without_mask(forward: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
    """Call the attention of a layer, which passes a part of a mask to its indexer."""
    return forward(*arrays, **{**named, "attention_mask": torch.zeros(1, 1, 1, 1)})
