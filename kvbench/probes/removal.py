"""The true eviction error: the squared change of an output when one pair is removed and the others share its weight.

The oracle of OBCache (Gu et al.), Figure 2 and section 3.5. With a the weight of the pair, v its
value and o the output, the output moves by a / (1 - a) (o - v): nothing is approximated.
"""

from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from kvbench.cache.shapes import Ranked
from kvbench.probes.query import Query
from kvbench.support.errors import UserError

Output = Literal["attention", "layer"]
"""Whose change counts: the outputs of the query heads that read the pair, or the output of the layer."""


def check_output(output: str) -> None:
    """Raise ValueError for a word that names no output."""
    if output not in get_args(Output):
        raise UserError(f"probe.output={output} is not legal; legal: {', '.join(get_args(Output))}")


def removal_errors(query: Query, cache_heads: int, projection: Float[Tensor, "hidden width"] | None = None) -> Ranked:
    """Squared errors [stored heads, evictable pairs] in float64.

    A pair of a stored head is missed by all query heads that read it. Without a projection the error is that of their
    outputs, sum_h |o'_h - o_h|^2; with the projection W of the layer it is that of the layer, |W (o' - o)|^2. Where a
    pair has all the weight of a head nothing is left to compare with: no output can move further than twice the largest
    value, so the square of that (times that of |W|) is taken, or the largest other error if that is more.
    """
    heads, head_dim = query.outputs.shape
    readers = heads // cache_heads
    errors = query.weights.new_zeros(cache_heads, query.evictable)
    matrix = None if projection is None else projection.double().to(errors.device)
    for columns, moved in query.moves():
        if matrix is None:
            parts = moved.square().sum(dim=2).view(cache_heads, readers, -1).sum(dim=1)
        else:
            together = moved.view(cache_heads, readers, -1, head_dim).transpose(1, 2).flatten(2)
            parts = (together @ matrix.T.view(cache_heads, readers * head_dim, -1)).square().sum(dim=2)
        errors[:, columns] = parts
    lost = query.saturated.view(cache_heads, readers, -1).any(dim=1)
    if lost.any():
        size = 1.0 if matrix is None else matrix.norm()
        errors[lost] = (2 * size * query.wide_values.norm(dim=2).amax()).square().maximum(errors.amax())
    return errors
