"""The sums over voting rows that can be asked for, by name, and which inputs each reads.

With A_ij the weight that row i gives column j, Z_ij its scaled logit, o_i the row's output and v_j the column's value:

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

A row that stands before a column gives it nothing: it counts 0 everywhere, also among the rows of the variance. Without
`diagonal` a row gives itself nothing either. With a `softcap` Z is softcap tanh(Z / softcap).
"""

from collections.abc import Sequence
from typing import Literal, get_args

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
WITH_VALUES: frozenset[str] = frozenset(
    {"obcache_value", "obcache_key", "obcache_joint", "exact_removal", "exact_zeroed"}
)
"""BudgetInfo that read the values; the others read keys alone."""
WITH_OUTPUTS: frozenset[str] = WITH_VALUES - {"obcache_value"}
"""BudgetInfo that read the outputs of the rows too."""
RESOLVED = 1e-5
"""The smallest 1 - A whose quotient still has two good digits in float32. Below it the most that a removal can do
stands in: (|v_j| + the largest norm of a value of the head)^2."""
BOUNDED: tuple[Term, ...] = ("exact_removal", "exact_zeroed")
"""BudgetInfo in which it does; `exact_zeroed` where (1 - A + E) / (1 + E) is smaller, E = exp(-lse)."""
EPSILON = 1e-10
"""Added inside CAKE's logarithm."""


WITHOUT_DIAGONAL: frozenset[str] = frozenset({"attn", "attn_max", "attn_squares", "attn_variance"})
"""BudgetInfo that can leave out what a row gives itself."""


def check(terms: Sequence[Term], rows: int, diagonal: bool = True) -> None:
    """Raise ValueError for a term that is none, for none at all, for the variance of one row, and for terms
    that are made of more than weights where `diagonal` is False.
    """
    unknown = [term for term in terms if term not in TERMS]
    if unknown or not terms:
        raise UserError(f"terms={','.join(terms) or 'none'}: choose some of {', '.join(TERMS)}")
    if "attn_variance" in terms and rows < 2:
        raise UserError(f"attn_variance of {rows} voting row: it needs two")
    if not diagonal and not set(terms) <= WITHOUT_DIAGONAL:
        raise UserError(f"diagonal=False with {','.join(terms)}: only for {', '.join(sorted(WITHOUT_DIAGONAL))}")
