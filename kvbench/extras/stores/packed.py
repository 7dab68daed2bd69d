"""Stores: kept pairs as copies of fewer bits, or without channels of keys."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from kvbench.cache.kv_cache import KVCache
from kvbench.extras.stores.quantized import FORMATS, PACKINGS, PackedCache, Packing, pack_cache
from kvbench.extras.stores.quantized_batch import QuantizedBatch
from kvbench.models.decode.batch import DecodeBatch
from kvbench.models.decode.holder import Holder
from kvbench.support.facts import FULL_CACHE, NO_LATER_EVICTION, OWN_ROTATION, PLAIN_COPY, PROMPT, Claim

if TYPE_CHECKING:
    from kvbench.models.engine import Engine


@dataclass(frozen=True)
class Flat(Holder):
    """A copy of the pairs as the model stores them."""

    name: str = "flat"


@dataclass(frozen=True)
class Packed(Holder):
    """A quantised copy, or one without the channels that a step removed.

    name: the format, or flat. whole: the newest keys that have all channels. pruned: the part of all channels that is
    removed.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("whole", "pruned")
    name: str = "flat"
    whole: int = 0
    pruned: float = 0.0
    group: ClassVar[str] = "store"
    idle: ClassVar[bool] = False
    joins: ClassVar[bool] = False

    @property
    def packing(self) -> Packing | None:
        """The format; None for pairs that are not quantised."""
        return next((packing for packing in PACKINGS if packing == self.name), None)

    @property
    def store(self) -> str:
        return self.name

    def described(self) -> Mapping[str, Any]:
        return {"store": self.name}

    def claims(self) -> Iterator[Claim]:
        facts = (FULL_CACHE, NO_LATER_EVICTION, OWN_ROTATION, PROMPT)
        needs = dict.fromkeys(facts, "is quantized once, after eviction")
        yield Claim(f"store={self.name}", "store=flat", needs, {PLAIN_COPY: "quantizes the pairs that are kept"})

    def hold(self, cache: KVCache) -> PackedCache:
        return pack_cache(cache, self.packing, self.whole)

    def batch(self, held: list[Any], engine: "Engine", room: int, question_tokens: int) -> DecodeBatch:
        return QuantizedBatch(held, engine.max_batch, room)

    def cell_bytes(self, kept: int, new: int, pair_bytes: int) -> int:
        return (kept + new) * pair_bytes  # packed, and one layer at a time as attention reads it

    def held_bytes(self, kept: int, itemsize: int) -> int:
        if self.packing is None:
            return int(kept * (1 - self.pruned / 2))  # of keys, not of values
        return int(kept * FORMATS[self.packing].bytes_each(itemsize) / itemsize)
