"""Channels of keys that are removed, the same ones for all pairs of a cache head."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Kept
from kvbench.eviction.allocation.shares import Variant
from kvbench.eviction.step import Kind
from kvbench.extras.stores.packed import Packed
from kvbench.extras.stores.quantized import CHANNELS
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError
from kvbench.support.facts import EVICTS, MODEL_KEYS, ONE_EVICTION, PLAIN_COPY, PROMPT, UNCHANGED, Claim


@dataclass(frozen=True)
class ThinK(Kind):
    """ThinK (Xu et al. 2024, https://arxiv.org/abs/2407.21018): each cache head drops the channels of its kept keys
    that weigh least in the logits of the newest queries.

    The weight of channel d is mean_i q_id^2 times mean_j k_jd^2, with i over the newest `window` queries of all query
    heads of the cache head, and j over its kept pairs. The lowest int(`ratio` head_dim) channels are removed from all
    keys but the newest `recent` ones. Tokens read later have all channels.
    """

    kind: Literal["think"] = "think"
    ratio: Annotated[int | float, Help("the fraction of channels that is removed, 0.4 as in the paper")] = 0.4
    window: Annotated[int, Help("newest queries that are read")] = 32
    recent: Annotated[int, Help("newest kept keys that keep all channels; kvpress: 0")] = 32
    part: ClassVar[str] = "apply"
    reads_rows: ClassVar[bool] = True
    always: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.ratio < 1:
            raise UserError(f"policy.apply.ratio={self.ratio}: allowed: from 0 to below 1, a part of the channels")
        if self.window < 1:
            raise UserError(f"policy.apply.window={self.window}: allowed: 1 or more queries, e.g. 32")
        if self.recent < 0:
            raise UserError(f"policy.apply.recent={self.recent}: allowed: 0 or more keys, e.g. 32")

    def claims(self, policy: Any) -> Iterator[Claim]:
        needs = dict.fromkeys((PROMPT, ONE_EVICTION), "follows the eviction of a prompt only")
        breaks = {
            UNCHANGED: "changes kept pairs",
            MODEL_KEYS: "makes keys that no position has rotated (cam and nearest make none)",
        }
        if self.ratio:
            breaks[PLAIN_COPY] = "removes channels of keys"
        else:
            needs[EVICTS] = "removes nothing"
        yield Claim(self.setting, "policy.apply=drop", needs, breaks)

    def holder(self, holder: Any) -> Any:
        return Packed(getattr(holder, "name", "flat"), self.recent, self.ratio) if self.ratio else holder

    def rows(self, window: int, tokens: int) -> int:
        return min(self.window, tokens)

    def removed(self, head_dim: int) -> int:
        """Return how many channels are removed."""
        return int(head_dim * self.ratio)

    def change(
        self, before: LayerCache, kept: Kept, after: LayerCache, window: ObservationWindow | None, variant: Variant
    ) -> LayerCache:
        assert window is not None
        head_dim = after.keys.shape[1]
        if (removed := self.removed(head_dim)) == 0:
            return after
        by_query_head = window.queries.float().square().mean(dim=1)
        squares = by_query_head.unflatten(0, (after.cache_heads, -1)).mean(dim=1)
        keys, channels = after.keys.clone(), []
        for head, (start, stop) in enumerate(zip(after.offsets, after.offsets[1:], strict=False)):
            weights = squares[head] * after.keys[start:stop].float().square().mean(dim=0)
            lowest = weights.argsort(stable=True)[:removed]
            keys[start : max(start, stop - self.recent), lowest] = 0
            is_stored = torch.ones(head_dim, dtype=torch.bool, device=keys.device)
            is_stored[lowest] = False
            channels.append(is_stored.nonzero()[:, 0])
        return replace(after, keys=keys, by_head={**after.by_head, CHANNELS: torch.stack(channels)})
