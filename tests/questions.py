"""A task with several questions about each context, for tests that need no benchmark."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import cast

from kvbench.tasks.task import Sample, Task, TokenCounter

WORDS = ("grass", "sky", "sun", "yellow", "green", "blue", "here", "back", "again", "magic", "number", "hidden", "text")


@dataclass(frozen=True)
class Questions(Task):
    """Contexts of `words` words; of the samples 0, 1, 2, ... number i asks about context i modulo `contexts`."""

    name: str = "questions"
    contexts: int = 2
    words: int = 60
    samples: int = 6
    seed: int = 3
    max_new_tokens: int = 5
    version: str = "1"
    metric: str = "length"
    context_length: int | None = None

    def context_of(self, sample: int) -> int:
        return sample % self.contexts

    def generate(self, count_tokens: Callable[[str], int], indices: Collection[int]) -> Iterator[Sample]:
        for index in sorted(indices):
            about = self.context_of(index)
            words = [WORDS[(about + self.seed * place * place) % len(WORDS)] for place in range(self.words)]
            question = f"\nWhat is the {WORDS[index]} {' of it' * (index % 4)}?"
            yield Sample(index, self.name, " ".join(words), question, " It is", ("x",), self.max_new_tokens)

    def score(self, prediction: str, sample: Sample) -> float:
        return min(1.0, len(prediction) / 100)


def answered(task: Task, indices: Collection[int]) -> list[Sample]:
    """The samples of these answers, none of them invalid."""
    samples = task.numbered_answers(cast(TokenCounter, len), indices)
    return [sample for sample in samples if isinstance(sample, Sample)]
