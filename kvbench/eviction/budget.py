"""Budgets: what is kept, never what is removed. `FractionBudget(0.1)` of the tokens, or 1024 KV pairs.

Both count KV pairs per cache head on average over heads and layers, protected ones included. A `ByteBudget` becomes a
`TokenBudget` once the model is known. With a `ThresholdBudget` the scores decide how many pairs stay.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

from kvbench.support.errors import UserError
from kvbench.support.facts import (
    COUNTED_BUDGET,
    EVEN_BUDGET,
    EVEN_HEADS,
    EVEN_IN_LAYER,
    EVEN_LAYERS,
    FULL_CACHE,
    LASTING,
    PLAIN_COPY,
    SIZED_BUDGET,
    Claim,
)
from kvbench.support.quantity import THRESHOLD, parse_size, size

ALLOWED = (
    "allowed: a fraction of the prompt in (0, 1] with a dot or exponent (0.1), a number of KV pairs per head, 1 or "
    "more (1024), the bytes of a prompt's KV pairs (600KiB, 2GiB), or the least score of a kept pair (threshold:-4)"
)


@dataclass(frozen=True)
class TokenBudget:
    """A fixed number of KV pairs per cache head. text: how it was written, if not as this number (`600KiB`)."""

    pairs: int
    text: str | None = None

    def __post_init__(self) -> None:
        if self.pairs < 1:
            raise UserError(f"budget={self.pairs} keeps nothing: {ALLOWED}")

    def of(self, num_tokens: int) -> int:
        """KV pairs per cache head after `num_tokens` tokens; more than `num_tokens` means that all are kept."""
        return self.pairs

    def claims(self) -> Iterator[Claim]:
        """Return what it makes untrue for other settings: nothing."""
        return iter(())

    def __str__(self) -> str:
        return self.text or str(self.pairs)

    @property
    def counted(self) -> str:
        """The budget as it was asked for, and its tokens where that is no number of them."""
        return f"{self.text} ({self.pairs} tokens)" if self.text else str(self.pairs)


@dataclass(frozen=True)
class FractionBudget:
    """A share of the tokens, rounded half up, at least one. Decimal: 0.1 of 385 tokens becomes 39 on every machine."""

    share: Decimal

    def __post_init__(self) -> None:
        if not self.share.is_finite() or not 0 < self.share <= 1:
            raise UserError(f"budget={self.share} is out of range: {ALLOWED}")

    def of(self, num_tokens: int) -> int:
        return max(1, int((self.share * num_tokens).to_integral_value(ROUND_HALF_UP)))

    def claims(self) -> Iterator[Claim]:
        """Return what it makes untrue for other settings."""
        breaks = {COUNTED_BUDGET: "is a fraction of the prompt"}
        yield Claim(f"budget={self}", "a number of KV pairs, such as budget=1024", breaks=breaks)

    def __str__(self) -> str:
        return str(float(self.share))


@dataclass(frozen=True)
class ThresholdBudget:
    """The least score of a pair that stays; protected pairs stay whatever their scores.

    A prompt decides how many pairs that is, in each cache head for itself: rows say how many were kept. Evictions from
    the answer judge every pair that is no longer protected. Source: `DMSPress` of kvpress.
    """

    score: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.score):
            raise UserError(f"budget={self} is no number: {ALLOWED}")

    def of(self, num_tokens: int) -> int:
        """Return the most pairs per cache head that may stay of `num_tokens` tokens: all of them."""
        return num_tokens

    def claims(self) -> Iterator[Claim]:
        """Return what it needs of other settings, and what it makes untrue."""
        decides = "lets the scores decide how many pairs stay"
        facts = (SIZED_BUDGET, COUNTED_BUDGET, EVEN_BUDGET, EVEN_LAYERS, EVEN_IN_LAYER, EVEN_HEADS)
        needs = {FULL_CACHE: "judges a prompt as a whole", LASTING: "judges pairs by a score that lasts, as key_norm"}
        yield Claim(f"budget={self}", "a fraction or a number of KV pairs", needs, dict.fromkeys(facts, decides))

    def __str__(self) -> str:
        short = f"{self.score:g}"
        return THRESHOLD + (short if float(short) == self.score else repr(self.score))


Budget = TokenBudget | FractionBudget | ThresholdBudget


@dataclass(frozen=True)
class ByteBudget:
    """Bytes of the KV pairs of one prompt, in all layers that are evicted from. text: how they were written."""

    number: int
    text: str

    def claims(self) -> Iterator[Claim]:
        """Return what it needs of other settings."""
        needs = {PLAIN_COPY: "counts KV pairs as the model stores them"}
        yield Claim(f"budget={self.text}", "a number of KV pairs or a fraction", needs)

    def tokens(self, token_bytes: int) -> TokenBudget:
        """Return the KV pairs per cache head that fit, where a token takes `token_bytes` in all heads and layers
        together.

        Raises UserError if none does.
        """
        if self.number < token_bytes:
            least = f"a token takes {size([token_bytes])} in all heads and layers of this model"
            raise UserError(f"budget={self.text} keeps nothing: {least}; {ALLOWED}")
        return TokenBudget(self.number // token_bytes, self.text)


def parse_bytes(literal: object) -> ByteBudget | None:
    """Read a budget in bytes, such as `600KiB`; None for what is written otherwise."""
    text = str(literal).strip()
    number = parse_size(text)
    return None if number is None else ByteBudget(number, text)


def _parse_threshold(text: str) -> ThresholdBudget:
    try:
        score = float(text.removeprefix(THRESHOLD))
    except ValueError:
        raise UserError(f"budget={text} has no number after {THRESHOLD} {ALLOWED}") from None
    return ThresholdBudget(score)


def parse_budget(literal: str | int | float) -> Budget:
    """Read a budget as it is written on the command line: digits count pairs, a dot or an exponent makes a share, and
    `threshold:` comes before a score.

    Raises UserError for anything else.
    """
    text = str(literal).strip()
    if text.startswith(THRESHOLD):
        return _parse_threshold(text)
    try:
        if isinstance(literal, bool):
            raise InvalidOperation
        number = Decimal(text)
    except InvalidOperation:
        raise UserError(f"budget={text} is not a number: {ALLOWED}") from None
    if text.lstrip("+-").isdigit():
        return TokenBudget(int(text))
    return FractionBudget(number)
