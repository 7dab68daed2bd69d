"""RULER's variable tracking: which variables hold a value, through a chain of assignments hidden in noise.

    Memorize and track the chain(s) of variable assignment hidden in the following text.

    The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
    VAR KZNYC = 54131
    The grass is green. ...
    VAR ZEZGC = VAR KZNYC
    ...
    Question: Find all variables that are assigned the value 54131 in the text above. Answer: According to the chain(s)
    of variable assignment in the text above, 5 variables are assigned the value 54131, they are:
    -> KZNYC, ZEZGC, LSIPN, KOGSA, YNSTR

Follows scripts/data/synthetic/variable_tracking.py of https://github.com/NVIDIA/RULER with one chain of four hops. A
solved example stands before the question. In 2026 its names and value are drawn anew for each sample; in 2024 it is the
same in all samples, has lost its newlines and the word "above.", and the answer prefix says "assgined".

Difference: if the same name is drawn twice for a chain (probability 10 / 26^5), the official script fails; here the
name is drawn again.
"""

import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from kvbench.tasks.ruler.haystack import NOISE, inserted
from kvbench.tasks.ruler.task import CountTokens, RulerPrompt, RulerTask, bisected_by_rate, fitting, stepped

CONTEXT = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{haystack}"
QUESTION = "\nQuestion: Find all variables that are assigned the value {value} in the text above."
ANSWER_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above,"
    " {count} variables are {assigned} the value {value}, they are: "
)
HOPS = 4
EXAMPLE_TOKENS = 500  # maximum of the solved example without its answer
EXAMPLE_STEP = 5
EXAMPLE_VALUE = "12345"  # in the 2026 example; each sample replaces it


@dataclass
class _Generators:
    """The two generators that the official script seeds alike."""

    names: random.Random
    values: np.random.RandomState

    def name(self, letters: int) -> str:
        return "".join(self.names.choices(string.ascii_uppercase, k=letters))

    def value(self) -> str:
        """Five digits, 99999 excluded."""
        return str(self.values.randint(10000, 99999))


@dataclass(frozen=True, kw_only=True)
class VariableTracking(RulerTask):
    """Five variables of one value. `step` is in sentences of noise."""

    max_new_tokens: int = 30
    _smallest_step = HOPS + 1
    _unit = "sentences beside a solved example"

    @property
    def version(self) -> str:
        """One step ahead in 2024: an example of five sentences had spaces before its line breaks at first."""
        return super().version.replace("2024.3", "2024.4")

    @property
    def _official_step(self) -> int:
        return 5 if self.era != "2024" and self.context_length < 4096 else 10

    def _prompts(self, count_tokens: CountTokens, reserved: int) -> Iterator[RulerPrompt]:
        draws = _Generators(random.Random(self.seed), np.random.RandomState(self.seed))
        room = self.context_length - self.max_new_tokens - reserved
        yield from (self._of_2024 if self.era == "2024" else self._of_2026)(count_tokens, draws, room)

    def _of_2026(self, count_tokens: CountTokens, draws: _Generators, room: int) -> Iterator[RulerPrompt]:
        example, draw = partial(self._draw, draws, letters=3, value=EXAMPLE_VALUE), partial(self._draw, draws)
        size = bisected_by_rate(example, count_tokens, EXAMPLE_STEP, EXAMPLE_TOKENS, EXAMPLE_TOKENS)
        shown = fitting(example, count_tokens, size, EXAMPLE_STEP, EXAMPLE_TOKENS, self._smallest_step)
        solved = f"{shown.text} {' '.join(shown.answers)}\n"
        size = bisected_by_rate(draw, count_tokens, self._step, self.context_length, room - count_tokens(solved))

        def with_example(size: int) -> RulerPrompt:
            """After the example with new names, wherever the letters of the old ones occur, and a new value."""
            prompt, example = draw(size), solved
            for name in shown.answers:
                example = example.replace(name, draws.name(len(name)))
            return prompt.after(example.replace(EXAMPLE_VALUE, draws.value()) + "\n")

        while True:
            yield fitting(with_example, count_tokens, size, self._step, room, self._smallest_step)

    def _of_2024(self, count_tokens: CountTokens, draws: _Generators, room: int) -> Iterator[RulerPrompt]:
        def example(size: int) -> RulerPrompt:
            prompt = self._draw(draws, size, letters=3)
            question = prompt.question.replace("\n", " ").removesuffix(" above.")
            return RulerPrompt(prompt.context.replace("\n\n", " ", 1), question, prompt.answer_prefix, prompt.answers)

        draw = partial(self._draw, draws)

        def step_up(draw: Callable[[int], RulerPrompt], step: int, room: int) -> int:
            def tokens(size: int) -> int:
                prompt = draw(size)
                return count_tokens(f"{prompt.text} {list(prompt.answers)}")

            return stepped(tokens, step, room)

        most = EXAMPLE_TOKENS - self.max_new_tokens
        shown = fitting(example, count_tokens, step_up(example, EXAMPLE_STEP, most), EXAMPLE_STEP, most)
        solved = f"{shown.text} {' '.join(shown.answers)}\n\n"
        room -= count_tokens(solved)
        size = step_up(draw, self._step, room)
        while True:
            yield fitting(draw, count_tokens, size, self._step, room).after(f" {solved}\n\n")

    def _draw(self, draws: _Generators, size: int, letters: int = 5, value: str | None = None) -> RulerPrompt:
        names = [draws.name(letters) for _ in range(HOPS + 1)]
        while len(set(names)) <= HOPS:
            names = [*dict.fromkeys(names), draws.name(letters)]
        value = value or draws.value()
        chain = [f"VAR {names[0]} = {value}"]
        chain += [f"VAR {name} = VAR {before} " for before, name in pairwise(names)]
        assigned = "assgined" if self.era == "2024" else "assigned"
        prefix = ANSWER_PREFIX.format(count=len(names), value=value, assigned=assigned)
        if self.era == "2024":
            haystack = _joined(chain, size, draws.names)
        else:  # one sentence of noise or one assignment per line
            haystack = "\n".join(inserted(chain[::-1], [NOISE] * size, draws.names))
        return RulerPrompt(CONTEXT.format(haystack=haystack), QUESTION.format(value=value), prefix, tuple(names))


def _joined(chain: list[str], size: int, rng: random.Random) -> str:
    """2024: a newline after each noise and spaces between all; too few sentences are split at their full stops.

    Then newlines are pieces too, and lose the space before them.
    """
    noise = [f"{NOISE}\n"] * size
    if size <= len(chain):
        pieces = [piece for line in noise for piece in line.split(".")]
        noise = [f"{piece}." if piece.strip() else piece for piece in pieces]
    return " ".join(inserted(chain[::-1], noise, rng)).replace(". \n", ".\n")
