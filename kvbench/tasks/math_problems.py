"""MATH-500 and AIME: short problems with long answers, which end in a boxed value.

    problem     What is the least positive integer ...?
    answer      \\left( 3, \\frac{\\pi}{2} \\right)       AIME: a whole number, also as a text

MATH-500 is math_splits/test.jsonl of https://github.com/openai/prm800k. The problems of AIME 2024 are those of
https://github.com/Zefan-Cai/R-KV, those of 2025 of math-ai/aime25 on the hub.

Prompts: `boxed` adds the sentence that the model cards of DeepSeek-R1 and Qwen3 ask for; `rkv` is the prompt of
run_math.py in R-KV, without a chat template there.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles, limit_samples
from kvbench.tasks.metrics import math_answers
from kvbench.tasks.task import InvalidSample, Sample, Task, Tokens, require_positive

PROMPTS = {
    "boxed": ("", "\nPlease reason step by step, and put your final answer within \\boxed{}."),
    "rkv": (
        "You are given a math problem.\n\nProblem: ",
        "\n\n You need to solve the problem step by step. First, you need to provide the chain-of-thought, then "
        "provide the final answer.\n\n Provide the final answer in the format: Final answer:  \\boxed{}",
    ),
}
"""What precedes a problem and what follows it."""
Prompt = Literal["boxed", "rkv"]


@dataclass(frozen=True, kw_only=True)
class MathProblems(FromFiles, Task):
    """The problems of a file. Sample i is row i."""

    name: str
    file: str
    max_new_tokens: int
    prompt: Prompt = "boxed"
    samples: int = 50
    seed: int = 42
    version = "math.1"  # names the protocol; `data_sha256` names the rows
    metric = "boxed_value"
    context_length = None  # problems have their own lengths

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "samples", "max_new_tokens")
        limit_samples(self, lambda: jsonl.count(self.root, self.file))

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,)

    def score(self, prediction: str, sample: Sample) -> float:
        (reference,) = sample.references
        return math_answers.same_value(prediction, reference)

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        math_answers.check_package()  # before the first sample
        before, after = PROMPTS[self.prompt]
        for index, line in jsonl.samples(self, range(jsonl.count(self.root, self.file)), indices):
            try:
                row = line.read()
                problem = jsonl.nonempty_text(row, "problem")
                answer = jsonl.field(row, "answer")
                if isinstance(answer, bool) or not isinstance(answer, str | int) or not str(answer).strip():
                    raise UserError(f"its answer is {str(answer)[:80]!r}: a text or a whole number")
            except ValueError as error:
                yield InvalidSample(index, self.name, f"{line.place}: {error}")
                continue
            yield Sample(index, self.name, before + problem, after, "", (str(answer),), self.max_new_tokens)
