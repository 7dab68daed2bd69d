"""Rotary embeddings whose frequencies depend on how many tokens are read: `dynamic` and `longrope` of transformers.

transformers takes the last position of a forward pass for the length. Read in blocks, the first blocks would be rotated
by other frequencies than the whole prompt; so such prompts are read whole. What is read later must not change the
frequencies either, because the keys in the cache stay as they were rotated. transformers' own `generate` drops the
cache there (Phi-3) or goes on with keys that do not fit (dynamic).
"""

from dataclasses import dataclass
from typing import Any

from kvbench.models.loading.architecture import text_config
from kvbench.support.errors import UserError

LENGTH_DEPENDENT = ("dynamic", "longrope")


@dataclass(frozen=True)
class LengthRope:
    """Up to `border` tokens frequencies do not depend on the length. Beyond it `longrope` has one other set of them,
    `dynamic` one for every length."""

    kind: str
    border: int

    def check(self, prompt: int, later: int) -> None:
        """Raise ValueError where `later` tokens read after a prompt of `prompt` would change its frequencies."""
        total = prompt + later
        steady = (prompt > self.border) == (total > self.border) and (self.kind == "longrope" or total <= self.border)
        if later and not steady:
            raise UserError(
                f"the model's rope_type {self.kind} changes its frequencies beyond {self.border} tokens: after a "
                f"prompt of {prompt} tokens {later} more cannot be read, since the cached keys would no longer fit"
            )


def length_rope(config: Any) -> LengthRope | None:
    """The length-dependent embedding of a configuration, or None where frequencies are the same at any length."""
    text = text_config(config)
    parameters = getattr(text, "rope_parameters", None) or {}
    every = [parameters] if "rope_type" in parameters else [part for part in parameters.values() if part]
    found = {
        LengthRope(rope["rope_type"], _border(rope, text))
        for rope in every
        if isinstance(rope, dict) and rope.get("rope_type") in LENGTH_DEPENDENT
    }
    if len(found) > 1:
        kinds = ", ".join(sorted(f"{rope.kind} beyond {rope.border}" for rope in found))
        raise UserError(f"layers differ in how their frequencies depend on the length ({kinds}): not supported")
    return found.pop() if found else None


def _border(rope: dict[str, Any], text: Any) -> int:
    if rope["rope_type"] == "longrope":
        return rope["original_max_position_embeddings"]
    return text.max_position_embeddings
