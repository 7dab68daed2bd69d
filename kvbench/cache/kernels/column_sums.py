"""Sums over the queries of the observation window, one number per cached token: which exist, and their reference.

With A_ij the attention weight that row i gives column j, Z_ij the scaled logit, o_i the output of the row and v_j the
value of the column:

attn           sum_i A_ij                                  H2O, SnapKV, TOVA
attn_max       max_i A_ij                                  KVzip, H2O of KVzip
attn_squares   sum_i A_ij^2                                OBCache-Value is this times |v_j|^2
attn_variance  unbiased variance over i of A_ij            CAKE; needs two rows
dispersion     -sum_i A_ij log(A_ij + 1e-10)               CAKE, which ranks layers by it
obcache_value  sum_i A_ij^2 |v_j|^2                        OBCache equation 4
obcache_key    sum_i (A_ij Z_ij)^2 |v_j - o_i|^2           OBCache equation 5
obcache_joint  sum_i A_ij^2 |v_j + Z_ij (v_j - o_i)|^2     OBCache equation 6
exact_removal  sum_i (A_ij / (1 - A_ij))^2 |v_j - o_i|^2   closed form of OBCache equation 1, renormalised
exact_zeroed   sum_i |o'_ij - o_i|^2                       the same, the pair's logit 0 and its value 0:
                                                           o'_ij = (o_i - A_ij v_j) / (1 - A_ij + exp(-lse_i))

A row before a column (causal mask) counts as weight 0 everywhere, also in the variance. Without `diagonal` the weight
that a row gives itself counts as 0 too. With a `softcap` Z is softcap tanh(Z / softcap).

`column_sums` writes the formulas out, so its memory grows as rows x columns x head_dim. Kernels must agree with it.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.shapes import Dense, Rows
from kvbench.support.errors import UserError

Term = Literal[
    "attn",
    "attn_max",
    "attn_squares",
    "attn_variance",
    "dispersion",
    "obcache_value",
    "obcache_key",
    "obcache_joint",
    "exact_removal",
    "exact_zeroed",
]
TERMS: tuple[Term, ...] = get_args(Term)
WITH_VALUES = frozenset({"obcache_value", "obcache_key", "obcache_joint", "exact_removal", "exact_zeroed"})
"""Terms that read the values; the others read keys alone."""
WITH_OUTPUTS = WITH_VALUES - {"obcache_value"}
"""Terms that also read the outputs of the rows."""
WITHOUT_DIAGONAL = frozenset({"attn", "attn_max", "attn_squares", "attn_variance"})
"""Terms that can leave out the weight that a row gives itself."""
BOUNDED: tuple[Term, ...] = ("exact_removal", "exact_zeroed")
"""Terms that are replaced by an upper bound where float32 does not resolve them: see RESOLVED."""
RESOLVED = 1e-5
"""The smallest 1 - A whose quotient still has two good digits in float32 (for `exact_zeroed`: the smallest
(1 - A + E) / (1 + E) with E = exp(-lse)). Below it the largest possible change of the output is taken instead:
(|v_j| + the largest norm of a value of the head)^2."""
EPSILON = 1e-10
"""Added inside CAKE's logarithm."""
Sums = dict[Term, Float[Tensor, "heads tokens"]]


def check_terms(terms: Sequence[str], rows: int, diagonal: bool = True) -> None:
    """Raise UserError for unknown or no terms, the variance of one row, and terms that need the diagonal."""
    unknown = [term for term in terms if term not in TERMS]
    if unknown or not terms:
        raise UserError(f"terms={','.join(terms) or 'none'}: choose some of {', '.join(TERMS)}")
    if "attn_variance" in terms and rows < 2:
        raise UserError(f"attn_variance of {rows} observed row: it needs two")
    if not diagonal and not set(terms) <= WITHOUT_DIAGONAL:
        raise UserError(f"diagonal=False with {','.join(terms)}: only for {', '.join(sorted(WITHOUT_DIAGONAL))}")


def column_sums(
    queries: Rows,
    keys: Dense,
    values: Dense,
    outputs: Rows,
    lse: Float[Tensor, "heads queries"],
    scaling: float,
    terms: Sequence[Term],
    softcap: float | None = None,
    diagonal: bool = True,
) -> Sums:
    """Return the requested sums over the newest rows of a dense layer, in float32 or wider; head h reads KV head h //
    group.

    Raises UserError as `check_terms` does.
    """
    heads, rows, _ = queries.shape
    kv_heads, tokens, _ = keys.shape
    check_terms(terms, rows, diagonal)
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
    others_weight = -torch.expm1((logits - lse.to(wide)[..., None]).clamp_max(0)).masked_fill(hidden, -1)
    own = o[:, :, None]

    def zeroed() -> Tensor:
        """Return outputs [heads, queries, tokens, head_dim] without a pair."""
        remaining = others_weight + (-lse.to(wide)).exp()[..., None]
        return (own - weights[..., None] * v[:, None]) / remaining[..., None]

    zeroing = lse.to(wide).sigmoid()[..., None] * others_weight + (-lse.to(wide)).sigmoid()[..., None]
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
            others_weight < RESOLVED, furthest, (weights / others_weight.clamp_min(RESOLVED)).square() * apart
        ).sum(1),
        "exact_zeroed": lambda: (
            torch.where(zeroing < RESOLVED, furthest, (zeroed() - own).square().sum(-1)).masked_fill(hidden, 0).sum(1)
        ),
    }
    return {term: every[term]() for term in terms}
