"""The step after selection: by default evicted pairs are dropped and kept ones stay as they are."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Kept
from kvbench.eviction.allocation.shares import Variant
from kvbench.support.facts import EVICTS, MODEL_KEYS, ONE_EVICTION, PLAIN_COPY, PROMPT, UNCHANGED, Claim


class Apply:
    """Base class of what is done after selection; it does nothing.

    A plugin's is a frozen dataclass that inherits from this, with a `kind` of its own.

    reads_rows: whether it reads observed queries. changes_keys: whether kept keys change, so that no position rotates
    them any more. once: whether it follows the eviction of a prompt only. prunes_keys: whether it removes channels of
    keys, also where nothing is evicted: the cell then holds them without these channels.
    """

    kind: str
    reads_rows: ClassVar[bool] = False
    changes_keys: ClassVar[bool] = False
    once: ClassVar[bool] = False

    @property
    def prunes_keys(self) -> bool:
        return False

    @property
    def setting(self) -> str:
        """How messages name it."""
        return f"policy.apply={self.kind}"

    def claims(self, policy: Any) -> Iterator[Claim]:
        """What it needs of other settings, and what it breaks."""
        needs = {} if self.prunes_keys else {EVICTS: "merges evicted pairs"}
        if self.once:
            needs |= dict.fromkeys((PROMPT, ONE_EVICTION), "follows the eviction of a prompt only")
        breaks = {UNCHANGED: "changes kept pairs"}
        if self.changes_keys:
            breaks[MODEL_KEYS] = "makes keys that no position has rotated (cam and nearest make none)"
        if self.prunes_keys:
            breaks[PLAIN_COPY] = "removes channels of keys"
        yield Claim(self.setting, "policy.apply=drop", needs, breaks)

    def rows(self, window: int, tokens: int) -> int:
        """How many of the newest queries it reads of `tokens` tokens. window: those that the policy observes."""
        return window

    def __call__(
        self, before: LayerCache, kept: Kept, after: LayerCache, rows: Window | None, variant: Variant
    ) -> LayerCache:
        """`after`, the pairs of `before` that are marked in `kept`, as the layer holds them from now on.

        Rows of `kept` are the cache heads of `after`, columns the slots of `before`. What `after` holds beyond them,
        newer than all of `before`, stays as it is. rows: observed queries, None unless they are read.
        """
        return after


@dataclass(frozen=True)
class Drop(Apply):
    """Evicted pairs are dropped, kept ones stay as they are: eviction as the word says."""

    kind: Literal["drop"] = "drop"

    def claims(self, policy: Any) -> Iterator[Claim]:
        return iter(())
