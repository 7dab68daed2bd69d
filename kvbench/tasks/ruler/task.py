"""Base class of the RULER tasks: eras, samples drawn from one generator in sequence, and the sizes of haystacks.

The benchmark's generators changed several times; two states of https://github.com/NVIDIA/RULER are implemented:

* `era=2026`: c3f5e3b (2026-07-22), sizes found by bisection (`bisected`);
* `era=2024`: e40fae1 (2024-10), sizes found by growing step by step (`stepped`). Data sets published in 2024 are of
  this kind (`simonjegou/ruler`, the files of KVCache-Factory). Its rows hold the answer prefix inside `input`; here it
  is separate in both eras, because the official prepare.py puts it after a chat template.

`context_length` includes the tokens to generate and, as in the official prepare.py, the tokens of a chat template, so
that a prompt of that length fits a model that reads no more. Every probe of a search draws a new prompt and so advances
the generator: the probes are part of the benchmark's definition.

Metrics follow scripts/eval/synthetic/constants.py and scripts/eval/evaluate.py. Aggregation: the mean over samples; the
official number is x 100, rounded to two digits.
"""

import re
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from kvbench.support.errors import UserError
from kvbench.tasks.task import Sample, Task, require_choice, require_positive

VERSIONS = {"2024": "ruler-e40fae1-2024.3", "2026": "ruler-c3f5e3b-2026.3"}
LONGEST = 2**22  # the largest context length that is tried, in tokens
TRIES = 100  # attempts at the smallest size before an error; the official loop never ends there
CountTokens = Callable[[str], int]
CONTROL = re.compile(r"[\x00-\x1f]")


class DoesNotFit(Exception):
    """No prompt of the smallest size fits; `longest` is the longest one's length in tokens."""

    def __init__(self, longest: int):
        super().__init__(f"prompts of the smallest size are up to {longest} tokens long")
        self.longest = longest


class RulerPrompt(NamedTuple):
    """One drawn prompt in its parts, with the right answers. text_in_common: as of a `Sample`."""

    context: str
    question: str
    answer_prefix: str
    answers: tuple[str, ...]
    text_in_common: str = ""

    @property
    def text(self) -> str:
        return self.context + self.question + self.answer_prefix

    def after(self, text: str) -> "RulerPrompt":
        return self._replace(context=text + self.context)


@dataclass(frozen=True, kw_only=True)
class RulerTask(Task):
    """One RULER task. Lengths in tokens.

    `step` is the increment and the minimum of the haystack's size, in the task's own units; null is the benchmark's.

    - Protocol: NVIDIA/RULER, `scripts/data/synthetic/*.py`, samples from one generator with seed 42; the benchmark
      takes 500 samples per task, `task.samples` is 50 by default.
    - Era: `task.era=2026` is c3f5e3b (sizes by bisection), `task.era=2024` is e40fae1 (sizes step by step), which made
      the data sets published in 2024. Prompts of the two eras differ in text and in size: report the era with every
      number.
    - Length: `task.context_length` counts the prompt, the tokens of the model's chat template and the new tokens, so
      that a model that reads 8192 tokens can be given `task.context_length=8192`. The official `prepare.py` also
      measures a prompt with its template. Without a chat template the special token before a text (BOS) is not counted,
      as officially: such a prompt may be one token longer than declared. A prompt that is too long is shortened by one
      step of the haystack, so prompts are up to three steps shorter than the declared length. Without the setting, all
      RULER tasks of a command have the longest of their default lengths with the embedded model (`task=ruler`: 4096
      tokens); any other model needs the setting.
    - Split: after the haystack. A solved example (vt, cwe) is part of the context.
    - Texts: officially all prompts of a task hide their needles in one text, so that intervals tell of needles and not
      of texts. `task.texts=varied` gives each prompt another part of the essays, `task.haystack=book` of the books of
      PG19, and prompts with one part are one cluster of every test and interval. With `task.step=25` prompts have the
      declared length.
    - Metric: share of the references that the answer contains, regardless of case (`string_match_all`), or whether it
      contains any (`string_match_part`).
    - Source: generated; essays from `paul_graham_essays`, qa from SQuAD 2.0 and HotpotQA. Words come from wonderwords
      2.2.0; another release would be another benchmark and is refused.
    - Traps: kvpress deletes control characters before it matches. For qa, lm-evaluation-harness averages over the
      references, where the official metric takes the best one. LAVa and KVCache-Factory allow 64 new tokens for all
      tasks. nltk's sentence splitter changes prompts with essays: the version names the splitter.
    """

    name: str
    context_length: int = 1024
    samples: int = 50
    seed: int = 42
    era: str = "2026"
    max_new_tokens: int
    step: int | None = None
    metric = "string_match_all"
    shared_length = True
    _smallest_step = 1
    _unit = "words"  # of the haystack's size, for messages

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "era", VERSIONS)
        require_positive(self, "context_length", "samples", "max_new_tokens")
        if self.step is not None and self.step < self._smallest_step:
            raise UserError(f"task.step={self.step} of {self.name}: allowed: {self._smallest_step} or more, or null")

    @property
    def version(self) -> str:
        ours = "" if self._step == self._official_step else f"-step{self._step}"
        return VERSIONS[self.era] + ours

    def score(self, prediction: str, sample: Sample) -> float:
        return string_match(self.metric, prediction, sample.references)

    @property
    @abstractmethod
    def _official_step(self) -> int: ...

    @property
    def _step(self) -> int:
        return self.step or self._official_step

    @abstractmethod
    def _prompts(self, count_tokens: CountTokens, reserved: int) -> Iterator[RulerPrompt]:
        """Return an endless sequence of prompts, in the official order of draws. Raises DoesNotFit.

        reserved: tokens of `context_length` that a chat template takes.
        """

    def generate(self, count_tokens: CountTokens, indices: Collection[int]) -> Iterator[Sample]:
        """As `Task.generate`. All samples come from one generator in sequence, so that earlier ones are drawn too.

        If no prompt fits `context_length`, the error names the smallest one that holds all samples.
        """
        template: int = getattr(count_tokens, "template", 0)
        try:
            for index, prompt in in_sequence(self._prompts(count_tokens, template), indices):
                parts, in_common = prompt[:4], prompt.text_in_common
                yield Sample(index, self.name, *parts, self.max_new_tokens, text_in_common=in_common)
        except DoesNotFit as error:
            samples = max(self.samples, max(indices) + 1)
            smallest = self._smallest(count_tokens, template, error.longest, samples)
            templated = f", the chat template {template}" if template else ""
            fix = f"smallest context_length for {samples} samples: {smallest}"
            raise UserError(
                f"task.context_length={self.context_length} cannot hold {self.name}: the smallest haystack has "
                f"{self._step} {self._unit}, the answer has {self.max_new_tokens} tokens{templated}; "
                f"{'no context_length is large enough with this tokenizer' if smallest is None else fix}"
            ) from None

    def _smallest(self, count_tokens: CountTokens, template: int, longest: int, samples: int) -> int | None:
        """Return a context length that holds `samples` samples although one token less does not; None if no length
        does.

        A solved example has a fixed limit, which a tokenizer with many tokens per word may exceed.
        """

        def holds(length: int) -> bool:
            try:
                for _ in islice(replace(self, context_length=length)._prompts(count_tokens, template), samples):
                    pass
            except DoesNotFit:
                return False
            return True

        low, high = self.context_length, max(longest + self.max_new_tokens + template, self.context_length + 1)
        while not holds(high):
            low, high = high, 2 * high
            if high > LONGEST:
                return None
        return low + 1 + bisect_left(range(low + 1, high), True, key=holds)


def in_sequence(prompts: Iterator[RulerPrompt], indices: Collection[int]) -> Iterator[tuple[int, RulerPrompt]]:
    """Yield the prompts with these numbers, each with its number, of prompts that one generator draws in sequence.

    Raises UserError for a number below 0.
    """
    if any(index < 0 for index in indices):
        raise UserError(f"sample indices start at 0, got {min(indices)}")
    numbered = enumerate(islice(prompts, max(indices, default=-1) + 1))
    yield from ((index, prompt) for index, prompt in numbered if index in indices)


def bisected(tokens: Callable[[int], int], step: int, high: int, room: int) -> int:
    """2026: the largest size from `step` to `high` whose probe has at most `room` tokens; `step` if none has."""
    low, best = step, step
    while low <= high:
        middle = (low + high) // 2
        if tokens(middle) <= room:
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best


def bisected_by_rate(
    draw: Callable[[int], RulerPrompt], count_tokens: CountTokens, step: int, limit: int, room: int
) -> int:
    """2026: `bisected` up to three times the size that has `limit` tokens by the rate of a first probe."""

    high = max(int(limit / (count_tokens(draw(step).text) / step) * 3), 2 * step)
    return bisected(lambda size: count_tokens(draw(size).text), step, high, room)


def stepped(
    tokens: Callable[[int], int], step: int, room: int, most: int | None = None, last_probe: int | None = None
) -> int:
    """2024: grow by `step` while probes have fewer than `room` tokens, and step back once if one has more.

    A probe of exactly `room` tokens leaves the size one step too large, as officially. A size above `last_probe`
    (default: `most`) is not probed and becomes `most`.

    Raises DoesNotFit: the first probe is too long. The official code continues with a haystack of size 0.
    """
    size, length = step, 0
    last_probe = most if last_probe is None else last_probe
    while length < room:
        length = tokens(size)
        if length > room:
            size -= step
            break
        size += step
        if most is not None and last_probe is not None and size > last_probe:
            return most
    if size < step:
        raise DoesNotFit(length)
    return size


def fitting(
    draw: Callable[[int], RulerPrompt], count_tokens: CountTokens, size: int, step: int, room: int, smallest: int = 1
) -> RulerPrompt:
    """Return a prompt of at most `room` tokens: redrawn until it fits, each time smaller by `step` while it is larger.

    smallest: the size that `draw` needs; the official code never ends where a step leads below it.

    Raises DoesNotFit: `TRIES` prompts of the smallest size were too long.
    """
    too_long: list[int] = []
    while len(too_long) < TRIES:
        prompt = draw(size)
        tokens = count_tokens(prompt.text)
        if tokens <= room:
            return prompt
        if size > step:
            size = max(size - step, smallest)
        else:
            too_long.append(tokens)
    raise DoesNotFit(max(too_long))


def string_match(metric: str, prediction: str, references: Sequence[str]) -> float:
    """Score of an answer by the metric of that name, `string_match_all` or `string_match_part`."""
    return (string_match_part if metric == "string_match_part" else string_match_all)(prediction, references)


def string_match_all(prediction: str, references: Sequence[str]) -> float:
    """Share of the references that occur in the answer, 0..1: `|{r in R : lower(r) in lower(p)}| / |R|`.

    Substrings match: "12345678" contains "1234567". Namesakes: kvpress deletes control characters, which joins two
    lines ("123\\n4567" then matches 1234567); lm-evaluation-harness agrees.
    """
    answer = _checked(prediction, references)
    return sum(reference.lower() in answer for reference in references) / len(references)


def string_match_part(prediction: str, references: Sequence[str]) -> float:
    """Return whether any of the references occurs in the answer, 0 or 1: `max over r in R of [lower(r) in lower(p)]`.

    For questions whose references are alternatives. Namesakes that differ: lm-evaluation-harness averages over the
    references of a sample (0.5 where one of two occurs).
    """
    answer = _checked(prediction, references)
    return float(any(reference.lower() in answer for reference in references))


def postprocessed(prediction: str) -> str:
    """Strip white space, each control character (newline and tab too) as a newline, stripped again."""
    return CONTROL.sub("\n", prediction.strip()).strip()


def _checked(prediction: str, references: Sequence[str]) -> str:
    if not references:
        raise UserError("RULER's metrics need at least one reference, got none")
    return postprocessed(prediction).lower()
