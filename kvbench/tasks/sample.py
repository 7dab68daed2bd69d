"""What a task hands out, and what it must be able to do."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvbench.tasks.prompting import Truncation


@dataclass(frozen=True)
class Sample:
    """One prompt with its right answers, text only.

    A chat template wraps context and question; the answer prefix comes after it, as the answer's own beginning.
    `choices` are what the answer can be where the metric must know them: classes, options. `question_number` counts
    from 1 where several questions are asked about one context; `kind` says which sort of question a mixed task asks.
    `opening` is how every context of the task begins: an instruction, part of the head of the prompt.
    """

    id: int
    task: str
    context: str
    question: str
    answer_prefix: str
    references: tuple[str, ...]
    max_new_tokens: int
    choices: tuple[str, ...] = ()
    question_number: int | None = None
    kind: str = ""
    opening: str = ""

    @property
    def prompt(self) -> str:
        """Everything before the answer, as a model without a chat template reads it."""
        return self.context + self.question + self.answer_prefix


@dataclass(frozen=True)
class InvalidSample:
    """A sample whose row in a file of data is spoilt: `error` says where and why. It counts, as one without an answer.

    What no sample of a task can do without is an error of the task instead.
    """

    id: int
    task: str
    error: str
    question_number: int | None = None


class Tokens(Protocol):
    """The model's tokenizer, as far as tasks know it: how long a text is, and texts cut at token boundaries.

    Most tasks only count. Two of the same tokenizer are equal and hash alike.
    """

    def __call__(self, text: str, /) -> int:
        """Tokens of a text, without special ones."""
        ...

    def encode(self, text: str, special: bool) -> list[int]:
        """Token ids, with those that the tokenizer puts around a text if `special`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special ones spelled out."""
        ...


@runtime_checkable
class Task(Protocol):
    """A benchmark task at one prompt length.

    `name` is e.g. "ruler/niah_single_1"; `version` names the protocol (never two protocols under one version);
    `metric` names the metric; `context_length` counts tokens as the protocol does, None where texts have lengths of
    their own; `samples` is how many are asked for; `seed` is the protocol's. A task is a frozen dataclass that derives
    from `Prompting`, which explains the settings that every task has.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def context_length(self) -> int | None: ...
    @property
    def samples(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def max_new_tokens(self) -> int: ...
    @property
    def chat(self) -> bool: ...
    @property
    def truncation(self) -> Truncation: ...
    @property
    def max_prompt_tokens(self) -> int | None: ...
    @property
    def stop(self) -> tuple[str, ...]: ...
    @property
    def stop_replaces(self) -> bool: ...
    @property
    def min_new_tokens(self) -> int: ...

    def context_of(self, sample: int) -> int:
        """A number that samples share which ask about the same context, and no others."""
        ...

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        """Yield the samples of `indices` in ascending order.

        Sample i is the same whatever the other indices and whatever `samples`. `count_tokens` counts a text's tokens
        without special tokens. A row that a file spoils is `InvalidSample`; the others go on.

        Raises:
            ValueError: the setting cannot be met, e.g. a prompt that cannot be that short.
        """
        ...

    def score(self, prediction: str, sample: Sample) -> float:
        """Worth of an answer to `sample`, in 0..1."""
        ...
