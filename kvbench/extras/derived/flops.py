"""The overhead of CAOTE in FLOPs by its own formulas: appendix E, equations 53 to 56, and Table 6.

    prefill     2 L s d (d + d_KV + d_FFN + 2 s + 6) + d d_V       (53)
    generation  2 L d (d + d_KV + d_FFN + 2 s + 6) + d d_V         (54)
    CAOTE       L s (7 d + 3)                                      (55)
    FastCAOTE   L s (4 d + 3) + L                                  (56)

L layers, s tokens in the cache, d the hidden size, d_KV the size of a token's keys (1024 gives Table 6b), d_FFN that
of the feed-forward layer, d_V the vocabulary. They reproduce Table 6b, but not Table 6a (CAOTE 1.27e-4, 9.8e-5, 4.1e-5
and FastCAOTE 7.2e-5, 5.6e-5, 2.4e-5; 1.6e-4, 9.25e-5, 6.45e-5 and 8.9e-5, 5.28e-5, 3.69e-5 are printed). The paper's
"below 0.1 %" counts one scoring of the prompt, but its protocol scores after every block: see `in_blocks`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvbench.papers.item import At, Item, Published
from kvbench.papers.numbers import Measured
from kvbench.papers.page import page
from kvbench.papers.sweep import PrintedPage, Result
from kvbench.support.errors import UserError


@dataclass(frozen=True)
class FlopsItem(Item):
    """An item whose numbers come from the formulas."""

    made_by: ClassVar[str] = "kvbench.extras.derived.flops:FlopsPage"


class FlopsPage(PrintedPage):
    """Printed numbers, and numbers of the formulas; nothing is measured."""

    def run(self) -> Result:
        return Result(page(self.item, self.printed, computed=ratios(self.printed, self.item.keys)).report())


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model, by the names of the equations."""

    layers: int
    hidden: int
    key_value: int
    feed_forward: int
    vocabulary: int


LLAMA_31_8B = Sizes(layers=32, hidden=4096, key_value=1024, feed_forward=14336, vocabulary=128256)
"""The model of Table 6."""


def prefill(sizes: Sizes, tokens: int) -> int:
    """Equation 53."""
    return tokens * _per_token(sizes, tokens) + sizes.hidden * sizes.vocabulary


def generation(sizes: Sizes, tokens: int) -> int:
    """Equation 54: one token, with so many in the cache."""
    return _per_token(sizes, tokens) + sizes.hidden * sizes.vocabulary


def caote(sizes: Sizes, tokens: int) -> int:
    """Equation 55: scoring so many cached tokens once."""
    return sizes.layers * tokens * (7 * sizes.hidden + 3)


def fastcaote(sizes: Sizes, tokens: int) -> int:
    """Equation 56."""
    return sizes.layers * tokens * (4 * sizes.hidden + 3) + sizes.layers


def in_blocks(sizes: Sizes, tokens: int, budget: int, block: int) -> int:
    """Scoring as in the paper's experiments: a full cache and a block, for each block beyond the budget."""
    times = max(0, -(-(tokens - budget) // block))
    return times * caote(sizes, budget + block)


SCORING = {"caote": caote, "fastcaote": fastcaote}
"""The scores that have a formula."""


def ratios(printed: Sequence[Published], keys: tuple[str, ...]) -> dict[At, Measured]:
    """Return the FLOPs of scoring divided by the FLOPs of a forward pass, for each printed number; n is 0: nothing is
    measured.

    Raises UserError for a score without a formula.
    """
    numbers = {}
    for number in printed:
        values = dict(zip(keys, number.at, strict=True))
        score, tokens = values["score"], int(values["context_length"])
        if score not in SCORING:
            raise UserError(f"no formula for the FLOPs of score {score}: allowed: {', '.join(SCORING)}")
        forward = prefill if "prefill" in values["protocol"] else generation
        ratio = SCORING[score](LLAMA_31_8B, tokens) / forward(LLAMA_31_8B, tokens)
        numbers[number.at] = Measured(mean=ratio)
    return numbers


def _per_token(sizes: Sizes, tokens: int) -> int:
    width = sizes.hidden + sizes.key_value + sizes.feed_forward + 2 * tokens + 6
    return 2 * sizes.layers * sizes.hidden * width
