"""RULER's question answering: one document of many answers the question.

    Answer the question based on the given documents. Only give me the answer and do not output any other words.
    The following are given documents.
    Document 1:
    ...
    Question: Where was the wife of Francis I Rákóczi born? Answer:
    -> Ozalj

Follows scripts/data/synthetic/qa.py of https://github.com/NVIDIA/RULER: sample i asks question i of the data set,
whatever the length, and other documents of the data set distract. qa_1 is SQuAD 2.0 (dev-v2.0.json, questions that have
an answer), qa_2 HotpotQA (hotpot_dev_distractor_v1.json).

Difference: a prompt that is too long loses ten documents. With HotpotQA that may leave fewer than the ten that belong
to a question; the official script then never ends, here exactly these ten are shown.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Literal

from kvbench.support.errors import UserError
from kvbench.tasks.files import FromFiles, find, remembered
from kvbench.tasks.ruler.task import CountTokens, RulerPrompt, RulerTask, bisected_by_rate, fitting, stepped

ASK = "Answer the question based on the given documents. Only give me the answer and do not output any other words."
CONTEXT = ASK + "\n\nThe following are given documents.\n\n{haystack}"
QUESTION = "\n\n" + ASK + "\n\nQuestion: {query}"
ANSWER_PREFIX = " Answer:"


@dataclass(frozen=True)
class PassageQuestion:
    """A question with its right answers (duplicates kept). Documents are their numbers in `passages`.

    `required` documents are always shown, `related` ones before any other.
    """

    text: str
    answers: tuple[str, ...]
    required: tuple[int, ...]
    related: tuple[int, ...] = ()


Passages = tuple[Sequence[str], Sequence[PassageQuestion]]
"""The distinct documents of a data set, sorted, and its questions in the order of the file."""


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(FromFiles, RulerTask):
    """Questions on documents of `dataset`. `step` is in documents."""

    dataset: Literal["squad", "hotpotqa"]
    max_new_tokens: int = 32
    metric = "string_match_part"
    _unit = "documents"

    @property
    def files(self) -> tuple[str, ...]:
        return (f"ruler/{self.dataset}.json",)

    @property
    def _official_step(self) -> int:
        return 10

    def _prompts(self, count_tokens: CountTokens, reserved: int) -> Iterator[RulerPrompt]:
        rng, (sorted_documents, questions) = random.Random(self.seed), passages(self.root, self.files[0])
        documents = list(sorted_documents)
        room = self.context_length - self.max_new_tokens - reserved
        if self.samples > len(questions):
            raise UserError(f"task.samples={self.samples}: {self.dataset} has {len(questions)} questions")

        def draw(index: int, size: int) -> RulerPrompt:
            return self._draw(rng, questions[index], documents, size)

        def tokens_with_answers(size: int) -> int:
            prompt = draw(0, size)
            return count_tokens(f"{prompt.text} {list(prompt.answers)}")

        if self.era == "2024":
            size = stepped(tokens_with_answers, self._step, room, most=len(documents))
        else:
            size = bisected_by_rate(partial(draw, 0), count_tokens, self._step, self.context_length, room)
        for index in count():
            yield fitting(partial(draw, index), count_tokens, size, self._step, room)

    def _draw(self, rng: random.Random, question: PassageQuestion, documents: list[str], size: int) -> RulerPrompt:
        """Return a question among `size` documents, its required ones at least; reorders `documents` as officially."""
        if size < len(documents):
            more = max(size - len(question.required), 0)
            if more > len(question.related):
                near = {*question.required, *question.related}
                others = [number for number in range(len(documents)) if number not in near]
                chosen = [*question.required, *question.related, *rng.sample(others, more - len(question.related))]
            else:
                chosen = [*question.required, *rng.sample(question.related, more)]
            shown = [documents[number] for number in chosen]
        else:
            shown = documents  # shuffled in place, as officially: numbers mean other documents from then on
        random.Random(self.seed).shuffle(shown)
        haystack = "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(shown, start=1))
        query = QUESTION.format(query=question.text)
        return RulerPrompt(CONTEXT.format(haystack=haystack), query, ANSWER_PREFIX, question.answers)


@remembered
def passages(root: str | None, name: str) -> Passages:
    """Return a data set: read_squad and read_hotpotqa of the official qa.py. Raises UserError for another file."""
    path = find(root, name)
    dataset = path.stem
    try:
        return READERS[dataset](json.loads(path.read_text(encoding="utf-8")))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not {dataset} as published: {type(error).__name__} {error}") from None


def _squad(content: Any) -> Passages:
    """SQuAD 2.0: a paragraph is a document, the others of its article are related; only questions with an answer."""
    articles = [article["paragraphs"] for article in content["data"]]
    numbers = _numbered({paragraph["context"] for article in articles for paragraph in article})
    questions = []
    for article in articles:
        of_article = [numbers[paragraph["context"]] for paragraph in article]
        for paragraph, document in zip(article, of_article, strict=True):
            related = tuple(number for number in of_article if number != document)
            for entry in paragraph["qas"]:
                if not entry["is_impossible"]:
                    answers = tuple(answer["text"] for answer in entry["answers"])
                    questions.append(PassageQuestion(entry["question"], answers, (document,), related))
    return list(numbers), questions


def _hotpotqa(rows: Any) -> Passages:
    """HotpotQA, distractor setting: a title and its sentences are a document; all of a question's are required."""
    contexts = [[f"{title}\n{''.join(sentences)}" for title, sentences in row["context"]] for row in rows]
    numbers = _numbered({document for context in contexts for document in context})
    return list(numbers), [
        PassageQuestion(row["question"], (row["answer"],), tuple(numbers[document] for document in context))
        for row, context in zip(rows, contexts, strict=True)
    ]


def _numbered(documents: set[str]) -> dict[str, int]:
    return {document: number for number, document in enumerate(sorted(documents))}


READERS: dict[str, Callable[[Any], Passages]] = {"squad": _squad, "hotpotqa": _hotpotqa}
"""The data sets, and the function that reads the JSON of each."""
