"""Tasks without questions: a text is read, and the metric is the negative log-likelihood of its tokens."""

from dataclasses import dataclass
from typing import Literal

from kvbench.support.errors import UserError
from kvbench.tasks.task import Sample, Task, refuse_prompt_settings


@dataclass(frozen=True, kw_only=True)
class Likelihood(Task):
    """Base class of tasks that score the tokens of texts while the cache is being evicted.

    context_length: number of tokens scored of each text. evict: eviction `after` a token was read, so that each token
    attends to the budget and to itself, or `before`, so that cache and new token fit the budget together.
    reset: whether every text starts from an empty cache, or from the cache of the previous text. The scored text is
    `Sample.context`, or `Sample.question` if there is one: then the first `given_tokens` tokens of the context are read
    before it, and `answer_prefix` stands between the two. The tokenizer's first special token precedes the text.
    Settings of prompts and answers do not apply.
    """

    context_length: int
    evict: Literal["after", "before"] = "after"
    reset: bool = True
    chat: bool = False
    metric = "nll"  # mean negative log-likelihood in nats per token
    max_new_tokens = 0
    in_blocks = False  # whether `schedule.prefill_block` may be set; otherwise tokens are read one at a time
    given_tokens = 0  # maximum number of tokens that are read before the scored ones

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context_length < 1:
            raise UserError(
                f"task.context_length={self.context_length}: allowed: 1 or more, the tokens that are scored"
            )
        if self.evict not in ("after", "before"):
            raise UserError(f"task.evict={self.evict!r}: allowed: after, before")
        refuse_prompt_settings(self)

    def score(self, prediction: str, sample: Sample) -> float:
        raise AssertionError(f"{sample.task} has no answers")
