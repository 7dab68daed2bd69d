"""When eviction happens: the variable that changes published numbers most, and therefore part of every row."""

from dataclasses import dataclass
from typing import Literal

from kvbench.support.errors import UserError

EvictAfter = Literal["prompt", "context"]


@dataclass(frozen=True)
class Schedule:
    """When eviction happens.

    evict_after: `prompt` (query-aware) reads context and question, then evicts; the question is part of the observation
        window. `context` (query-agnostic) reads the context, evicts, and then reads the question over the kept KV
        pairs, at its original positions.
    prefill_block: None, or the size of the blocks in which the prompt is read, with an eviction after each block. Later
        blocks attend only to what was kept.
    decode_every: None: the cache grows with the answer. Otherwise: evict again after every so many tokens.

    Raises UserError for a number below 1.
    """

    evict_after: EvictAfter = "prompt"
    prefill_block: int | None = None
    decode_every: int | None = None

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
