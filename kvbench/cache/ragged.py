"""Ragged layers by their heads of equal length: what is dense is computed at once, only truly ragged heads apart."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

import torch

from kvbench.cache.kv_cache import LayerCache


def alike(layer: LayerCache) -> Iterator[tuple[tuple[int, ...], LayerCache]]:
    """The stored heads of a layer that hold as many pairs as each other, as dense layers of their own."""
    if len(set(layer.lengths)) == 1:
        yield tuple(range(layer.cache_heads)), layer
        return
    for length in sorted(set(layer.lengths)):
        heads = tuple(head for head, held in enumerate(layer.lengths) if held == length)
        yield heads, layer.of_heads(heads)


def reunited(parts: Mapping[tuple[int, ...], LayerCache]) -> LayerCache:
    """One layer of what `alike` took apart: layers by the stored heads that they are."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    heads = [head for part in parts for head in part]
    places = sorted(range(len(heads)), key=heads.__getitem__)
    lengths = [length for part in parts.values() for length in part.lengths]
    starts = [0, *accumulate(lengths)]
    pairs = torch.cat([torch.arange(starts[place], starts[place + 1]) for place in places])
    every = list(parts.values())
    whole = replace(
        every[0],
        query_heads=sum(part.query_heads for part in every),
        keys=torch.cat([part.keys for part in every]),
        values=torch.cat([part.values for part in every]),
        positions=torch.cat([part.positions for part in every]),
        offsets=tuple(starts),
        state={name: torch.cat([part.state[name] for part in every]) for name in every[0].state},
    )
    return whole.gather(pairs.to(whole.keys.device), [lengths[place] for place in places])
