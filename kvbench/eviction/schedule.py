"""When the cache is cut: the variable that changes published numbers most, and so part of every row."""

from dataclasses import dataclass
from typing import Literal

from kvbench.support.errors import UserError

EvictAfter = Literal["prompt", "context"]


@dataclass(frozen=True)
class Schedule:
    """What is read before the cut, and what is cut when.

    `evict_after=prompt` (query-aware): context and question are read whole, the question votes, then the cache is cut
    once. `evict_after=context` (query-agnostic): the context alone is read and cut; the question is read over what is
    left of it, at the positions it would have had.

    prefill_block: None, or that what is read before the cut is read in blocks of so many tokens with a cut after each:
    later blocks see what is left of earlier ones. decode_every: None, so that the cache grows with the answer, or that
    it is cut again whenever so many tokens were read since the last cut.

    Raises ValueError for a number below 1.
    """

    evict_after: EvictAfter = "prompt"
    prefill_block: int | None = None
    decode_every: int | None = None

    def __post_init__(self) -> None:
        for name in ("prefill_block", "decode_every"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value < 1):
                raise UserError(f"schedule.{name}={value}: a number of tokens, 1 or more, or null for none")

    @property
    def steps(self) -> bool:
        """Whether there is more than the one cut."""
        return self.prefill_block is not None or self.decode_every is not None

    def __str__(self) -> str:
        counted = ((name, getattr(self, name)) for name in ("prefill_block", "decode_every"))
        return " ".join((self.evict_after, *(f"{name}={value}" for name, value in counted if value is not None)))
