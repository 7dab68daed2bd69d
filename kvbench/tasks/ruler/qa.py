"""RULER's question answering: one document of many answers the question.

    Answer the question based on the given documents. Only give me the answer and do not output any other words.

    The following are given documents.

    Document 1:
    ...

    Answer the question based on the given documents. Only give me the answer and do not output any other words.

    Question: Where was the wife of Francis I Rákóczi born? Answer:
    -> Ozalj

Follows scripts/data/synthetic/qa.py of https://github.com/NVIDIA/RULER: sample i asks question i of the data set,
whatever the length, and other documents of the data set distract. qa_1 is SQuAD 2.0 (dev-v2.0.json, questions that have
an answer), qa_2 HotpotQA (hotpot_dev_distractor_v1.json).

Gap: a prompt that is too long loses ten documents. With HotpotQA that may leave fewer than the ten that belong to a
question; the official script then never ends, here exactly these are shown.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Literal

from kvbench.support.errors import UserError
from kvbench.tasks.files import FromFiles
from kvbench.tasks.metrics.ruler import string_match_part
from kvbench.tasks.ruler.passages import READERS, Passages, passages
from kvbench.tasks.ruler.size import bisected, fitting, stepped
from kvbench.tasks.ruler.task import CountTokens, Prompt, RulerTask, generator
from kvbench.tasks.sample import Sample

ASK = "Answer the question based on the given documents. Only give me the answer and do not output any other words."
CONTEXT = ASK + "\n\nThe following are given documents.\n\n{haystack}"
QUESTION = "\n\n" + ASK + "\n\nQuestion: {query}"
ANSWER_PREFIX = " Answer:"


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(FromFiles, RulerTask):
    """Questions on documents of `dataset`. `step` is in documents."""

    dataset: Literal["squad", "hotpotqa"]
    max_new_tokens: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self._choose("dataset", READERS)

    @property
    def files(self) -> tuple[str, ...]:
        """The data set."""
        return (f"ruler/{self.dataset}.json",)

    @property
    def metric(self) -> str:
        """The metric's name in rows and reports."""
        return "string_match_part"

    def score(self, prediction: str, sample: Sample) -> float:
        """Whether the answer contains one of the right ones, 0 or 1."""
        return string_match_part(prediction, sample.references)

    @property
    def _official_step(self) -> int:
        return 10

    @property
    def _unit(self) -> str:
        return "documents"

    def _prompts(self, count_tokens: CountTokens) -> Iterator[Prompt]:
        rng, found = generator(self.seed), passages(self.root, self.dataset)
        documents = list(found.documents)
        room = self.context_length - self.max_new_tokens
        if self.samples > len(found.questions):
            raise UserError(f"task.samples={self.samples}: {self.dataset} has {len(found.questions)} questions")

        def draw(index: int, size: int) -> Prompt:
            return self._draw(rng, found, documents, index, size)

        def length(prompt: Prompt) -> int:
            return count_tokens(prompt.text)

        def length_with_answers(size: int) -> int:
            prompt = draw(0, size)
            return count_tokens(f"{prompt.text} {list(prompt.answers)}")

        if self.era == "2024":
            size = stepped(length_with_answers, self._step, room, most=len(documents))
        else:
            per_document = length(draw(0, self._step)) / self._step
            high = max(int(self.context_length / per_document * 3), 2 * self._step)
            size = bisected(lambda size: length(draw(0, size)), self._step, high, room)
        for index in count():
            yield fitting(partial(draw, index), length, size, self._step, room)

    def _draw(self, rng: random.Random, found: Passages, documents: list[str], index: int, size: int) -> Prompt:
        """Question `index` among `size` documents, at least its own; `documents` is reordered as officially."""
        question = found.questions[index]
        if size < len(documents):
            more = max(size - len(question.own), 0)
            if more > len(question.related):
                near = {*question.own, *question.related}
                others = [number for number in range(len(documents)) if number not in near]
                chosen = [*question.own, *question.related, *rng.sample(others, more - len(question.related))]
            else:
                chosen = [*question.own, *rng.sample(question.related, more)]
            shown = [documents[number] for number in chosen]
        else:
            shown = documents  # shuffled in place, as officially: numbers mean other documents from then on
        random.Random(self.seed).shuffle(shown)
        haystack = "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(shown, start=1))
        query = QUESTION.format(query=question.text)
        return Prompt(CONTEXT.format(haystack=haystack), query, ANSWER_PREFIX, question.answers)
