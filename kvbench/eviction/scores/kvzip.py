"""KVzip: how much attention a pair receives while the model repeats the context.

KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction (Kim et al. 2025,
https://arxiv.org/abs/2505.23416), algorithm 1, as in the files attention/score.py and model/wrapper.py of its code,
from which the paper differs: the wording of the prompts, chunks of 2000 tokens, and the keys of whatever precedes the
context among those that a row attends to. Computed in float32; the published code rounds weights to the model's type.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import torch

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Ranked, Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.host import projected_norms
from kvbench.eviction.scores.score import ContextRepetition, Reduce, Score, ScoreInputs
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError
from kvbench.support.facts import COMPARABLE, Claim

REPEAT = "\n\nRepeat the previous context exactly."
CONTINUE = "\n\nRepeat the part of the previous context exactly, starting with "
TAIL = 8
"""Number of tokens of the previous chunk that follow `CONTINUE`."""


@dataclass(frozen=True)
class KVzip(Score):
    """The largest attention weight, or logit, that a pair receives from any row of the repetition of its chunk.

    Fields: see `kvbench.eviction.scores.score.ContextRepetition`. softmax: False takes the largest logit
    (`kvzip_logit`), which the published appendix computes faster. Logits of different heads cannot be compared: use
    uniform heads, or `zscore`, which standardises the logits of each cache head. The appendix mentions neither. Tokens
    before the first chunk are never repeated and rank lowest.

    Raises UserError for a chunk below 1.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("zscore",)
    chunk: Annotated[int, Help("K2: tokens repeated at a time, as in model/wrapper.py; kvpress: 2048")] = 2000
    repeat_prompt: Annotated[str, Help("asks for the first chunk of the context again")] = REPEAT
    softmax: Annotated[bool, Help("false: logits instead of attention weights")] = True
    name: str = "kvzip"
    zscore: Annotated[
        bool, Help("Q1, true: standardise each head's logits, so that heads can be compared (policy=kvzip)")
    ] = False
    continue_prompt: Annotated[str, Help("followed by the last 8 tokens of the previous chunk")] = CONTINUE
    continue_end: Annotated[
        str, Help('K1: the paper has ":" here and at the end of repeat_prompt, and no chat turn')
    ] = ""
    turn: Annotated[bool, Help("the chat template's start of an answer precedes the chunk, as in model/wrapper.py")] = (
        True
    )
    head: Annotated[
        bool, Help("K3: the softmax includes the prompt's head, as in attention/score.py; false: as in Algorithm 1")
    ] = True
    group: ClassVar[Group] = "max"

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise UserError(f"score.chunk={self.chunk}: allowed: 1 or more, the tokens repeated at a time, e.g. 2000")

    @cached_property
    def inputs(self) -> ScoreInputs:
        prompts = self.repeat_prompt, self.continue_prompt
        return ScoreInputs(
            repeat=ContextRepetition(self.chunk, TAIL, *prompts, self.softmax, self.continue_end, self.turn, self.head)
        )

    @property
    def signed(self) -> bool:
        return not self.softmax

    def claims(self) -> Iterator[Claim]:
        yield from super().claims()
        if not (self.softmax or self.zscore):
            breaks = {COMPARABLE: "makes logits, and logits of different heads do not compare"}
            yield Claim(f"score {self.name}", f"score.zscore=true with {self.name}", breaks=breaks)

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer that was repeated; `reduce` is ignored."""
        record, first = layer.recordings[self.inputs.repeat], self._first(layer)
        if self.softmax or first in (0, record.shape[1]):
            return record
        lowest = record[:, first:].amin(dim=1, keepdim=True)
        return torch.cat((lowest.expand(-1, first), record[:, first:]), dim=1)

    def refine(self, shaped: Ranked, layer: LayerCache) -> Ranked:
        """With `zscore`, scores of each cache head with mean 0 and variance 1 over the tokens that were repeated."""
        if not self.zscore:
            return shaped
        repeated = shaped[:, self._first(layer) :]
        if repeated.shape[1] == 0:
            return shaped
        spread = repeated.std(dim=1, keepdim=True, correction=0).clamp_min(torch.finfo(shaped.dtype).tiny)
        return (shaped - repeated.mean(dim=1, keepdim=True)) / spread

    def _first(self, layer: LayerCache) -> int:
        """Return the first token that was repeated: the record holds only zeros before it."""
        touched = (layer.recordings[self.inputs.repeat] != 0).any(dim=0)
        return int(touched.int().argmax()) if bool(touched.any()) else touched.shape[0]


@dataclass(frozen=True)
class KVzipPlus(KVzip):
    """max_i A_ij |W_o v_j| / |h_i| over the rows i of the repetition of the chunk of j.

    W_o is the part of the output projection for the query head, h_i the hidden state that the attention reads.

    KVzip+ (Jegou and Jeblick 2026, https://arxiv.org/abs/2601.07891), as in `KVzipPress` of kvpress with
    `kvzip_plus_normalization`: how much a pair changes the residual stream, in proportion to it.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("softmax", "zscore")
    name: str = "kvzip_plus"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.softmax or self.zscore:
            raise UserError(f"score {self.name} weighs attention weights, not logits: use score=kvzip_logit for those")

    @cached_property
    def inputs(self) -> ScoreInputs:
        repeat = super().inputs.repeat
        assert repeat is not None
        return ScoreInputs(repeat=replace(repeat, by_norm=True), projections=("output",))

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return super().__call__(layer, window, reduce) * projected_norms(layer, layer.lengths[0], 2)
