"""Settings that every task has: how an answer ends."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Prompting:
    """What a task's protocol says about reading its prompts and ending its answers; tasks derive from it.

    stop: texts that end an answer besides the model's own stop tokens; each must be one token of the model's tokenizer
    ("\\n"). min_new_tokens: no answer ends before so many tokens: until then what would end it cannot be chosen.

    Raises ValueError for values outside the legal set.
    """

    stop: tuple[str, ...] = ()
    min_new_tokens: int = 0

    def __post_init__(self) -> None:
        if any(not text for text in self.stop):
            raise ValueError('task.stop lists an empty text: legal: texts of one token, such as ["\\n"]')
        if self.min_new_tokens < 0:
            raise ValueError(f"task.min_new_tokens={self.min_new_tokens}: 0 or more")
