"""The setting `policy.positions`: whether kept pairs keep the positions at which the model read them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, get_args

from kvbench.eviction.step import RANKINGS, Step
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError
from kvbench.support.facts import EVEN_HEADS, MODEL_KEYS, OWN_ROTATION, READ_ORDER, Claim

Numbering = Literal["original", "cache"]


@dataclass(frozen=True)
class Positions(Step):
    """Kept pairs are numbered by their slots, so that new tokens follow them without a gap.

    Raises UserError for a value that is not allowed.
    """

    positions: Annotated[
        Numbering, Help("cache: kept tokens are numbered 0, 1, ... again and their keys rotated to that")
    ] = "original"
    order: ClassVar[int] = RANKINGS  # it changes none, but its claims come first
    after: ClassVar[str] = "slot_order"
    renumbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.positions not in get_args(Numbering):
            allowed = ", ".join(get_args(Numbering))
            raise UserError(f"policy.positions={self.positions} is not allowed; allowed: {allowed}")

    @property
    def idle(self) -> bool:
        return self.positions == "original"

    def claims(self, policy: Any) -> Iterator[Claim]:
        needs = {EVEN_HEADS: f"needs {EVEN_HEADS}", READ_ORDER: f"numbers {READ_ORDER}"}
        needs[MODEL_KEYS] = "rotates kept keys anew"
        breaks = {OWN_ROTATION: "rotates the keys of each cell anew"}
        yield Claim(f"{self.setting} of {policy.name}", "policy.positions=original", needs, breaks)

    def begin(self, cache: Any, engine: Any) -> Any:
        from kvbench.extras.positions.renumbered import renumbered, rotation_of

        return renumbered(cache, rotation_of(engine))

    def evicting(self, kind: Any, engine: Any) -> Any:
        from kvbench.extras.positions.renumbered import RenumberedEvictingCache, rotation_of

        return partial(RenumberedEvictingCache, re_rotation=rotation_of(engine))
