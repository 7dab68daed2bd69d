"""The six tasks of RULER v2 on questions of MMLU, which are asked for by their numbers.

    Below are some questions. I will ask you to copy one of them. Please copy and paste the question you find.

    Question 2746317: ... A. ... B. ... C. ... D. ...

    Question 5842143: ...

    Please copy the Question 2746317 from the context.

    ruler_v2/mmlu_test.jsonl, mmlu_auxiliary_train.jsonl
        {"question": "...", "choices": ["...", "...", "...", "..."], "answer": 1}

Prompts follow https://github.com/NVIDIA-NeMo/Skills at 991a743, nemo_skills/dataset/ruler2/prepare_mmlu.py.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from kvbench.extras.ruler_v2.ruler_v2 import AskedRows, drawn_number, drawn_places, reader
from kvbench.extras.ruler_v2.scores import Match
from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.ruler.task import CountTokens, RulerPrompt, bisected_by_rate, fitting
from kvbench.tasks.task import require_positive

LETTERS = "ABCD"
STEP = 10
"""Questions that the haystack has at least, and fewer that it has after a prompt that is too long."""
SHOTS = 5
"""Solved examples, of questions in the haystack."""
COPY_ONE = "I will ask you to copy one of them. Please copy and paste the question you find."
SOLVE_ONE = (
    "I will ask you to solve one of them. Please solve the question you find and make sure to put the answer (and only "
    "answer) inside \\boxed\\{\\}."
)
SHOWN = "Here are some examples to help you understand the task:\n\n{examples}\n\n"
SHOWN += "Here is the actual task you need to solve:\n\n"


class Request(NamedTuple):
    """A request. begins: of an answer, for base models; example: what a solved one has after the same request."""

    opening: str
    text: str
    begins: str
    match: Match
    example: str = ""


REQUESTS: Mapping[str, Request] = {
    "copy": Request(
        COPY_ONE, "Please copy the {order}Question {number} from the context.", "Question {number}:", "all"
    ),
    "copy_all": Request(
        "I will ask you to copy some of them. Please copy and paste the questions you find.",
        "Please find and copy all the Question {number} from the context.",
        "Question {number}:",
        "all",
    ),
    "list_and_copy": Request(
        COPY_ONE,
        "Please first copy all the Question {number} from the context and then copy the {order}Question {number} at the"
        " end.",
        "Question {number}:",
        "2steps",
    ),
    "solve": Request(
        SOLVE_ONE,
        "Please solve the Question {number} from the context with an answer from A, B, C, D.",
        "Solution:",
        "multichoice",
        "Solution: \\boxed{{{letter}}}",
    ),
    "copy_and_solve": Request(
        SOLVE_ONE,
        "Please copy the Question {number} from the context and then solve it with an answer from A, B, C, D.",
        "Question {number}:",
        "multichoice",
        "Question {number}: {text}\nSolution: \\boxed{{{letter}}}",
    ),
}


class Question(NamedTuple):
    """A question with its choices, on one line, and the letter of the right one."""

    text: str
    letter: str


@dataclass(frozen=True, kw_only=True)
class Questions(AskedRows):
    """A question of MMLU among others, each number of which `num_values` have. drawn: of the test set, in advance."""

    request: Literal["copy", "copy_all", "list_and_copy", "solve", "copy_and_solve"]
    num_values: int = 1
    drawn: int = 100
    _unit = "questions"

    def __post_init__(self) -> None:
        require_positive(self, "num_values", "drawn")
        super().__post_init__()

    @property
    def files(self) -> tuple[str, ...]:
        return ("ruler_v2/mmlu_test.jsonl", "ruler_v2/mmlu_auxiliary_train.jsonl")

    @property
    def match(self) -> Match:
        return REQUESTS[self.request].match

    @property
    def _step(self) -> int:
        return STEP

    def _available(self) -> int:
        return min(self.drawn, super()._available())

    def _prompts(self, count_tokens: CountTokens) -> Iterator[RulerPrompt]:
        rng, room = random.Random(self.seed), self.context_length
        asked, others = (questions(self.root, file) for file in self.files)
        size = bisected_by_rate(partial(self._draw, rng, asked[0], others), count_tokens, STEP, room, room)
        for place in rng.sample(range(len(asked)), self._available()):
            yield fitting(partial(self._draw, rng, asked[place], others), count_tokens, size, STEP, room, SHOTS)

    def _draw(self, rng: random.Random, asked: Question, others: Sequence[Question], size: int) -> RulerPrompt:
        """Draw a prompt with `size` questions besides the one that is asked for."""
        request, shared = REQUESTS[self.request], self.num_values
        chosen = [others[place] for place in drawn_places(rng, len(others), len(others), size)]
        numbers = [drawn_number(rng) for _ in range(-(-(size + 1) // shared))] * shared
        rng.shuffle(numbers)
        number, lines = numbers[size], list(zip(numbers, chosen, strict=False))
        rng.shuffle(lines)
        examples = rng.sample(lines, SHOTS if request.example else 0)
        place = rng.randint(0, size)
        lines.insert(place, (number, asked))
        nth = sum(other == number for other, _ in lines[: place + 1])
        haystack = "\n\n".join(f"Question {other}: {question.text}" for other, question in lines)
        context = f"Below are some questions. {request.opening}\n\n{haystack}"
        text = request.text.format(number=number, order=f"{ordinal(nth)} (1 indexed) " if shared > 1 else "")
        begins = "\n" + request.begins.format(number=number) if self.form == "base" else ""
        right: tuple[str, ...] = (asked.letter,) if request.match == "multichoice" else (asked.text,)
        if self.request == "copy_all":
            right = tuple(question.text for other, question in lines if other == number)
        return RulerPrompt(context, f"\n\n{self._examples(request, examples)}{text}", begins, right)

    def _examples(self, request: Request, shown: Sequence[tuple[str, Question]]) -> str:
        """Return the solved examples, each after the request for it."""
        if not request.example:
            return ""
        form = f"{request.text}\n{request.example}"
        examples = "\n\n".join(form.format(number=number, order="", **each._asdict()) for number, each in shown)
        return SHOWN.format(examples=examples) if self.form == "instruct" else f"{examples}\n\n"


@reader
def questions(row: jsonl.Row) -> Question:
    """Return the questions of a file, white space as single blanks. Raises UserError for an invalid row."""
    choices, right = jsonl.texts(row, "choices"), jsonl.integer(row, "answer")
    if len(choices) != len(LETTERS) or right not in range(len(LETTERS)):
        raise UserError(f"its answer is {right} of {len(choices)} choices: 0 to 3 of 4")
    lines = (jsonl.text(row, "question"), *map("{}. {}".format, LETTERS, choices))
    return Question(re.sub(r"\s+", " ", "\n".join(lines)), LETTERS[right])


def ordinal(number: int) -> str:
    """Return a number as in "1st" and "12th"."""
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"
