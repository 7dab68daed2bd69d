"""CAOTE, Table 6 from the formulas of its Appendix E: FLOPs that scoring adds over those of a forward pass."""

from kvbench.papers import caote
from kvbench.papers.measured import Measured
from kvbench.papers.published import Published
from kvbench.support.errors import UserError

SCORING = {"caote": caote.caote, "fastcaote": caote.fastcaote}
"""The scores that have a formula."""


def costs(printed: list[Published], keys: tuple[str, ...]) -> dict[tuple[str, ...], Measured]:
    """The ratio of each printed place, by its score, context length and protocol; n is 0, for nothing was measured.

    Raises ValueError for a score without a formula.
    """
    found = {}
    for one in printed:
        at = dict(zip(keys, one.at, strict=True))
        score, context = at["score"], int(at["context_length"])
        if score not in SCORING:
            raise UserError(f"no formula for the FLOPs of score {score}: legal: {', '.join(SCORING)}")
        forward = caote.prefill if "prefill" in at["protocol"] else caote.generation
        ratio = SCORING[score](caote.LLAMA_31_8B, context) / forward(caote.LLAMA_31_8B, context)
        found[one.at] = Measured(0, 1, 0, 0, ratio, None, None, False, ())
    return found
