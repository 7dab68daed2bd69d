"""Column sums written as their formulas: the truth. Every array of rows x columns is there at once, as in Algorithm 1
of OBCache, and v - o is taken directly, so that memory grows as rows x columns x head_dim.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kernels.column_sums.terms import EPSILON, RESOLVED, WITH_OUTPUTS, Term, check

Sums = dict[Term, Float[Tensor, "heads tokens"]]


def column_sums(
    queries: Float[Tensor, "heads queries head_dim"],
    keys: Float[Tensor, "kv_heads tokens head_dim"],
    values: Float[Tensor, "kv_heads tokens head_dim"],
    outputs: Float[Tensor, "heads queries head_dim"],
    lse: Float[Tensor, "heads queries"],
    scaling: float,
    terms: Sequence[Term],
    softcap: float | None = None,
    diagonal: bool = True,
) -> Sums:
    """The asked sums over the newest rows of a dense layer, in float32 or wider; query head h reads KV head h // group.

    Raises ValueError for what `terms.check` refuses.
    """
    heads, rows, _ = queries.shape
    kv_heads, tokens, _ = keys.shape
    check(terms, rows, diagonal)
    wide = torch.float64 if queries.dtype == torch.float64 else torch.float32
    group = heads // kv_heads
    q, o = queries.to(wide), outputs.to(wide)
    k, v = (part.to(wide).repeat_interleave(group, dim=0) for part in (keys, values))
    positions = torch.arange(tokens - rows, tokens, device=q.device)[:, None]
    hidden = torch.arange(tokens, device=q.device) > positions
    logits = q @ k.mT * scaling
    if softcap is not None:
        logits = (logits / softcap).tanh() * softcap
    logits = logits.masked_fill(hidden, 0)
    weights = (logits - lse.to(wide)[..., None]).exp().masked_fill(hidden, 0)
    if not diagonal:
        weights = weights.masked_fill(torch.arange(tokens, device=q.device) == positions, 0)
    v2 = v.square().sum(-1)[:, None]
    apart = aside = weights
    if WITH_OUTPUTS & set(terms):
        difference = v[:, None] - o[:, :, None]
        apart = difference.square().sum(-1)
        aside = (v[:, None] * difference).sum(-1)
    furthest = (v2.sqrt() + v2.amax(-1, keepdim=True).sqrt()).square()
    rest = -torch.expm1((logits - lse.to(wide)[..., None]).clamp_max(0)).masked_fill(hidden, -1)
    own = o[:, :, None]

    def zeroed() -> Tensor:
        """Outputs [heads, queries, tokens, head_dim] without a pair."""
        left = rest + (-lse.to(wide)).exp()[..., None]
        return (own - weights[..., None] * v[:, None]) / left[..., None]

    zeroing = lse.to(wide).sigmoid()[..., None] * rest + (-lse.to(wide)).sigmoid()[..., None]
    every = {
        "attn": lambda: weights.sum(1),
        "attn_max": lambda: weights.amax(1),
        "attn_squares": lambda: weights.square().sum(1),
        "attn_variance": lambda: weights.var(dim=1),
        "dispersion": lambda: -(weights * (weights + EPSILON).log()).sum(1),
        "obcache_value": lambda: (weights.square() * v2).sum(1),
        "obcache_key": lambda: ((weights * logits).square() * apart).sum(1),
        "obcache_joint": lambda: (weights.square() * (v2 + 2 * logits * aside + logits.square() * apart)).sum(1),
        "exact_removal": lambda: torch.where(
            rest < RESOLVED, furthest, (weights / rest.clamp_min(RESOLVED)).square() * apart
        ).sum(1),
        "exact_zeroed": lambda: (
            torch.where(zeroing < RESOLVED, furthest, (zeroed() - own).square().sum(-1)).masked_fill(hidden, 0).sum(1)
        ),
    }
    return {term: every[term]() for term in terms}
