"""Steps: what may follow the scores of a method, each a plain value. No hook of the base class does anything."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Kept, Lengths
from kvbench.eviction.allocation.shares import Variant
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.ranking import Ranking
from kvbench.support.facts import Claim

RANKINGS, UNITS, PAIRS = 1, 2, 3
"""What a step changes, in the order in which steps follow each other."""


@dataclass(frozen=True)
class Units:
    """The unit of a prompt that is kept or dropped as one: here a token.

    sink, newest: how many of the first and of the newest `tokens` are always kept.
    """

    tokens: int
    sink: int
    newest: int

    @property
    def number(self) -> int:
        """Units of the prompt."""
        return self.tokens

    @property
    def first(self) -> int:
        """First units that are always kept."""
        return self.sink

    @property
    def last(self) -> int:
        """Newest units that are always kept, beside the first ones."""
        return self.newest

    def of_pairs(self, pairs: int) -> int:
        """Return how many units a budget of `pairs` tokens holds."""
        return pairs

    def ranking(self, by_token: Ranking) -> Ranking:
        """Return the ranking of the units that may be dropped."""
        return by_token

    def kept_tokens(self, kept: Kept) -> Kept:
        """Return the tokens of kept units."""
        return kept

    def lengths(self, counts: Lengths, kept: Sequence[Kept]) -> Lengths:
        """Return how many tokens each cache head keeps. counts: of candidates. kept: its tokens, by layer."""
        return counts + self.sink + self.newest

    def check(self, pairs: int, name: str, subject: str) -> None:
        """Raise UserError for a budget of `pairs` that cannot hold what is always kept. name: of the policy."""


class Step:
    """Base class of steps.

    A step is a frozen dataclass, whose fields are settings of every policy: `policy.FIELD`. One with a `kind` is chosen
    by it, as a part that its settings file names: `policy.PART=KIND`, `policy.PART.FIELD`.

    order: what it changes: RANKINGS, UNITS or PAIRS. after: the field of a policy that its settings follow in labels.
    reads_rows: whether `change` reads observed queries. always: whether `change` is asked where nothing was evicted
    too. renumbers: whether it gives kept pairs positions of its own, and changes nothing else; the caches that it makes
    have a `re_rotation` then.
    """

    order: ClassVar[int] = PAIRS
    after: ClassVar[str] = "budget_span"
    reads_rows: ClassVar[bool] = False
    always: ClassVar[bool] = False
    renumbers: ClassVar[bool] = False

    @property
    def idle(self) -> bool:
        """Whether it does nothing, so that a policy is the same without it."""
        return False

    @property
    def setting(self) -> str:
        """How messages name it: by its first field."""
        first = fields(self)[0].name  # type: ignore[arg-type]
        return f"policy.{first}={getattr(self, first)}"

    def described(self) -> Mapping[str, Any]:
        """Return the fields that a cell's description names: they differ from their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)  # type: ignore[arg-type]
            if getattr(self, field.name) != field.default
        }

    def claims(self, policy: Any) -> Iterator[Claim]:
        """Return the facts that it needs of other settings, and those that it makes untrue."""
        return iter(())

    def check_budget(self, policy: Any, budget: TokenBudget) -> None:
        """Raise UserError for a budget that is too small whatever the prompt."""

    def chooses(self, ranking: Ranking) -> Ranking:
        """Return the candidates of each cache head of a layer."""
        return ranking

    def choices(self, rankings: tuple[Ranking, ...]) -> tuple[Ranking, ...]:
        """Return the candidates of all layers, after `chooses`."""
        return rankings

    def units(self, units: Units) -> Units:
        """Return the unit that is kept or dropped as one."""
        return units

    def rows(self, window: int, tokens: int) -> int:
        """Return how many of the newest queries `change` reads of `tokens` tokens. window: those that the policy
        observes.
        """
        return window

    def change(
        self, before: LayerCache, kept: Kept, after: LayerCache, window: ObservationWindow | None, variant: Variant
    ) -> LayerCache:
        """Return `after`, the pairs of `before` that `kept` marks, as the layer holds them from now on.

        Rows of `kept` are the cache heads of `after`, columns the slots of `before`. What `after` holds beyond them,
        newer than all of `before`, stays as it is. window: observed queries, None unless they are read.
        """
        return after

    def begin(self, cache: Any, engine: Any) -> Any:
        """Return what is kept of a prompt, a `KVCache`, as its answer is read. engine: of the model that read it."""
        return cache

    def evicting(self, kind: Any, engine: Any) -> Any:
        """Return the kind of caches that evict as they grow (`kvbench.models.decode.evicting_cache`): one step of a
        policy at most has its own.
        """
        return kind

    def holder(self, holder: Any) -> Any:
        """Return the holder of the kept pairs while an answer is decoded (`kvbench.models.decode.holder`)."""
        return holder

    def unused_bytes(self, cache: Any) -> int:
        """Return the bytes that are allocated beside what a cache holds."""
        return 0


class Kind(Step):
    """Base class of steps of which a policy has one at a time. kind: its name, the same for all instances."""

    kind: str
    after: ClassVar[str] = "layers"
    part: ClassVar[str]
    """The setting of a policy that chooses among the kinds."""

    @property
    def setting(self) -> str:
        return f"policy.{self.part}={self.kind}"

    def described(self) -> Mapping[str, Any]:
        return {self.part: asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Drop(Kind):
    """Evicted pairs are dropped, kept ones stay as they are: eviction as the word says."""

    kind: Literal["drop"] = "drop"

    @property
    def idle(self) -> bool:
        return True
