"""Tasks that ask several questions about one context, each from the same evicted cache: the setting of KVzip.

Follows data/load.py, data/wrapper.py and model/template.py of https://github.com/snu-mllab/KVzip:

    context     instruction, blank line, context       prefilled, scored and evicted before any question
    question    blank line, `ask` with the question    each question is read from the same evicted cache

The instruction is a part of the head of the prompt, which KVzip never evicts (`policy.sink=head`). A sample is one
question; questions are numbered context by context, so that sample i is the same for any `samples`.
"""

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.tasks.files import FromFiles, limit_samples
from kvbench.tasks.task import GAP, InvalidSample, Sample, Task, TokenCounter, Turn, require_positive

Turns = Literal["none", "gold", "own"]


@dataclass(frozen=True)
class Question:
    """A question and what is needed to score the answer; see `Sample`. gold: the right answer as a conversation has it,
    if it is not the first reference."""

    text: str
    references: tuple[str, ...]
    kind: str = ""
    choices: tuple[str, ...] = ()
    gold: str = ""


@dataclass(frozen=True)
class ContextWithQuestions:
    """A context and its questions. A text in place of a question is the error in its data, with the place."""

    context: str
    questions: Sequence[Question | str]


@dataclass(frozen=True, kw_only=True)
class SharedContext(FromFiles, Task):
    """Base class of these tasks.

    instruction: precedes every context. ask: the wording of a question, with the field {question}. contexts: only the
    first so many contexts, null for all. samples: number of questions; at most all are asked.
    turns: `none` asks each question alone, `gold` and `own` in one conversation, after those before it with their right
    answers or with the model's own.

    - Protocol: KVzip's setting, `data/load.py` and `results/{metric,parse}.py` of snu-mllab/KVzip. With
      `schedule.evict_after=context`, the default of these tasks, eviction takes place once, and each question starts
      from the same evicted cache. Rows have `question_number`, for tables by the number of the question.
    - Split: after the context; the chat template's head and the context are read before eviction, the question after.
    - Source: Jang-Hyun/SCBench-preprocessed, rajpurkar/squad (train), openai/gsm8k (test).
    - Traps: KVzip always drops the last generated token. SCBench's own scorer differs from KVzip's. KVzip averages over
      contexts, each with the mean of its questions: `kvbench report table --mean-over contexts`. Its `eval.py --num
      100` reads 100 contexts (of SQuAD `task.contexts=100 task.cut_last=false`), not 100 questions.
    - Differences: the chat template is the model's own (KVzip writes out Llama's and Qwen's, Llama's with a blank line
      at the end of a turn). A model without a template reads no "Answer:" after the question.
    """

    instruction: str
    max_new_tokens: int
    ask: str = "Q: {question}"
    contexts: int | None = None
    turns: Turns = "none"
    wraps_context = True
    context_length = None  # contexts have their own lengths

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "samples", "max_new_tokens", "contexts")
        require_question_field(self.name, self.ask)
        limit_samples(self, lambda: self._starts[-1])

    @abstractmethod
    def counts(self) -> Sequence[int]:
        """Return number of questions about each context, 1 if it is not known. Raises as `generate` does."""

    @abstractmethod
    def read_contexts(self, contexts: Collection[int]) -> Iterator[tuple[int, ContextWithQuestions]]:
        """Return those contexts with their questions, in ascending order. Raises as `generate` does."""

    def context_of(self, sample: int) -> int:
        """Return the number of the context of a sample. Raises as `generate` does."""
        starts = self._starts
        if not 0 <= sample < starts[-1]:
            raise UserError(f"{self.name} has {starts[-1]} questions, none is {sample}")
        return bisect_right(starts, sample) - 1

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        samples_of = grouped(sorted(indices), self.context_of)
        starts, templated = self._starts, bool(getattr(count_tokens, "template", 0))
        for number, content in self.read_contexts(samples_of):
            for index in samples_of[number]:
                place = index - starts[number]
                questions = content.questions[place if self.turns == "none" else 0 : place + 1]
                if errors := [question for question in questions if isinstance(question, str)]:
                    yield InvalidSample(index, self.name, errors[0], place + 1)
                else:
                    valid = [question for question in questions if isinstance(question, Question)]
                    yield self._sample(index, content, valid, place, templated)

    def _sample(
        self, index: int, content: ContextWithQuestions, questions: Sequence[Question], place: int, templated: bool
    ) -> Sample:
        """Return the sample of the last of `questions`, the one at `place`; `templated`: for a chat template."""
        opening, last = self.opening, questions[-1]
        *earlier, now = (self.turn(question, turn, content, templated) for turn, question in enumerate(questions))
        return Sample(
            index,
            self.name,
            opening + content.context,
            now.question,
            now.answer_prefix,
            last.references,
            now.max_new_tokens,
            last.choices,
            place + 1,
            last.kind,
            opening,
            earlier=tuple(earlier),
        )

    @property
    def opening(self) -> str:
        """Text that every context begins with."""
        return self.instruction + GAP

    def turn(self, question: Question, turn: int, content: ContextWithQuestions, templated: bool) -> Turn:
        """Return a question of `content` as turn `turn`, from 0, of a conversation asks it, and its right answer."""
        answer = f"\n{question.references[0]}" if self.turns == "gold" else None
        return Turn(phrased(self.ask, question.text), answer, self.max_new_tokens)

    @property
    def _starts(self) -> list[int]:
        """The first sample of every context, and the number of samples at the end."""
        return [0, *accumulate(self.counts()[: self.contexts])]


def require_question_field(task: str, ask: str) -> None:
    """Raise UserError unless the wording of a question has the field {question} exactly once."""
    if ask.count("{question}") != 1:
        raise UserError(f"task.ask={ask!r} of {task}: it names {{question}} once")


def phrased(ask: str, question: str) -> str:
    """Return a question in the wording of `ask`, after the gap that separates it from the context."""
    return GAP + ask.replace("{question}", question).strip()
