"""Time and memory: one prompt of a given length, prefilled, evicted and decoded by a batch of sequences.

    harbor 48213 lantern 90125 ...      words and numbers, drawn once, truncated to exactly `context_length` tokens

The settings come from OBCache D.1 (https://arxiv.org/abs/2510.07651) and LAVa section 5.3.
"""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kvbench.support.errors import UserError
from kvbench.support.facts import ASKED, QUESTION, QUESTION_READ, UNTIMED, WHOLE_PROMPT, Claim
from kvbench.tasks.task import Sample, Task, TokenCounter, refuse_prompt_settings

WORDS = ("harbor", "lantern", "meadow", "copper", "violin", "glacier", "saddle", "orchard", "pepper", "anchor")


@dataclass(frozen=True, kw_only=True)
class Efficiency(Task):
    """One timed prompt of exactly `context_length` tokens. Settings of prompts and answers do not apply.

    batch: sequences that decode together, each with its own cache of the prompt. new_tokens: exact number of tokens of
    each answer. repeats: measured repetitions, one row each. warmup: repetitions before them that are not recorded.

    - Protocol: settings of OBCache D.1, LAVa 5.3 and CAOTE appendix E. docs/cost.md
      explains what is timed and how. A sample is a repetition; all repetitions read the same prompt.
    - Split: after the whole prompt; there is no question.
    - Metric: seconds and bytes of prefill, eviction and decoding; answers are not scored.
    - Source: words and numbers drawn with the seed; no data is needed.
    - Traps: a batch is several sequences of one prompt, prefilled one after the other.
    """

    name: str = "efficiency"
    context_length: int = 512
    batch: int = 1
    new_tokens: int = 64
    repeats: int = 5
    warmup: int = 1
    seed: int = 42
    chat: bool = False
    report = "efficiency"
    has_prompts = False
    version = "efficiency.1"
    metric = "seconds_per_token"  # median time between tokens of the batch
    unit = "seconds"
    better = "lower"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("context_length", 2), ("batch", 1), ("new_tokens", 2), ("repeats", 1), ("warmup", 0)):
            if getattr(self, name) < least:
                raise UserError(f"task.{name}={getattr(self, name)}: allowed: {least} or more")
        refuse_prompt_settings(self)

    @property
    def procedure(self) -> str:
        return "kvbench.extras.efficiency.timed:Timings"

    @property
    def samples(self) -> int:
        return self.repeats

    @property
    def max_new_tokens(self) -> int:
        return self.new_tokens

    @property
    def own_prefills(self) -> int:
        return self.batch

    def job_number(self, sample: int, evict_after: str) -> int:
        return 0  # cells take turns, repetition by repetition

    def claims(self) -> Iterator[Claim]:
        yield from super().claims()
        breaks = dict.fromkeys((QUESTION, QUESTION_READ), "has no question") | {
            WHOLE_PROMPT: "has no prompt with an answer",
            UNTIMED: "measures seconds, and readers here only mask",
            ASKED: "measures this machine",
        }
        yield Claim(f"task {self.name}", "another task", breaks=breaks)

    def context_of(self, sample: int) -> int:
        return 0  # all repetitions read one text

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample]:
        """Yield the same text for each repetition, of at least `context_length` tokens: every word has at least one."""
        draw = random.Random(f"efficiency {self.seed}")
        word_pairs = (self.context_length + 1) // 2
        text = " ".join(f"{draw.choice(WORDS)} {draw.randrange(10**5)}" for _ in range(word_pairs))
        for index in sorted(indices):
            yield Sample(index, self.name, text, "", "", (), self.new_tokens)

    def score(self, prediction: str, sample: Sample) -> float:
        raise AssertionError(f"{sample.task} has no answers")
