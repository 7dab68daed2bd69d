"""The four tasks of RULER v2 on documents of HotpotQA.

    Below are some documents. I will give you a question at the end. Please find the index of the most relevant ...

    Document 2746317:
    Ed Wood (film)
    Ed Wood is a 1994 ...

    Question: Were Scott Derrickson and Ed Wood of the same nationality?
    Index of the most relevant document that can help answer the question:

    ruler_v2/hotpotqa_validation.jsonl, hotpotqa_train_0.jsonl, hotpotqa_train_1.jsonl
        {"question": "...", "answer": "...", "supporting_facts": {"title": ["...", "..."]},
         "context": {"title": ["...", ...], "sentences": [["...", ...], ...]}}

Prompts follow https://github.com/NVIDIA-NeMo/Skills at 991a743, nemo_skills/dataset/ruler2/prepare_qa.py.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

from kvbench.extras.ruler_v2.ruler_v2 import AskedRows, drawn_number, drawn_places, reader
from kvbench.extras.ruler_v2.scores import Match
from kvbench.support.errors import JSON_KINDS, UserError
from kvbench.tasks import jsonl
from kvbench.tasks.ruler.task import CountTokens, RulerPrompt, bisected_by_rate, fitting

STEP = 5
"""Documents that the haystack has at least, and fewer that it has after a prompt that is too long."""
READ = "I will ask you to answer a question based on the documents. Please answer the question."
INDEX_ONLY = "Only give me the index without any document contents."


class Request(NamedTuple):
    """The text before the documents, and the one after them. begins: of an answer, for base models."""

    opening: str
    text: str
    begins: str = ""


REQUESTS: Mapping[str, Request] = {
    "find_text": Request(
        f"I will give you a text at the end. Please find the document index of the text. {INDEX_ONLY}",
        "Text: {text}\nMost relevant document index:",
    ),
    "find": Request(
        "I will give you a question at the end. Please find the index of the most relevant document that can help "
        f"answer the question. {INDEX_ONLY}",
        "Question: {question}\nIndex of the most relevant document that can help answer the question:",
    ),
    "answer": Request(
        READ, "Please answer the following question based on the documents.\n\nQuestion: {question}", "\nAnswer:"
    ),
    "copy_and_answer": Request(
        READ,
        "Please first find and copy paste the documents relevant to the following question and then answer it based on"
        " the documents you find.\n\nQuestion: {question}",
        "\nAnswer:",
    ),
}


class Question(NamedTuple):
    """A question, its answer, the documents that the answer needs, and others that were shown with it."""

    text: str
    answer: str
    needed: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Documents(AskedRows):
    """The documents of a question of HotpotQA, the distracting ones too, among documents of other questions."""

    request: Literal["find_text", "find", "answer", "copy_and_answer"]
    _unit = "documents"

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(f"ruler_v2/hotpotqa_{part}.jsonl" for part in ("validation", "train_0", "train_1"))

    @property
    def match(self) -> Match:
        return "part"

    @property
    def _step(self) -> int:
        return STEP

    def _prompts(self, count_tokens: CountTokens) -> Iterator[RulerPrompt]:
        rng, room = random.Random(self.seed), self.context_length
        asked = _asked(self.root, self.files[0])
        shown = chain.from_iterable(_shown(self.root, file) for file in self.files[1:])
        haystack = list(dict.fromkeys(chain.from_iterable(shown)))
        size = bisected_by_rate(partial(self._draw, rng, asked[0], haystack), count_tokens, STEP, room, room)
        for question in asked:
            yield fitting(partial(self._draw, rng, question, haystack), count_tokens, size, STEP, room)

    def _draw(self, rng: random.Random, question: Question, haystack: Sequence[str], size: int) -> RulerPrompt:
        """Draw a prompt with `size` documents besides the ones of the question."""
        own_documents = [(drawn_number(rng), document) for document in (*question.needed, *question.others)]
        left = len(haystack) - len({document for _, document in own_documents})
        if left < 1:
            raise UserError(f"{self.name}: the training set has no more documents than one question has")
        chosen = [haystack[place] for place in drawn_places(rng, left, len(haystack), size)]
        documents = [(drawn_number(rng), document) for document in chosen] + own_documents
        rng.shuffle(documents)
        request = REQUESTS[self.request]
        shown = "\n\n".join(f"Document {number}:\n{document}" for number, document in documents)
        needed = tuple(number for number, _ in own_documents[: len(question.needed)])
        right = {"find_text": needed[:1], "find": needed}.get(self.request, (question.answer,))
        begins = request.begins if self.form == "base" else ""
        text = request.text.format(text=question.needed[0], question=question.text)
        return RulerPrompt(f"Below are some documents. {request.opening}\n\n{shown}", f"\n\n{text}", begins, right)


@reader
def _asked(row: jsonl.Row) -> Question:
    supporting, documents = jsonl.texts(_part(row, "supporting_facts"), "title"), _documents(row)
    needed = tuple(text for title, text in documents if title in supporting)
    if not needed:
        raise UserError("none of its documents has a title of its supporting_facts")
    others = tuple(text for title, text in documents if title not in supporting)
    return Question(jsonl.text(row, "question"), jsonl.text(row, "answer"), needed, others)


@reader
def _shown(row: jsonl.Row) -> tuple[str, ...]:
    return tuple(document for _, document in _documents(row))


def _documents(row: jsonl.Row) -> list[tuple[str, str]]:
    """Return titles and documents of a question, each with its title. Raises UserError for an invalid row."""
    context = _part(row, "context")
    titles, sentences = jsonl.texts(context, "title"), jsonl.field(context, "sentences")
    if not isinstance(sentences, list) or len(sentences) != len(titles):
        raise UserError(f"its context has {len(titles)} titles: a list of as many lists of sentences")
    try:
        return [(title, f"{title}\n{''.join(each)}") for title, each in zip(titles, sentences, strict=True)]
    except TypeError as error:
        raise UserError(f"its sentences are no texts: {error}") from None


def _part(row: jsonl.Row, name: str) -> jsonl.Row:
    part = jsonl.field(row, name)
    if not isinstance(part, dict):
        raise UserError(f"its {name} is {JSON_KINDS.get(type(part), type(part).__name__)}, not an object")
    return part
