"""Budgets: what is kept, never what is removed. `Fraction(0.1)` of the tokens, or `Tokens(1024)` KV pairs per head.

Both count KV pairs per cache head on average over heads and layers, protected ones included.
"""

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

from kvbench.support.errors import UserError

ALLOWED = (
    "allowed: a fraction of the prompt in (0, 1] with a dot or exponent (0.1), or a number of KV pairs per head, 1 "
    "or more (1024)"
)


@dataclass(frozen=True)
class Tokens:
    """A fixed number of KV pairs per cache head."""

    pairs: int

    def __post_init__(self) -> None:
        if self.pairs < 1:
            raise UserError(f"budget={self.pairs} keeps nothing: {ALLOWED}")

    def of(self, num_tokens: int) -> int:
        """KV pairs per cache head after `num_tokens` tokens; more than `num_tokens` means that all are kept."""
        return self.pairs

    def __str__(self) -> str:
        return str(self.pairs)


@dataclass(frozen=True)
class Fraction:
    """A share of the tokens, rounded half up, at least one. Decimal: 0.1 of 385 tokens becomes 39 on every machine."""

    share: Decimal

    def __post_init__(self) -> None:
        if not self.share.is_finite() or not 0 < self.share <= 1:
            raise UserError(f"budget={self.share} is out of range: {ALLOWED}")

    def of(self, num_tokens: int) -> int:
        return max(1, int((self.share * num_tokens).to_integral_value(ROUND_HALF_UP)))

    def __str__(self) -> str:
        return str(float(self.share))


Budget = Tokens | Fraction


def parse_budget(literal: str | int | float) -> Budget:
    """Read a budget as it is written on the command line: digits count pairs, a dot or an exponent makes a share.

    Raises UserError for anything else.
    """
    text = str(literal).strip()
    try:
        if isinstance(literal, bool):
            raise InvalidOperation
        number = Decimal(text)
    except InvalidOperation:
        raise UserError(f"budget={text} is not a number: {ALLOWED}") from None
    if text.lstrip("+-").isdigit():
        return Tokens(int(text))
    return Fraction(number)
