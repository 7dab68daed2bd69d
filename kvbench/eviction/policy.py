"""An eviction policy as data: observation window, pooling, protected tokens, and the division of the budget."""

from collections.abc import Iterator, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from math import floor
from typing import Annotated, Any, ClassVar, Literal, get_args

from kvbench.eviction.allocation.allocation import Heads, Layers, UniformHeads, UniformLayers
from kvbench.eviction.allocation.shares import AllocationBudget, Variant
from kvbench.eviction.budget import Budget, ThresholdBudget
from kvbench.eviction.pooling import ORDERS, Group, Pool, Shaping
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.scores.score import Reduce
from kvbench.eviction.step import Step, Units
from kvbench.support import facts
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError
from kvbench.support.facts import Claim, check

Layout = Literal["kv_heads", "query_heads"]
StateRule = Literal["accumulate", "overwrite", "none"]
SlotOrder = Literal["position", "score"]
Span = Literal["prompt", "context"]
Crossed = Literal["score", "budget"]
QUESTION = "question"
"""As window or recent: the tokens of a prompt from its question on."""
ASSUMED_QUESTION = 16
"""Their number where the prompt is not known yet, as in a plan."""
PROMPT = "prompt"
"""As sink: all tokens of a prompt."""
TEMPLATE = "template"
"""As window_skips: the tokens of a prompt behind the user's text."""
ALLOWED = {
    "reduce": get_args(Reduce),
    "group": (None, *get_args(Group)),
    "variant": get_args(Variant),
    "layout": get_args(Layout),
    "state": get_args(StateRule),
    "slot_order": get_args(SlotOrder),
    "budget_span": get_args(Span),
}
"""Allowed values of the fields that are words."""


@dataclass(frozen=True)
class TokenFraction:
    """A number of tokens as a fraction (`part`, in 0..1) of the prompt or budget, rounded down, at most `most`."""

    part: float
    of: Literal["budget", "prompt"] = "budget"
    most: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.part <= 1:
            raise UserError(f"part={self.part}: allowed: 0 to 1, a fraction of the {self.of}, e.g. 0.05")
        if self.of not in ("budget", "prompt"):
            raise UserError(f"of={self.of}: allowed: budget, prompt")

    def __call__(self, tokens: int, pairs: int) -> int:
        """Return the number for a prompt of `tokens` of which `pairs` are kept."""
        number = floor(round(self.part * (pairs if self.of == "budget" else tokens), 6))
        return number if self.most is None else min(number, self.most)


@dataclass(frozen=True)
class Phase:
    """Fields of a policy that differ in one phase; None: as in the policy."""

    window: int | Literal["all"] | None = None
    reduce: Reduce | None = None
    group: Group | None = None
    order: tuple[Shaping, Shaping] | None = None


@dataclass(frozen=True)
class Phases:
    """Phases with fields of their own. decode: the evictions after the prompt's."""

    decode: Annotated[Phase, Help("fields in the evictions after the prompt")] = field(default_factory=Phase)


@dataclass(frozen=True)
class Policy:
    """Everything about an eviction method except its score and its budget (a kvpress Press is a policy plus a score).

    Each field has its help. Beyond it:

    window, recent: `question` is the tokens from the question on; a `TokenFraction` is a part of the prompt or budget.
    window_skips: scores are those that the prompt would have without these tokens, which stay inside the budget. There
        are none behind the text of a raw prompt, nor in evictions before the question and in later ones.
    sink: with `prompt` only the answer is evicted from. `recent` counts from the end of the window.
    budget_span: with `sink=prompt` the budget is the answer's.
    pool, group, order: see `kvbench.eviction.pooling`; heads, layers: `kvbench.eviction.allocation`; state,
        slot_order: `kvbench.eviction.incremental`; steps, what follows the scores: `kvbench.eviction.step`.
    phases: `decoding` is the policy of that phase.
    accepts: without `budget` it keeps everything; without `score` it has a fixed score.

    Golden cases use the same field names. Raises UserError for values that are not allowed or contradict each other.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("steps",)
    name: str
    window: Annotated[
        int | Literal["all", "question"] | TokenFraction,
        Help("the newest queries whose attention counts; all: every query of the prompt"),
    ] = 16
    window_skips: Annotated[
        int | Literal["template"],
        Help("newest tokens that it leaves out, which are kept; template: all behind the user's text"),
    ] = 0
    reduce: Annotated[
        Reduce,
        Help("over these queries: sum, mean, max, or observed_attention (the mean over those that see the token)"),
    ] = "sum"
    pool: Annotated[
        Pool | None, Help("a score becomes the max or avg of its neighbourhood: {kind:max,size:7}, size is odd")
    ] = None
    group: Annotated[Group | None, Help("null: the score's default (attn mean, obcache sum)")] = None
    order: Annotated[
        tuple[Shaping, Shaping], Help("which comes first: pooling, or the reduction over the query heads of a KV head")
    ] = ("group", "pool")
    sink: Annotated[
        int | Literal["head", "prompt"],
        Help("first tokens that are always kept; head: all before the sample's own text"),
    ] = 0
    recent: Annotated[int | Literal["question"] | TokenFraction, Help("newest tokens that are always kept")] = 0
    heads: Annotated[Heads, Help("how a layer's budget is divided over its heads")] = field(
        default_factory=UniformHeads
    )
    layers: Annotated[Layers, Help("how the budget is divided over layers")] = field(default_factory=UniformLayers)
    variant: Annotated[
        Variant, Help("official: the rule of the published code where it differs; the policy's page says how")
    ] = "paper"
    layout: Annotated[
        Layout, Help("query_heads: every query head has its own copy of the cache, as in some published code")
    ] = "kv_heads"
    state: Annotated[
        StateRule, Help("a later eviction uses the rows since the previous one; accumulate: the sum over all rows")
    ] = "overwrite"
    slot_order: Annotated[SlotOrder, Help("the order of kept pairs in the cache; score: best first")] = "position"
    budget_span: Annotated[
        Span, Help("context: the budget is a share of the context, and the first tokens are kept in addition")
    ] = "prompt"
    phases: Annotated[Phases | None, Help("fields that differ while decoding, such as {decode:{window:1}}")] = None
    accepts: tuple[Crossed, ...] = ("score", "budget")
    steps: tuple[Step, ...] = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"arbitrary_types_allowed": True}  # allocations of plugins, steps

    def __post_init__(self) -> None:
        steps = (step for step in self.steps if not step.idle)
        ordered = sorted(steps, key=lambda step: (step.order, type(step).__name__))
        object.__setattr__(self, "steps", tuple(ordered))
        self._check_choices()
        self._check_token_counts()
        if self.group == "none" and self.layout == "kv_heads":
            raise UserError("policy.group=none keeps one cache per query head: it needs policy.layout=query_heads")
        if self.group not in (None, "none") and self.layout == "query_heads":
            raise UserError(
                f"policy.group={self.group} merges query heads, but policy.layout=query_heads keeps them apart: use "
                "policy.group=none"
            )
        check(self.claims())
        try:
            self.decoding  # noqa: B018
        except ValueError as error:
            raise UserError(f"policy.phases.decode: {error}") from None

    def __repr__(self) -> str:
        """Return its name, and the fields that differ from their defaults."""
        values = ((part, getattr(self, part.name)) for part in fields(self)[1:])
        changed = (f", {part.name}={now!r}" for part, now in values if now != _usual(part))
        return f"Policy({self.name!r}{''.join(changed)})"

    def _check_choices(self) -> None:
        for name, allowed in ALLOWED.items():
            if getattr(self, name) not in allowed:
                choices = ", ".join(str(choice) for choice in allowed)
                raise UserError(f"policy.{name}={getattr(self, name)} is not allowed; allowed: {choices}")
        if self.order not in ORDERS:
            raise UserError(f"policy.order={_listed(self.order)} is not allowed; allowed: [group,pool], [pool,group]")
        if not isinstance(self.accepts, tuple) or not all(word in get_args(Crossed) for word in self.accepts):
            raise UserError(f"policy.accepts={_listed(self.accepts)} is not allowed; allowed: any of score, budget")

    def _check_token_counts(self) -> None:
        for name, smallest, words in (
            ("window", 1, ("all", QUESTION)),
            ("sink", 0, ("head", PROMPT)),
            ("recent", 0, (QUESTION,)),
            ("window_skips", 0, (TEMPLATE,)),
        ):
            value = getattr(self, name)
            if value in words or (isinstance(value, TokenFraction) and name in ("window", "recent")):
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise UserError(f"policy.{name}={value!r} is not an integer, e.g. 16")
            if value < smallest:
                reason = "allowed: 1 or more observed queries, e.g. 16" if smallest else "allowed: 0 or more"
                raise UserError(f"policy.{name}={value}: {reason}")

    def claims(self) -> Iterator[Claim]:
        """Return what its settings need of others and of each other, and what they make untrue."""
        yield from self._claims_of_allocation()
        yield from self._claims_of_tokens()
        if self.slot_order != "position":
            breaks = {facts.READ_ORDER: "puts the best pairs first"}
            yield Claim(f"policy.slot_order={self.slot_order}", "policy.slot_order=position", breaks=breaks)
        if "budget" not in self.accepts:
            grants = frozenset({facts.LATER_EVICTION, facts.COUNTED_BUDGET})
            yield Claim(f"policy {self.name}", "another policy", breaks={facts.EVICTS: "evicts none"}, grants=grants)
        for step in self.steps:
            yield from step.claims(self)

    def _claims_of_allocation(self) -> Iterator[Claim]:
        yield from self.heads.claims(self.name)
        yield from self.layers.claims(self.name)
        setting = f"policy.heads={self.heads.kind} policy.layers={self.layers.kind}"
        if self.keeps_whole:
            yield Claim(setting, "", grants=frozenset({facts.SCORED_BEFORE_ANSWER}))
        if not (self.divides_evenly or (self.heads.ragged and self.layers.ragged)):
            needs = {facts.EQUAL_LENGTHS: "divides a budget among heads of one length (neither says `ragged`)"}
            yield Claim(f"{setting} of {self.name}", "policy.heads=uniform policy.layers=uniform", needs)

    def _claims_of_tokens(self) -> Iterator[Claim]:
        for name in ("window", "recent"):
            value = getattr(self, name)
            if isinstance(value, TokenFraction) and value.of == "budget":
                needs = {facts.SIZED_BUDGET: "is a share of the budget"}
                yield Claim(f"policy.{name}={value.part} of {self.name}'s budget", f"a number for policy.{name}", needs)
            if value == QUESTION:
                fix = "numbers for policy.window and policy.recent"
                needs = {facts.QUESTION_READ: "observes the question"}
                yield Claim(f"policy.{name}=question of {self.name}", fix, needs)
        if self.sink == PROMPT:
            assumed = (facts.WHOLE_PROMPT, facts.LATER_EVICTION, facts.COUNTED_BUDGET)
            needs = dict.fromkeys(assumed, "keeps the whole prompt")
            yield Claim(f"policy.sink=prompt of {self.name}", "policy.sink=4, or another number", needs)
        if self.window_skips:
            why = f"ends the window of {self.name} before the newest tokens of a prompt"
            needs = {facts.NO_BLOCKS: why} | ({} if self.window_skips == TEMPLATE else {facts.PROMPT_END: why})
            yield Claim(f"policy.window_skips={self.window_skips}", "policy.window_skips=0", needs)

    @property
    def decoding(self) -> "Policy":
        """The policy of evictions while decoding."""
        if self.phases is None and self.window_skips == 0:
            return self
        phase = {} if self.phases is None else vars(self.phases.decode)
        changes = {name: value for name, value in phase.items() if value is not None}
        return replace(self, phases=None, window_skips=0, **changes)

    @property
    def divides_evenly(self) -> bool:
        """Whether every head of every layer keeps the same number of pairs, whatever the scores."""
        return self.heads.even and self.layers.even

    @property
    def keeps_whole(self) -> bool:
        """Whether heads or layers keep all tokens or only the protected ones: what is chosen once."""
        return self.heads.whole or self.layers.whole

    @property
    def protected(self) -> int:
        """Tokens that are always kept, without those that depend on a prompt not known yet."""
        return sum(number for number in (self.sink, self.recent, self.window_skips) if isinstance(number, int))

    @property
    def budgeted(self) -> int:
        """The protected tokens that the budget has to hold."""
        return self.protected - (self.sink if self.budget_span == "context" and isinstance(self.sink, int) else 0)

    @property
    def unbudgeted(self) -> int:
        """First tokens that are kept in addition to the budget."""
        return self.sink_tokens if self.budget_span == "context" else 0

    def pairs(self, budget: Budget, tokens: int) -> int:
        """KV pairs per cache head that are kept of `tokens`, protected ones included."""
        return self.unbudgeted + budget.of(max(0, tokens - self.unbudgeted))

    def keeps_all(self, budget: Budget, tokens: int) -> bool:
        """Return whether a budget keeps all of `tokens`, whatever the scores."""
        if isinstance(budget, ThresholdBudget):
            return tokens <= self.sink_tokens + self.protected_tail
        return self.pairs(budget, tokens) >= tokens

    def resolve(
        self,
        prefix_tokens: int,
        tokens: int,
        budget: Budget,
        question_tokens: int = ASSUMED_QUESTION,
        suffix_tokens: int = 0,
    ) -> "Policy":
        """Return the policy with its numbers for a prompt of `tokens`; the others are as of
        `kvbench.models.prompts.prompt.Prompt`.

        At least one query is observed. Raises UserError for a prompt without the question that is to be observed.
        """
        if question_tokens == 0 and QUESTION in (self.window, self.recent):
            raise UserError(f"policy.window=question of {self.name}, but this prompt has no question: use a number")
        skipped = max(0, min(suffix_tokens if self.window_skips == TEMPLATE else int(self.window_skips), tokens - 1))
        policy = replace(
            self,
            sink={"head": prefix_tokens, PROMPT: tokens}.get(self.sink, 0) if isinstance(self.sink, str) else self.sink,
            window=max(1, question_tokens - skipped) if self.window == QUESTION else self.window,
            window_skips=skipped,
            recent=max(0, question_tokens - skipped) if self.recent == QUESTION else self.recent,
        )
        pairs = policy.pairs(budget, tokens) - policy.unbudgeted
        return replace(
            policy,
            window=max(1, self.window(tokens, pairs)) if isinstance(self.window, TokenFraction) else policy.window,
            recent=self.recent(tokens, pairs) if isinstance(self.recent, TokenFraction) else policy.recent,
        )

    @property
    def sink_tokens(self) -> int:
        """First tokens that are always kept."""
        assert isinstance(self.sink, int), f"call resolve first: sink={self.sink} depends on the prompt"
        return self.sink

    @property
    def skipped(self) -> int:
        """Newest tokens that the window leaves out."""
        assert self.window_skips != TEMPLATE, "call resolve first: window_skips depends on the prompt"
        return self.window_skips

    @property
    def recent_tokens(self) -> int:
        """Tokens up to the end of the window that are always kept."""
        assert isinstance(self.recent, int), "call resolve first: recent depends on the prompt"
        return self.recent

    @property
    def protected_tail(self) -> int:
        """Newest tokens of the prompt that are always kept: those that the window leaves out too."""
        return self.recent_tokens + self.skipped

    def recorded(self, tokens: int) -> set[int]:
        """Return how many of the newest queries of a prompt of `tokens` hold those that are observed."""
        observable = tokens - self.skipped
        return {self.rows(observable) + self.skipped, self.layer_rows(observable) + self.skipped}

    @property
    def reading_steps(self) -> tuple[Step, ...]:
        """The steps that read observed queries."""
        return tuple(step for step in self.steps if step.reads_rows)

    @property
    def renumbers(self) -> bool:
        """Whether a step gives kept pairs positions of its own."""
        return any(step.renumbers for step in self.steps)

    def step_rows(self, tokens: int) -> int:
        """Observed queries that steps read of `tokens` tokens up to the end of the window; 0 if they read none."""
        return max((step.rows(self.rows(tokens), tokens) for step in self.reading_steps), default=0)

    def rows(self, tokens: int) -> int:
        """Observed queries of `tokens` tokens up to the end of the window."""
        if self.window == "all":
            return tokens
        assert isinstance(self.window, int), "call resolve first: window depends on the prompt"
        return min(self.window, tokens)

    def layer_rows(self, tokens: int) -> int:
        """Observed queries that the weight of a layer is made of."""
        return self.layers.rows(self.rows(tokens), tokens)

    def units(self, tokens: int) -> Units:
        """Return the unit of a prompt of `tokens` tokens that is kept or dropped as one."""
        units = Units(tokens, self.sink_tokens, self.protected_tail)
        for step in self.steps:
            units = step.units(units)
        return units

    def budget_info(self, budget: int, tokens: int) -> AllocationBudget:
        """Return the budget for the allocations: `budget` of `tokens` KV pairs per cache head, in whole units."""
        units = self.units(tokens)
        return AllocationBudget(
            budget=units.of_pairs(budget),
            sink=units.first,
            recent=units.last,
            tokens=units.number,
            variant=self.variant,
            even_heads=self.heads.kind == "uniform",
            stale_floor=self.layers.kind == "entropy",
        )

    def chooses(self, ranking: Ranking) -> Ranking:
        """Return the candidates that each cache head chooses from; global layers override the head allocation."""
        if self.layers.compares_layers:
            return ranking
        ranking = self.heads.chooses(ranking)
        for step in self.steps:
            ranking = step.chooses(ranking)
        return ranking

    def choices(self, rankings: Sequence[Ranking]) -> tuple[Ranking, ...]:
        """Return `chooses` of every layer, or one ranking for all layers."""
        chosen = tuple(map(self.chooses, rankings))
        for step in self.steps:
            chosen = step.choices(chosen)
        return chosen

    def group_of(self, default: Group) -> Group:
        """Return the reduction over query heads; `default` is the score's."""
        return "none" if self.layout == "query_heads" else self.group or default


def _usual(part: Field[Any]) -> Any:
    """Return the default of a field."""
    return part.default_factory() if callable(part.default_factory) else part.default


def _listed(value: object) -> str:
    """Return a list as it is written on the command line."""
    return f"[{','.join(str(item) for item in value)}]" if isinstance(value, (list, tuple)) else repr(value)
