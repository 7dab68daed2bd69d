"""When eviction happens: the variable that changes published numbers most, and therefore part of every row."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from kvbench.support.annotations import Help
from kvbench.support.errors import UserError
from kvbench.support.facts import (
    ANSWER,
    FULL_CACHE,
    LASTING,
    LATER_EVICTION,
    NO_BLOCKS,
    NO_LATER_EVICTION,
    ONE_EVICTION,
    QUESTION,
    QUESTION_READ,
    SCORED_BEFORE_ANSWER,
    SCORED_ONCE,
    SIZED_BUDGET,
    TEXT_IN_BLOCKS,
    TURNS,
    WHOLE_PROMPT,
    Claim,
)

EvictAfter = Literal["prompt", "context"]
STEPS = ("prefill_block", "decode_every", "answer_budget")
"""The numbers of a schedule with more than one eviction."""
Counted = Literal["answer", "all"]
Turn = Literal["turn"]
TURN: Turn = "turn"


@dataclass(frozen=True)
class Schedule:
    """When eviction happens.

    evict_after: with `prompt` (query-aware) the question is part of the observation window; with `context`
        (query-agnostic) it is read over the kept KV pairs, at its original positions.
    answer_budget: evictions from the answer leave what is kept of the prompt as it is, and keep besides so many KV
        pairs per head of all that was read since. Without it a head keeps as many pairs as after the prompt, old or
        new.
    prefill_block: after `turn` blocks are the turns of a run of an agent, and the budget counts all tokens so far.

    Raises UserError for a number below 1, and for settings of an answer that is not evicted from.
    """

    evict_after: Annotated[
        EvictAfter, Help("prompt: the question affects the scores; context: it is read after eviction")
    ] = "prompt"
    prefill_block: Annotated[
        int | Turn | None,
        Help(
            "a number of tokens: evict after every block of that size; later blocks attend only to what was kept; "
            "turn: blocks are the turns of a run of an agent"
        ),
    ] = None
    decode_every: Annotated[
        int | None, Help("a number of tokens: evict again after every so many decoded tokens; null: the cache grows")
    ] = None
    decode_counts: Annotated[
        Counted,
        Help(
            "what decode_every counts. answer: tokens since the last eviction; all: tokens of the prompt too, as R-KV's"
            " code (R3): evict after each token that follows a multiple of decode_every"
        ),
    ] = "answer"
    answer_budget: Annotated[
        int | None,
        Help("a number of pairs: the answer's own budget; what is left of the prompt stays. null: one budget for both"),
    ] = None

    def __post_init__(self) -> None:
        for name in STEPS:
            value = getattr(self, name)
            if value is not None and value != TURN and (isinstance(value, bool) or value < 1):
                raise UserError(f"schedule.{name}={value}: allowed: a number of tokens, 1 or more, or null for never")
        if self.answer_budget is not None and self.decode_every is None:
            raise UserError(
                f"schedule.answer_budget={self.answer_budget}, but the answer is not evicted from: add "
                "schedule.decode_every=1, or another number of tokens"
            )
        if self.decode_counts == "all" and (self.decode_every is None or self.evict_after == "context"):
            given = f"decode_every={self.decode_every or 'null'} and evict_after={self.evict_after}"
            raise UserError(
                f"schedule.decode_counts=all, but {given}: the prompt counts towards evictions from its answer; use "
                "schedule.evict_after=prompt with a number, e.g. schedule.decode_every=128, or decode_counts=answer"
            )

    def claims(self) -> Iterator[Claim]:
        """Yield the facts that it needs of other settings, and those that it makes untrue."""
        if self.evict_after == "context":
            early = "evicts before the question is read"
            breaks = {QUESTION_READ: early, WHOLE_PROMPT: "evicts before all of it is read"}
            yield Claim("schedule.evict_after=context", "schedule.evict_after=prompt", {QUESTION: early}, breaks)
        if self.prefill_block is not None:
            needs = {TEXT_IN_BLOCKS: "evicts after every block"}
            if self.prefill_block == TURN:
                needs[TURNS] = "evicts after each turn of a run"
            facts = (FULL_CACHE, ONE_EVICTION, SCORED_ONCE, SCORED_BEFORE_ANSWER)
            breaks = dict.fromkeys(facts, "evicts while the prompt is read") | {
                NO_BLOCKS: "evicts by the newest tokens of every block",
                QUESTION_READ: "evicts before the question is read",
                WHOLE_PROMPT: "evicts before all of it is read",
            }
            yield Claim(f"schedule.prefill_block={self.prefill_block}", "schedule.prefill_block=null", needs, breaks)
        if self.decode_every is not None:
            facts = (LASTING, NO_LATER_EVICTION, ONE_EVICTION, SCORED_BEFORE_ANSWER)
            breaks = dict.fromkeys(facts, "evicts from the answer too")
            yield Claim(f"schedule.decode_every={self.decode_every}", "schedule.decode_every=null", breaks=breaks)
        elif self.prefill_block is None:
            breaks = {LATER_EVICTION: "evicts nothing after the prompt"}
            yield Claim("schedule.decode_every=null", "schedule.decode_every=1, or another number", breaks=breaks)
        if self.answer_budget is not None:
            needs = {ANSWER: "is the budget of an answer", SIZED_BUDGET: "is a second number of KV pairs"}
            yield Claim(f"schedule.answer_budget={self.answer_budget}", "schedule.answer_budget=null", needs)

    @property
    def steps(self) -> bool:
        """Whether there is more than one eviction."""
        return self.prefill_block is not None or self.decode_every is not None

    @property
    def once(self) -> "Schedule":
        """The same with a single eviction."""
        return replace(self, decode_counts="answer", **dict.fromkeys(STEPS))

    def pending(self, tokens: int) -> int:
        """Return how many of the `tokens` of a prompt count towards the first eviction from its answer."""
        counts_prompt = self.decode_counts == "all" and self.decode_every is not None and tokens > 0
        return (tokens - 1) % self.decode_every if counts_prompt else 0  # type: ignore[operator]

    def block_of(self, tokens: int) -> int | None:
        """Return the most tokens of a prompt of `tokens` that are read before one is evicted; None without blocks."""
        return tokens if self.prefill_block == TURN else self.prefill_block

    def __str__(self) -> str:
        counted = ((name, getattr(self, name)) for name in STEPS)
        words = [self.evict_after, *(f"{name}={value}" for name, value in counted if value is not None)]
        return " ".join(words if self.decode_counts == "answer" else [*words, f"decode_counts={self.decode_counts}"])
