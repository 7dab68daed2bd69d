"""When eviction happens: the variable that changes published numbers most, and therefore part of every row."""

from dataclasses import dataclass
from typing import Annotated, Literal

from kvbench.support.annotations import Means
from kvbench.support.errors import UserError

EvictAfter = Literal["prompt", "context"]


@dataclass(frozen=True)
class Schedule:
    """When eviction happens.

    evict_after: with `prompt` (query-aware) the question is part of the observation window; with `context`
        (query-agnostic) it is read over the kept KV pairs, at its original positions.

    Raises UserError for a number below 1.
    """

    evict_after: Annotated[
        EvictAfter, Means("prompt: the question affects the scores; context: it is read after eviction")
    ] = "prompt"
    prefill_block: Annotated[
        int | None,
        Means("a number of tokens: evict after every block of that size; later blocks attend only to what was kept"),
    ] = None
    decode_every: Annotated[
        int | None, Means("a number of tokens: evict again after every so many decoded tokens; null: the cache grows")
    ] = None

    def __post_init__(self) -> None:
        for name in ("prefill_block", "decode_every"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value < 1):
                raise UserError(f"schedule.{name}={value}: allowed: a number of tokens, 1 or more, or null for never")

    @property
    def steps(self) -> bool:
        """Whether there is more than one eviction."""
        return self.prefill_block is not None or self.decode_every is not None

    def __str__(self) -> str:
        counted = ((name, getattr(self, name)) for name in ("prefill_block", "decode_every"))
        return " ".join((self.evict_after, *(f"{name}={value}" for name, value in counted if value is not None)))
