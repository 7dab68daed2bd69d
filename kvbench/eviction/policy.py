"""An eviction policy of the literature as data: who votes, how scores are shaped, what is protected, how it splits."""

from dataclasses import dataclass, field, replace
from math import floor
from typing import Any, ClassVar, Literal, get_args

from kvbench.eviction.allocation.heads import HeadAllocation, Heads, UniformHeads
from kvbench.eviction.allocation.layers import LayerAllocation, Layers, UniformLayers
from kvbench.eviction.allocation.shares import BudgetInfo, Variant
from kvbench.eviction.pooling import ORDERS, Group, Pool, Step
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.scores.score import Reduce
from kvbench.support.errors import UserError

Layout = Literal["kv_heads", "query_heads"]
Memory = Literal["accumulate", "overwrite", "none"]
SlotOrder = Literal["position", "score"]
Positions = Literal["original", "cache"]
Crossed = Literal["score", "budget"]
LEGAL = {
    "reduce": get_args(Reduce),
    "group": (None, *get_args(Group)),
    "variant": get_args(Variant),
    "layout": get_args(Layout),
    "state": get_args(Memory),
    "slot_order": get_args(SlotOrder),
    "positions": get_args(Positions),
}
"""Fields of a policy that are words, and the words they may be."""


@dataclass(frozen=True)
class TokenFraction:
    """A number of tokens that grows with the prompt: a part of it, or of the budget; whole pairs, rounded down.

    Raises ValueError for a part outside 0..1 and for another whole.
    """

    part: float
    of: Literal["budget", "prompt"] = "budget"

    def __post_init__(self) -> None:
        if not 0 <= self.part <= 1:
            raise UserError(f"a part of the {self.of} is from 0 to 1, e.g. 0.05; got {self.part}")
        if self.of not in ("budget", "prompt"):
            raise UserError(f"a part is of the budget or of the prompt; got of: {self.of}")

    def __call__(self, tokens: int, pairs: int) -> int:
        """How many they are of a prompt of `tokens` of which `pairs` stay."""
        return floor(round(self.part * (pairs if self.of == "budget" else tokens), 6))


@dataclass(frozen=True)
class Phase:
    """What cuts of a phase do otherwise than the policy says; None is as it says. Fields are those of a policy."""

    window: int | Literal["all"] | None = None
    reduce: Reduce | None = None
    group: Group | None = None
    order: tuple[Step, Step] | None = None


@dataclass(frozen=True)
class Phases:
    """Phases with a rule of their own. decode: cuts of tokens that are read after the cut of the prompt."""

    decode: Phase = field(default_factory=Phase)


@dataclass(frozen=True)
class Policy:
    """Everything about a method but its score and its budget. Field names are those of the golden cases.

    window: newest queries that vote, at most the prompt, or `all`. reduce: how attention weights of the rows merge.
    pool, group, order: see `kvbench.eviction.pooling`; `group=None` takes the score's own. sink, recent: first and
    newest tokens that always stay, inside the budget. window and recent may be a `TokenFraction`; `sink=head` keeps
    what stands before whatever a sample says, as many tokens as a prompt has (see `of_prompt`). layout: `kv_heads`
    stores what the model stores, `query_heads` repeats every pair for each query head, as the published
    code of SnapKV and OBCache does. state, slot_order: what is remembered from cut to cut and how the pairs lie in
    between, see `kvbench.eviction.incremental`.
    positions: with `cache` what is kept is numbered 0, 1, ... anew after every cut, keys rotated by that, and new
    tokens go on behind it. takes: what the policy can be crossed with; one that takes no budget keeps everything, one
    that takes no score brings its own.

    phases: None, or what decoding does otherwise (CAKE); `decoding` is the policy of that phase.

    Raises ValueError for values that are not legal or contradict each other.
    """

    name: str
    window: int | Literal["all"] | TokenFraction = 16
    reduce: Reduce = "sum"
    pool: Pool | None = None
    group: Group | None = None
    order: tuple[Step, Step] = ("group", "pool")
    sink: int | Literal["head"] = 0
    recent: int | TokenFraction = 0
    heads: HeadAllocation | Heads = field(default_factory=UniformHeads)
    layers: LayerAllocation | Layers = field(default_factory=UniformLayers)
    variant: Variant = "paper"
    layout: Layout = "kv_heads"
    state: Memory = "overwrite"
    slot_order: SlotOrder = "position"
    positions: Positions = "original"
    phases: Phases | None = None
    takes: tuple[Crossed, ...] = ("score", "budget")
    __pydantic_config__: ClassVar[dict[str, Any]] = {"arbitrary_types_allowed": True}  # allocations of plugins

    def __post_init__(self) -> None:
        for name, legal in LEGAL.items():
            if getattr(self, name) not in legal:
                choices = ", ".join(str(choice) for choice in legal)
                raise UserError(f"policy.{name}={getattr(self, name)} is not legal; legal: {choices}")
        for name in ("window", "sink", "recent"):
            value, word = getattr(self, name), {"window": "all", "sink": "head"}.get(name)
            if isinstance(value, TokenFraction) and name != "sink":
                continue
            if value != word and (not isinstance(value, int) or isinstance(value, bool)):
                raise UserError(f"policy.{name}={value!r} is no whole number, e.g. 16")
        if isinstance(self.window, int) and self.window < 1:
            raise UserError(f"policy.window={self.window}: at least one query must vote, e.g. 16")
        for name in ("sink", "recent"):
            if isinstance(getattr(self, name), int) and getattr(self, name) < 0:
                raise UserError(f"policy.{name}={getattr(self, name)}: 0 or more tokens can be protected")
        if self.order not in ORDERS:
            raise UserError(f"policy.order={_listed(self.order)} is not legal; legal: [group,pool], [pool,group]")
        if not isinstance(self.takes, tuple) or not all(word in get_args(Crossed) for word in self.takes):
            raise UserError(f"policy.takes={_listed(self.takes)} is not legal; legal: any of score, budget")
        try:
            self.decoding  # noqa: B018
        except ValueError as error:
            raise UserError(f"policy.phases.decode: {error}") from None
        if self.positions == "cache":
            self._check_places()
        if self.group == "none" and self.layout == "kv_heads":
            raise UserError("policy.group=none keeps one cache per query head: add policy.layout=query_heads")
        if self.group not in (None, "none") and self.layout == "query_heads":
            raise UserError(f"policy.group={self.group} merges query heads: layout=query_heads goes with group=none")

    def _check_places(self) -> None:
        """What is numbered by its place needs as many pairs in every head, in the order in which they were read."""
        if self.heads.kind not in ("uniform", "shared") or self.layers.kind != "uniform":
            raise UserError(
                f"policy.positions=cache gives the next token one position, but policy.heads={self.heads.kind} "
                f"policy.layers={self.layers.kind} may keep another number of pairs in every head: use "
                "policy.heads=uniform policy.layers=uniform, or policy.positions=original"
            )
        if self.slot_order != "position":
            raise UserError("policy.positions=cache numbers pairs as they were read: use policy.slot_order=position")

    @property
    def decoding(self) -> "Policy":
        """The policy of cuts while an answer grows."""
        if self.phases is None:
            return self
        own = {name: value for name, value in vars(self.phases.decode).items() if value is not None}
        return replace(self, phases=None, **own)

    @property
    def protected(self) -> int:
        """Tokens that always stay, less those that depend on a prompt which is not known yet."""
        return sum(number for number in (self.sink, self.recent) if isinstance(number, int))

    def of_prompt(self, head: int, tokens: int, pairs: int) -> "Policy":
        """The policy for a prompt of `tokens`, the first `head` of which stand before whatever a sample says, when
        `pairs` of them stay. At least one row votes.
        """
        return replace(
            self,
            sink=head if self.sink == "head" else self.sink,
            window=max(1, self.window(tokens, pairs)) if isinstance(self.window, TokenFraction) else self.window,
            recent=self.newest(tokens, pairs),
        )

    def newest(self, tokens: int, pairs: int) -> int:
        """How many of the newest of `tokens` always stay when `pairs` stay."""
        return self.recent(tokens, pairs) if isinstance(self.recent, TokenFraction) else self.recent

    @property
    def sinks(self) -> int:
        """First tokens that always stay."""
        assert self.sink != "head", "the prompt's head is known before anything is cut"
        return self.sink

    @property
    def last(self) -> int:
        """Newest tokens that always stay."""
        assert isinstance(self.recent, int), "the prompt is known before anything is cut"
        return self.recent

    def rows(self, tokens: int) -> int:
        """How many queries of a prompt vote."""
        assert not isinstance(self.window, TokenFraction), "the prompt is known before anything is read"
        return tokens if self.window == "all" else min(self.window, tokens)

    def terms(self, budget: int, tokens: int) -> BudgetInfo:
        """What the allocations are told when `budget` of `tokens` pairs a stored head stay on average."""
        return BudgetInfo(
            budget=budget,
            sink=self.sinks,
            recent=self.last,
            tokens=tokens,
            variant=self.variant,
            even_heads=self.heads.kind == "uniform",
            stale_floor=self.layers.kind == "entropy",
        )

    def chooses(self, ranking: Ranking) -> Ranking:
        """What each stored head keeps the best of; with global layers the head allocation plays no part."""
        return ranking if self.layers.kind == "global" else self.heads.chooses(ranking)

    def group_of(self, default: Group) -> Group:
        """The reduction over query heads, given the score's default."""
        return "none" if self.layout == "query_heads" else self.group or default


def _listed(value: object) -> str:
    """A list as it is written on the command line."""
    return f"[{','.join(str(item) for item in value)}]" if isinstance(value, (list, tuple)) else repr(value)
