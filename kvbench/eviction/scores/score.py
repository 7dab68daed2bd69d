"""The interface of a score: what it needs to have recorded, and the functions that it overrides.

Set `name`, override `__call__`, and what else differs from the defaults. The shortest example is `scores/recency.py`;
`scores/attn.py` is the simplest one that reads attention.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, ObservationWindow, PredictedQueries
from kvbench.cache.shapes import Ranked, Scores
from kvbench.eviction.budget import Budget
from kvbench.eviction.pooling import Group, Weight
from kvbench.eviction.ranking import SecondStage
from kvbench.eviction.scores.ragged import Merge, Planes, RaggedHeads, RowTerm, Slots
from kvbench.support.errors import UserError
from kvbench.support.facts import PAIRS_DIFFER, SCORED_BEFORE_ANSWER, SCORED_ONCE, UNSIGNED, Claim

Reduce = Literal["sum", "mean", "max", "observed_attention"]
"""How attention weights are merged over the rows; `observed_attention`: the mean over those that see the column."""
Summed = tuple["Score", Reduce, int]
"""A request: raw scores, so merged over all queries but so many of the newest, each added while the prompt is read."""
RawTerm = RowTerm | Literal["position"]
"""A sum over the row of a new token; or the position of the pair, which needs none."""
Projection = Literal["output", "query"]
"""Matrices of a model's attention: output [hidden, heads x head_dim], query [heads x head_dim, hidden]."""
Span = Literal["token", "block", "prompt"]
"""The tokens whose hidden states a score gets at once: a prefill pass, or the whole prompt; `token`: any pass, also of
an answer, as the numbers of a token, one per KV head, are made of its hidden state alone."""


@dataclass(frozen=True)
class ContextRepetition:
    """A request for extra forward passes over the frozen cache, in which the model repeats its context (KVzip).

    chunk: context tokens per pass.
    prompt: the first pass is told this. Later ones get `then`, the last `tail` tokens of the previous chunk, and `end`.
    softmax: whether attention weights or logits are recorded. head: whether the softmax includes the prompt's head.
    turn: whether the chat template's start of an answer precedes the repeated chunk.
    by_norm: whether the weights of a row are divided by the norm of the hidden state that its attention reads.
    by_gradient: what records a pass by a gradient through all its layers, called as `kvbench.models.repeat.repeated`.
    """

    chunk: int
    tail: int
    prompt: str
    then: str
    softmax: bool
    end: str = ""
    turn: bool = True
    head: bool = True
    by_norm: bool = False
    by_gradient: Callable[..., dict[int, Tensor]] | None = None


class AttentionCall(NamedTuple):
    """One call of a layer's attention: the model, its module, the hidden states [1, new, hidden] that it reads, and the
    other arguments by name, such as `position_embeddings`.

    queries: of the new tokens, rotated. unrotate: undoes the rotation of queries or keys [heads, tokens,
        head_dim] at a first position and those behind it, in float32; it is set for `ScoreInputs.queries`.
    """

    model: Any
    module: Any
    hidden: Float[Tensor, "1 new hidden"]
    named: Mapping[str, Any]
    queries: Float[Tensor, "heads new head_dim"] | None = None
    unrotate: Callable[[Tensor, int], Tensor] = lambda states, first: states.float()


@dataclass(frozen=True)
class ScoreInputs:
    """Inputs of a score besides keys and values, which the engine records during the prefill; by default nothing.

    window: queries, attention outputs and log-sum-exp of the observation window. repeat: a repetition of the context.
    future_queries: predicted statistics of later queries. projections: these matrices of the model, as
    `layer.projections`; a bias or a norm is no part of them. hidden_states: those that each attention layer reads go to
    `Score.read_hidden`, as many tokens at once as it says, and are then freed. module: `Score.read_call` reads the
    module and its arguments. queries: it reads queries, and keys before their rotation.
    """

    window: bool = False
    repeat: ContextRepetition | None = None
    future_queries: PredictedQueries | None = None
    projections: tuple[Projection, ...] = ()
    hidden_states: Span | None = None
    module: bool = False
    queries: bool = False


@runtime_checkable
class Score(Protocol):
    """Base class of scoring rules: a function that gives every KV pair of a layer a number; the highest are kept.

    Scores are float32, whatever the model's dtype. The policy pools the raw scores of `__call__`, multiplied by
    `weigh`, reduces them over the query heads of each KV head, and passes them to `refine`.

    name: the name in rows and settings.
    inputs: what must be recorded for the score.
    group: how scores are reduced over the query heads of a KV head, unless the policy sets it.
    signed: whether scores may be negative; they are then no distribution over the tokens.
    by_head: whether all KV pairs of a head get the same score, so that only whole heads can be chosen.
    merges_last: whether query heads are reduced after `refine`, which then gets one row per query head.
    pools_protected: whether pooling covers all columns; otherwise it ends before the newest protected tokens.
    least_rows: the smallest observation window.
    row_term: the sum that the raw score is, or is made of, for the single row of a new token (`RowTerm`), or
        `position`. Kernels then score the heads of many cells at once while answers are decoded, and the functions
        named `..._segments` say what follows the sum. None: every cell is scored by itself. A subclass that defines
        functions does not inherit it.
    row_merge: how the query heads of a KV head are merged, if `__call__` does that itself.
    separate: whether the score of a head reads nothing but that head, and only keys, values and observed rows.
        Several layers can then be scored at once. Not inherited by a subclass that defines functions, as `row_term`.
    """

    name: str
    inputs: ClassVar[ScoreInputs] = ScoreInputs()
    group: ClassVar[Group] = "mean"
    signed: ClassVar[bool] = False
    by_head: ClassVar[bool] = False
    merges_last: ClassVar[bool] = False
    pools_protected: ClassVar[bool] = False
    least_rows: ClassVar[int] = 1
    row_term: ClassVar[RawTerm | None] = None
    row_merge: ClassVar[Merge | None] = None
    separate: ClassVar[bool] = False

    def claims(self) -> Iterator[Claim]:
        """Yield the facts that it needs of other settings, and those that it makes untrue. Others add theirs."""
        breaks = {UNSIGNED: "can be negative"} if self.signed else {}
        if self.by_head:
            breaks[PAIRS_DIFFER] = "gives all KV pairs of a head the same score"
        yield Claim(f"score {self.name}", "another score", breaks=breaks)
        inputs, does = self.inputs, ""
        if inputs.projections or inputs.hidden_states in ("block", "prompt"):
            does = "reads the model with the prompt, once, so it cannot evict again later"
        elif inputs.repeat is not None:
            does = "repeats what was read, once, so it cannot evict again later"
        elif inputs.future_queries is not None:
            does = "reads the queries of the whole prompt, once, so it cannot evict again later"
        if does:
            yield Claim(f"score {self.name}", "", dict.fromkeys((SCORED_ONCE, SCORED_BEFORE_ANSWER), does))

    def check_model(self, layers: int, kv_heads: int, weights: str) -> None:
        """Raise UserError for a model that the score does not fit, before it is loaded. weights: their hash."""

    def read_hidden(self, layer: LayerCache, hidden: Float[Tensor, "new hidden"]) -> Scores:
        """Return what to remember of hidden states of new tokens: one row per query or KV head, one column per token.

        Called in passes that `inputs.hidden_states` names. `layer` holds the KV pairs of these tokens alone, and their
        positions. `__call__` finds the rows of all tokens, in float32, at `layer.recordings[self]`.
        """
        raise UserError(f"score {self.name} asks for hidden states: its class must define read_hidden")

    def read_call(self, layer: LayerCache, call: AttentionCall) -> Scores:
        """Call `read_hidden` with all that the attention reads. Neither the module nor its arguments may be changed."""
        return self.read_hidden(layer, call.hidden[0])

    @property
    def recorded(self) -> tuple["Score", ...]:
        """The scores whose `read_call` records what this one reads, if `inputs.hidden_states`: by default itself."""
        return (self,)

    def of_budget(self, budget: Budget) -> "Score":
        """Return the score of a cell with this budget: the same for all budgets, unless it depends on how much is
        kept.
        """
        return self

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        """Return raw scores of a dense layer: one row per query head, or per KV head for a score that reads keys only.

        window: the observation window; None unless `inputs.window`. reduce: how scores made of attention weights merge
        its queries; other scores define their own reduction and ignore it.
        """
        ...

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        """Return factors of the scores before or after pooling, without the newest `recent` tokens. Default: none."""
        return None

    def refine(self, shaped: Ranked, layer: LayerCache) -> Ranked:
        """Return the last step: pooled and reduced scores, one row per cache head, to final ones. Default: unchanged.

        Column j of `shaped` is token j of `layer`, which caches KV heads.
        """
        return shaped

    def second_stage(self, ranked: Ranked, layer: LayerCache, protected: int) -> SecondStage | None:
        """Return how a head chooses its last pairs, if not by `ranked`, the final scores of the first columns of
        `layer`.

        protected: tokens that are always kept. Default: by `ranked` too.
        """
        return None

    def of_heads(self, heads: Sequence[int]) -> "Score":
        """Return the score of these cache heads of a layer alone; default: the same, whichever they are."""
        return self

    def over_rows(self, reduce: Reduce) -> Reduce | None:
        """Return how `row_term` of several rows is merged to the raw score; None: the raw score is made otherwise."""
        return None

    def raw_segments(self, heads: RaggedHeads, sums: Slots | None) -> Slots:
        """Return the raw score, merged over query heads, from the sums of `row_term` (None for `nothing`). Default:
        these.
        """
        assert sums is not None
        return sums

    def weigh_segments(self, heads: RaggedHeads, raw: Slots) -> Slots:
        """Return what is pooled, from the raw score, as `weigh` says. Default: the raw score."""
        return raw

    def refine_segments(self, heads: RaggedHeads, pooled: Planes, out: Planes) -> Planes:
        """Return the final score from the pooled one, as `weigh` and `refine` say, in `out`, which may be `pooled`.
        Default: `pooled`.
        """
        return pooled


class WindowScore(Score):
    """Base class of scores that read the observation window."""

    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)


def row_term_of(score: Score) -> RawTerm | None:
    """Return the `row_term` of a score, unless it was declared for a class whose functions its own class replaces."""
    return score.row_term if _declares(score, "row_term") else None


def is_separate(score: Score) -> bool:
    """Return whether the heads of several layers can be scored at once."""
    return score.separate and _declares(score, "separate")


def _declares(score: Score, fact: str) -> bool:
    """Return whether the class of a score declares this of its own functions."""
    below = takewhile(lambda cls: fact not in vars(cls), type(score).__mro__)
    members = (member for cls in below for member in vars(cls).items())
    return not any(callable(member) for name, member in members if name == "__call__" or name[:2] != "__")


def is_row_sum(score: Score) -> bool:
    """Return whether the score is its `row_term` and nothing else."""
    steps = ("raw_segments", "weigh_segments", "refine_segments")
    return row_term_of(score) is not None and all(getattr(type(score), step) is getattr(Score, step) for step in steps)
