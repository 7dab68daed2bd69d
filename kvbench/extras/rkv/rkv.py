"""R-KV: the attention that a pair receives, less how much its key repeats the others.

R-KV (Cai et al. 2025, https://arxiv.org/abs/2505.24133), as in the files rkv/compression/r1_kv.py and rkv/utils.py of
its code. Both parts are distributions over the tokens.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F

from kvbench.cache.attention import logits_by_chunk
from kvbench.cache.kernels.choice import kernel_module
from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Dense, Ranked, Scores
from kvbench.eviction.scores.ragged import Merge, Planes, RaggedHeads, Slots
from kvbench.eviction.scores.score import RawTerm, Reduce, WindowScore
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError

ROW_BLOCK = 64
"""Observed rows, or keys that are compared with all others, at a time."""


@dataclass(frozen=True)
class RKV(WindowScore):
    """importance I_j - (1 - importance) R_j, where I is pooled by the policy.

    I_j = mean over the observed rows i of softmax_j(max over the group of the logits Z_ij), over the tokens before the
    window; tokens of the window have 0. If the window is the whole prompt, over all tokens that a row sees.

    R = softmax(mean over all keys i of S_ij), S the cosines of the keys, where S_ii = 0 and, if there is any j with
    S_ij > threshold, the newest of these counts 0 too: the newest of several like tokens is no repetition. unlike: what
    happens to a key without such a j. `first`, as in the code: its cosine with token 0 counts 0. `none`: nothing.
    """

    importance: Annotated[
        int | float, Help("R1: the share of the attention, as its authors evaluate; 0.07: as its class R1KV")
    ] = 0.1
    threshold: Annotated[int | float, Help("keys of a larger cosine are alike")] = 0.5
    unlike: Annotated[
        Literal["first", "none"],
        Help("R2: as in rkv/utils.py, a key that no other is like loses its cosine with token 0; none: nothing"),
    ] = "first"
    name: str = "rkv"
    signed: ClassVar[bool] = True
    row_term: ClassVar[RawTerm] = "logit"
    row_merge: ClassVar[Merge] = "max"

    def __post_init__(self) -> None:
        if not 0 <= self.importance <= 1:
            raise UserError(f"score.importance={self.importance}: the share of the attention is from 0 to 1, e.g. 0.1")

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        assert window is not None
        keys, tokens, count = layer.dense[0], layer.lengths[0], window.queries.shape[1]
        stop = tokens - count or tokens
        total = torch.zeros(layer.cache_heads, tokens, device=keys.device)
        for start in range(0, count, ROW_BLOCK):
            block = window.part(start, min(start + ROW_BLOCK, count))
            visible = keys[:, : tokens - count + start + block.queries.shape[1]]
            chunks = logits_by_chunk(block.queries, visible, block.scaling, block.softcap)
            grouped = (part.view(layer.cache_heads, -1, *part.shape[1:]).amax(dim=1) for _, part in chunks)
            weights = torch.cat(list(grouped), dim=2)[..., :stop].softmax(dim=2)
            total[:, : weights.shape[2]] += weights.sum(dim=1)
        return total / count

    def refine(self, shaped: Ranked, layer: LayerCache) -> Ranked:
        repeats = self.redundancy(layer.dense[0])[:, : shaped.shape[1]]
        repeats = repeats.repeat_interleave(shaped.shape[0] // repeats.shape[0], dim=0)
        return self.importance * shaped - (1 - self.importance) * repeats

    def raw_segments(self, heads: RaggedHeads, sums: Slots | None) -> Slots:
        assert sums is not None
        return sums.softmax(dim=1)

    def refine_segments(self, heads: RaggedHeads, pooled: Planes, out: Planes) -> Planes:
        settings = self.threshold, self.unlike == "first", self.importance
        return kernel_module("cosines").rkv(pooled, heads.keys, heads.segments, *settings, out)

    def redundancy(self, keys: Dense) -> Scores:
        """R of every key, one row per KV head."""
        directions = F.normalize(keys.float(), dim=-1)
        places = torch.arange(keys.shape[1], device=keys.device)
        total = torch.zeros(keys.shape[:2], device=keys.device)
        for part in places.split(ROW_BLOCK):
            cosines = directions[:, part] @ directions.mT
            cosines[:, part - part[0], part] = 0
            newest = torch.where(cosines > self.threshold, places, -1).amax(dim=2, keepdim=True)
            if self.unlike == "first":
                newest = newest.clamp_min(0)
            total += torch.where(places == newest, 0, cosines).sum(dim=1)
        return (total / keys.shape[1]).softmax(dim=1)
