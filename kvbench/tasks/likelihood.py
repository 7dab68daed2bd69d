"""Tasks that ask nothing: a text is read as it is, and each token is worth what the model thought of it."""

from dataclasses import dataclass
from typing import Literal

from kvbench.support.errors import UserError
from kvbench.tasks.prompting import Prompting
from kvbench.tasks.sample import Sample


@dataclass(frozen=True, kw_only=True)
class Likelihood(Prompting):
    """What tasks derive from whose metric is the negative log-likelihood of their texts while the cache is cut.

    context_length: tokens scored of each text, its first ones, or all of a text that has fewer. evict: whether a cut
    comes `after` a token was read, so that each token sees the budget and itself, or `before`, so that cache and new
    token fit the budget together. reset: whether every text starts from an empty cache, or from what the text before
    it left. A text is `Sample.context` whole, or `Sample.question` where there is one: then the context is read before
    it, up to `given_tokens`, and `answer_prefix` stands between the two. Whoever reads it cuts it to tokens and begins
    it with what the tokenizer puts before a text.

    Raises ValueError for values outside the legal set and for settings of prompts and answers, which there are none of.
    """

    context_length: int
    evict: Literal["after", "before"] = "after"
    reset: bool = True
    chat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context_length < 1:
            raise UserError(f"task.context_length={self.context_length}: at least 1 token is scored")
        if self.evict not in ("after", "before"):
            raise UserError(f"task.evict={self.evict!r}: legal: after, before")
        if self.chat or self.truncation != "refuse" or self.max_prompt_tokens is not None:
            raise UserError(
                "a text whose tokens are scored is read as it is: task.chat=false, task.truncation=refuse and "
                "task.max_prompt_tokens=null; task.context_length says how much of it"
            )
        if self.stop or self.min_new_tokens:
            raise UserError("a text whose tokens are scored has no answer: task.stop=[] and task.min_new_tokens=0")

    @property
    def in_blocks(self) -> bool:
        """Whether `schedule.prefill_block` may be set; else tokens are read one at a time."""
        return False

    @property
    def given_tokens(self) -> int:
        """Most tokens that are read before those that are scored."""
        return 0

    @property
    def metric(self) -> str:
        """Mean negative log-likelihood, in nats a token."""
        return "nll"

    @property
    def max_new_tokens(self) -> int:
        """Nothing is written."""
        return 0

    def score(self, prediction: str, sample: Sample) -> float:
        """There is no answer to score."""
        raise AssertionError(f"{sample.task} has no answers")
