"""CAOTE, Table 6 from the formulas of its Appendix E: FLOPs that scoring adds over those of a forward pass.

With s tokens, L layers, hidden size d, KV size d_KV, feed-forward size d_FFN and vocabulary d_V:
prefill (eq. 53) 2 L s d (d + d_KV + d_FFN + 2 s + 6) + d d_V; one generated token (eq. 54) the same without s in front;
CAOTE (eq. 55) L s (7 d + 3); FastCAOTE (eq. 56) L s (4 d + 3) + L.
"""

from dataclasses import dataclass

from kvbench.report.papers.measured import Measured
from kvbench.report.papers.published import Published


@dataclass(frozen=True)
class Dimensions:
    """A model as the formulas see it."""

    layers: int
    hidden: int
    kv: int
    feed_forward: int
    vocabulary: int


LLAMA_3_1_8B = Dimensions(layers=32, hidden=4096, kv=1024, feed_forward=14336, vocabulary=128256)


def forward(model: Dimensions, tokens: int, context: int) -> int:
    """FLOPs of `tokens` new tokens at a context of `context`, as eqs. 53 and 54 count them."""
    sizes = model.hidden + model.kv + model.feed_forward + 2 * context + 6
    return 2 * model.layers * tokens * model.hidden * sizes + model.hidden * model.vocabulary


def scoring(model: Dimensions, score: str, context: int) -> int:
    """FLOPs of scoring `context` pairs once. Raises ValueError for a score without a formula."""
    if score == "caote":
        return model.layers * context * (7 * model.hidden + 3)
    if score == "fastcaote":
        return model.layers * context * (4 * model.hidden + 3) + model.layers
    raise ValueError(f"no formula for the FLOPs of score {score}: legal: caote, fastcaote")


def costs(printed: list[Published], keys: tuple[str, ...]) -> dict[tuple[str, ...], Measured]:
    """The ratio of each printed place, by its score, context length and protocol; n is 0, for nothing was measured."""
    found = {}
    for one in printed:
        at = dict(zip(keys, one.at, strict=True))
        context = int(at["context_length"])
        tokens = context if "prefill" in at["protocol"] else 1
        ratio = scoring(LLAMA_3_1_8B, at["score"], context) / forward(LLAMA_3_1_8B, tokens, context)
        found[one.at] = Measured(0, 1, 0, 0, ratio, None, None, False, ())
    return found
