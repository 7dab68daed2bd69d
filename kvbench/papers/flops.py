"""The overhead of CAOTE in FLOPs by its own formulas: appendix E, equations 53 to 56, and Table 6.

    prefill     2 L s d (d + d_KV + d_FFN + 2 s + 6) + d d_V       (53)
    generation  2 L d (d + d_KV + d_FFN + 2 s + 6) + d d_V         (54)
    CAOTE       L s (7 d + 3)                                      (55)
    FastCAOTE   L s (4 d + 3) + L                                  (56)

L layers, s tokens in the cache, d the hidden size, d_KV the size of a token's keys (1024 gives Table 6b), d_FFN that
of the feed-forward layer, d_V the vocabulary. They reproduce Table 6b, but not Table 6a (CAOTE 1.27e-4, 9.8e-5, 4.1e-5
and FastCAOTE 7.2e-5, 5.6e-5, 2.4e-5; 1.6e-4, 9.25e-5, 6.45e-5 and 8.9e-5, 5.28e-5, 3.69e-5 are printed). The paper's
"below 0.1 %" counts one scoring of the prompt, but its protocol scores after every block.
"""

from collections.abc import Sequence

from kvbench.papers.item import At
from kvbench.papers.numbers import Measured
from kvbench.papers.published import Published
from kvbench.support.errors import UserError

LAYERS, HIDDEN, KEY_VALUE, FEED_FORWARD, VOCABULARY = 32, 4096, 1024, 14336, 128256
"""L, d, d_KV, d_FFN and d_V of Llama 3.1 8B, the model of Table 6."""
SCORING = {
    "caote": lambda tokens: LAYERS * tokens * (7 * HIDDEN + 3),
    "fastcaote": lambda tokens: LAYERS * tokens * (4 * HIDDEN + 3) + LAYERS,
}
"""The FLOPs of scoring so many cached tokens once: equations 55 and 56."""


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
        read = tokens if "prefill" in values["protocol"] else 1
        width = HIDDEN + KEY_VALUE + FEED_FORWARD + 2 * tokens + 6
        forward = 2 * LAYERS * read * HIDDEN * width + HIDDEN * VOCABULARY
        numbers[number.at] = Measured(mean=SCORING[score](tokens) / forward)
    return numbers
