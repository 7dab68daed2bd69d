"""A task whose questions follow each other in one conversation, for tests that need no benchmark."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from kvbench.tasks.task import Sample, Turn
from tests.questions import Questions


@dataclass(frozen=True)
class Conversations(Questions):
    """`turns_each` questions of `Questions` about each context; turn t of context c is sample c x turns_each + t."""

    name: str = "conversations"
    turns: str = "own"
    turns_each: int = 3
    answers: tuple[str, ...] = ("", "", "")

    def context_of(self, sample: int) -> int:
        return sample // self.turns_each

    def generate(self, count_tokens: Callable[[str], int], indices: Collection[int]) -> Iterator[Sample]:
        samples = list(super().generate(count_tokens, range(self.samples)))
        for index in sorted(indices):
            context, place = divmod(index, self.turns_each)
            first = context * self.turns_each
            earlier = tuple(
                Turn(each.question, None if self.turns == "own" else answer, self.max_new_tokens - turn)
                for turn, (each, answer) in enumerate(zip(samples[first:index], self.answers, strict=False))
            )
            yield replace(
                samples[index],
                context=samples[context].context,
                answer_prefix="",
                earlier=earlier if self.turns != "none" else (),
                max_new_tokens=self.max_new_tokens - place,
                question_number=place + 1,
            )
