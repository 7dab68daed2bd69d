"""Settings that every task has: how its prompts are made into tokens and how its answers end."""

from dataclasses import dataclass
from typing import Literal

from kvbench.support.errors import UserError

Truncation = Literal["refuse", "middle", "left", "right"]


@dataclass(frozen=True, kw_only=True)
class Prompting:
    """What a task's protocol says about its prompts and its answers; tasks derive from it.

    chat: whether a chat template may be put around the prompt; False where the protocol sends it raw. truncation,
    max_prompt_tokens: what goes of a prompt that is too long, and when it is; `middle` and `refuse` count context and
    question, `left` and `right` the context alone; null is no limit but the model's. `middle` cuts to what the model
    reads where that is less. stop: texts that end an answer
    besides the model's own stop tokens; each must be one token of the model's tokenizer ("\\n"). min_new_tokens: no
    answer ends before so many tokens: until then what would end it cannot be chosen.

    Raises ValueError for values outside the legal set.
    """

    chat: bool = True
    truncation: Truncation = "refuse"
    max_prompt_tokens: int | None = None
    stop: tuple[str, ...] = ()
    min_new_tokens: int = 0

    def __post_init__(self) -> None:
        if self.max_prompt_tokens is None and self.truncation != "refuse":
            raise UserError(
                f"task.truncation={self.truncation} cuts to task.max_prompt_tokens=N, which is null: give a number"
            )
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 2:
            raise UserError(f"task.max_prompt_tokens={self.max_prompt_tokens}: at least 2, or null for no limit")
        if any(not text for text in self.stop):
            raise UserError('task.stop lists an empty text: legal: texts of one token, such as ["\\n"]')
        if self.min_new_tokens < 0:
            raise UserError(f"task.min_new_tokens={self.min_new_tokens}: 0 or more")

    @property
    def stop_replaces(self) -> bool:
        """Whether of the model's own stop tokens only its tokenizer's end of sequence ends an answer beside `stop`."""
        return False

    def context_of(self, sample: int) -> int:
        """A number that samples share which ask about the same context, and no others; known without reading it."""
        return sample
