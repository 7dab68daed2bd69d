"""MATH-500 and AIME: short problems with long answers, which end in a boxed value.

    problem     What is the least positive integer ...?
    answer      \\left( 3, \\frac{\\pi}{2} \\right)       AIME: a whole number, also as a text

MATH-500 is math_splits/test.jsonl of https://github.com/openai/prm800k. The problems of AIME 2024 come from
https://github.com/Zefan-Cai/R-KV, and of AIME 2025 from math-ai/aime25 on the hub.

Prompts: `boxed` adds the sentence that the model cards of DeepSeek-R1 and Qwen3 ask for; `rkv` is the prompt of
run_math.py in R-KV, without a chat template there.
"""

import atexit
import multiprocessing
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from multiprocessing.pool import Pool
from typing import Literal

from kvbench.support.children import Spawning, safe_path
from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.metrics import pinned
from kvbench.tasks.task import Sample, TokenCounter

SECONDS = 20.0
"""The time limit of a comparison: sympy may compute without end."""
VERSION = "0.9.0"  # of math-verify
LAST_POINT = re.compile(r"(?<!\.)\.\s*$")
PERCENT = re.compile(r"(.*?)\s*\\?%\s*", re.DOTALL)
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
class MathProblems(jsonl.RowTask):
    r"""The problems of a file.

    - Protocol: the problem and the sentence that the model cards of DeepSeek-R1 and Qwen3 ask for
      (`task.prompt=boxed`), or the prompt of R-KV's `run_math.py` (`task.prompt=rkv task.chat=false`). Answers are
      long: evict while decoding (`schedule.decode_every`).
    - Split: after the problem.
    - Source: openai/prm800k, Zefan-Cai/R-KV (2024), math-ai/aime25 (2025).
    - Metric: the last `\boxed{...}`, braces balanced, equals the reference, either as text without spaces or by
      math-verify 0.9.0 (sympy), which runs in a separate process with a limit of 20 seconds per comparison. An answer
      without a box is 0. All 500 reference answers of MATH-500 equal themselves. Of several boxes the last counts, as
      in MATH's own grader: the earlier ones are of steps, and a model that corrects itself boxes again. A full stop at
      the end is ignored. `75\%` is 3/4 and, as in MATH's own grader, 75. A list without parentheses is the tuple in the
      same order.
    - Answers are greedy. As the model cards ask: `task.temperature=0.6 task.top_p=0.95 task.samples_per_prompt=8`; see
      docs/tasks.md#drawn-answers.
    - Traps: kvpress ends the box at the first closing brace and compares texts, so that 103 of the 500 reference
      answers score 0 against themselves.
    """

    file: str
    max_new_tokens: int
    prompt: Prompt = "boxed"
    version = "math.2"  # names the protocol; `data_sha256` names the rows
    metric = "boxed_value"
    context_length = None  # rows have their own lengths

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,)

    def score(self, prediction: str, sample: Sample) -> float:
        (reference,) = sample.references
        return same_value(prediction, reference)

    def row_reader(self, tokens: TokenCounter) -> Callable[[int, jsonl.Row], Sample]:
        check_package()
        before, after = PROMPTS[self.prompt]

        def read(index: int, row: jsonl.Row) -> Sample:
            problem, answer = jsonl.nonempty_text(row, "problem"), jsonl.field(row, "answer")
            if isinstance(answer, bool) or not isinstance(answer, str | int) or not str(answer).strip():
                raise UserError(f"its answer is {str(answer)[:80]!r}: a text or a whole number")
            return Sample(index, self.name, before + problem, after, "", (str(answer),), self.max_new_tokens)

        return read


def boxed(answer: str) -> str | None:
    """Return the content of the last `\\boxed{...}`, braces balanced as in LaTeX; None if none closes.

    Of several boxes the last counts, as for MATH's own grader (`last_boxed_only_string`): earlier ones are of steps,
    and a model that corrects itself boxes again.
    """
    start = answer.rfind("\\boxed{")
    if start < 0:
        return None
    content, depth, escaped = answer[start + len("\\boxed{") :], 1, False
    for at, character in enumerate(content):
        if not escaped and character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return content[:at]
        escaped = character == "\\" and not escaped
    return None


def same_value(prediction: str, reference: str) -> float:
    """1 if the last boxed expression of an answer equals the reference, both LaTeX: as texts without blanks, or by
    math-verify (numbers, fractions, tuples, sets, intervals, symbolic expressions). 0 without a box, and if the
    comparison takes longer than `SECONDS`.

    A full stop at the end says nothing. A percentage equals the fraction and, as for MATH's own grader, the number
    before the sign. A list without parentheses equals the tuple in the same order.

    Raises UserError if math-verify is not installed at its pinned version.
    """
    value = boxed(prediction)
    if value is None:
        return 0.0
    value, reference = (LAST_POINT.sub("", text) for text in (value, reference))
    if "".join(value.split()) == "".join(reference.split()):
        return 1.0
    try:
        return float(_child().apply_async(equal, (value, reference)).get(SECONDS))
    except multiprocessing.TimeoutError:
        _child().terminate()
        _child.cache_clear()
        return 0.0


def equal(value: str, reference: str) -> bool:
    """Return whether math-verify finds two LaTeX expressions equal. Runs in a process of its own."""
    pinned("math-verify", VERSION, "math_verify")
    from math_verify import parse, verify

    percent = [PERCENT.fullmatch(text) for text in (reference, value)]
    references, values = [reference], [value]
    if percent[0] and percent[1]:
        references, values = [percent[0][1]], [percent[1][1]]
    elif percent[0]:
        references = _readings(percent[0][1])
    elif percent[1]:
        values = _readings(percent[1][1])
    pairs = product(references, values)
    return any(
        verify(parse(f"\\boxed{{{expected}}}"), parse(f"\\boxed{{{predicted}}}")) for expected, predicted in pairs
    )


def _readings(number: str) -> list[str]:
    """Return the readings of a percentage: its number, and a hundredth of it."""
    return [number, f"\\frac{{{number}}}{{100}}"]


def check_package() -> None:
    """Raise UserError with the fix if math-verify is missing."""
    pinned("math-verify", VERSION, "math_verify")


@cache
def _child() -> Pool:
    """Return a process that has compared once: its start and imports, slow on a busy machine, are in no time limit."""
    with safe_path():
        pool = Spawning().Pool(1)
    atexit.register(pool.terminate)
    pool.apply(equal, ("1", "1"))
    return pool
