"""What stands in for the exact error of removing a pair that has all the weight of a row.

With a the weight of the pair, the outputs with and without it are o and (o - a v) / (1 - a). For a close to 1 that is a
quotient of two differences that float32 does not resolve, and for a = 1 there is nothing left to attend to. The change
is never larger than |v| plus the largest norm of a value, so that bound is taken: such a pair is worth as much as
can be.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache
from kvbench.eviction.scores.window import Chunk


def furthest(layer: LayerCache) -> Callable[[Chunk], Float[Tensor, "heads 1 columns"]]:
    """A function of a chunk: (|v_j| + largest norm of a value of the KV head)^2 of each column."""
    largest = layer.dense[1].float().norm(dim=-1).amax(dim=1)

    def bound(chunk: Chunk) -> Float[Tensor, "heads 1 columns"]:
        return (chunk.value_norms.sqrt() + largest.repeat_interleave(chunk.group)[:, None, None]).square()

    return bound
