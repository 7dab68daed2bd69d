"""The holder of a cell's kept pairs while it answers: by default a copy, of which everything is read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from kvbench.cache.kv_cache import KVCache
from kvbench.support.facts import Claim

if TYPE_CHECKING:
    from kvbench.models.decode.batch import DecodeBatch
    from kvbench.models.engine import Engine

COPIES = 2
"""A cell's cache and its copy in the decode batch."""


@runtime_checkable
class Held(Protocol):
    """The content of a holder: a `KVCache`, or a stand-in for one."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def layers(self) -> Sequence[Any]: ...

    @property
    def evictable(self) -> Sequence[Any]: ...

    @property
    def bytes_held(self) -> int: ...

    @property
    def bytes_allocated(self) -> int: ...


@dataclass(frozen=True)
class Holder:
    """Base class, and the default.

    group: the group of settings files that names it; its members derive from this class. store: the column of that
    name. idle: whether it is the default by another name. joins: whether cells of several prompts can be decoded in
    one batch.
    """

    group: ClassVar[str] = ""
    idle: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    @property
    def store(self) -> str:
        return "flat"

    def described(self) -> Mapping[str, Any]:
        """Return its words in the description of a cell."""
        return {}

    def claims(self) -> Iterator[Claim]:
        """Return the facts that it needs of other settings, and those that it makes untrue."""
        return iter(())

    def hold(self, cache: KVCache) -> Held:
        """Return the pairs of a cache that are held after its eviction."""
        return cache

    def batch(self, held: list[Any], engine: "Engine", room: int, question_tokens: int) -> "DecodeBatch":
        """Return a decode batch of several cells with `room` for new tokens, of which `question_tokens` precede the
        answer.

        The list is emptied: what is held can be freed as soon as the batch has its copy.
        """
        return engine.batch(shown(held), room)

    def cell_bytes(self, kept: int, new: int, pair_bytes: int) -> int:
        """Return bytes of a cell while it decodes, of `kept` pairs per head and so many `new` ones."""
        return (COPIES * kept + new) * pair_bytes

    def held_bytes(self, kept: int, itemsize: int) -> int:
        """Return bytes of kept pairs that take `kept` bytes as the model stores them, in numbers of `itemsize`
        bytes.
        """
        return kept


def shown(held: list[Any]) -> Iterator[KVCache]:
    """Yield caches, one at a time, as a decode batch copies them. The list is emptied."""
    while held:
        yield held.pop(0).shown
