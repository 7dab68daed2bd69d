"""Facts of bAbI between the sentences of books. https://github.com/booydar/babilong at 7a6efee

    babilong/en-10k/qa1_single-supporting-fact_train.txt      1 Mary moved to the hall.
                                                              2 Where is Mary? [tab]hall[tab]1
    pg19/*.txt                                                lines of books

Follows data/create_tasks.py and babilong/babilong_utils.py: a sample is one question with all facts of its story before
it; sentences of a book from a drawn place fill the rest, and facts are put between them in their order.
babilong/prompts.py has the instructions, babilong/metrics.py the metric.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from kvbench.support.errors import UserError
from kvbench.tasks.files import FromFiles, find, folder, listing, remembered
from kvbench.tasks.metrics import FIX
from kvbench.tasks.task import InvalidSample, Sample, Task, TokenCounter, require_positive, require_samples

BOOKS = "pg19/*.txt"
PROMPT_TOKENS = 300
"""Of a length, what is left to the instruction."""
LEAST_SENTENCE = 10
"""Tokens of a sentence of a book, with the blank before it."""
TOKENS_PER_FACT = 8
"""Of a length, for each line of a question's story at least."""
TRIES = 1000
"""Places in books that are drawn at most without a sentence that can be used."""
END = "\n</context>\n\nQuestion: {question}"


class Question(NamedTuple):
    """A question, the facts before it and the answer."""

    facts: tuple[str, ...]
    text: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class BABILong(FromFiles, Task):
    """Questions of one bAbI task, `file`, in a context of about `context_length` tokens.

    - Protocol: `create_tasks.py`: `task.context_length` less 300 tokens of facts and sentences of PG19; facts keep
      their order and stand at drawn places. `prompts.py` has the instruction, its examples and the form of the answer,
      all in use; an answer has 20 tokens. Its lengths are 0, 1000, 2000 ... 128000 and more.
    - Split: after the context; the instruction stands before it.
    - Source: bAbI 1.2 (en-10k, train, as officially) in the repository; PG19's test books. Published rows are drawn
      without a seed, so that no sample equals one of them.
    - Metric: `compare_answers`: whether the first sentence of the answer names the right label of the task and no
      other, labels of the question left out.
    - Traps: bAbI is known to models. The needle has the style of bAbI and is unlike the text around it.
    - Differences: the model counts tokens, there GPT-2. Questions, sentences and places are drawn with `seed`;
      books stand in the order of their names. The last question of a file is never asked, as officially.
    """

    context_length: int
    file: str
    labels: tuple[str, ...]
    instruction: str
    examples: str
    post_prompt: str
    max_new_tokens: int = 20
    version = "babilong.1"  # names the protocol; `data_sha256` names the texts
    metric = "babilong_match"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "samples", "max_new_tokens")
        if self.context_length <= PROMPT_TOKENS:
            raise UserError(
                f"task.context_length={self.context_length} of {self.name}: {PROMPT_TOKENS} tokens are left to the "
                "instruction: use more, such as 1000"
            )
        if (folder(self.root) / self.file).is_file():  # the books may be missing
            object.__setattr__(self, "samples", min(self.samples, max(1, len(self._questions))))

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file, *listing(self.root, BOOKS))

    @property
    def _room(self) -> int:
        return self.context_length - PROMPT_TOKENS

    @property
    def _questions(self) -> list[Question]:
        """Those with few enough facts."""
        most = self._room // TOKENS_PER_FACT
        return [each for each in _read(self.root, self.file) if len(each.facts) < most][:-1]

    def score(self, prediction: str, sample: Sample) -> float:
        (answer,) = sample.references
        return float(names_only(answer, prediction.strip(), sample.question.rpartition("Question: ")[2], self.labels))

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        """As `Task.generate`. All samples are drawn in sequence, so that earlier ones are drawn too."""
        questions = self._questions
        require_samples(self, indices, len(questions))
        order = [*range(len(questions))]
        np.random.RandomState(self.seed).shuffle(order)
        books = [find(self.root, name).read_text("utf-8") for name in self.files[1:]]
        sentences = Sentences(books, count_tokens, self.seed)
        places = np.random.default_rng(self.seed)
        before = "\n\n".join((self.instruction, self.examples, self.post_prompt, "<context>\n"))
        for index, place in enumerate(islice(order, max(indices, default=-1) + 1)):
            facts, question, answer = questions[place]
            ids = hidden(facts, sentences, count_tokens, self._room, places)
            if index in indices:
                context = before + count_tokens.decode(ids).strip()
                end = END.format(question=question).rstrip()
                yield Sample(index, self.name, context, end, "", (answer,), self.max_new_tokens)


class Sentences:
    """Sentences of books, one after the other from a drawn place; then from the next."""

    def __init__(self, books: Sequence[str], tokens: TokenCounter, seed: int):
        self._books, self._tokens, self._split = books, tokens, _splitter()
        self._draw = np.random.default_rng(seed)
        self._left: list[str] = []

    def take(self, size: int) -> list[list[int]]:
        """Return the token ids of sentences with `size` tokens together; the last one is cut."""
        sentences, total, tries = list[list[int]](), 0, 0
        while tries < TRIES:
            tries += 1
            for number, sentence in enumerate(self._left, start=1):
                ids = self._tokens.encode(" " + sentence, special=False)
                if len(ids) < LEAST_SENTENCE:
                    continue
                total, tries = total + len(ids), 0
                sentences.append(ids)
                if total >= size:
                    self._left = self._left[number:]
                    sentences[-1] = ids[: len(ids) - (total - size)] if total > size else ids
                    return sentences
            self._left = self._next(size)
        raise UserError(
            f"{BOOKS}: {TRIES} places in the books had no whole sentence of {LEAST_SENTENCE} tokens or more: use "
            "longer books"
        )

    def _next(self, size: int) -> list[str]:
        """Whole sentences of a part of a drawn book, if it has any."""
        book = self._books[int(self._draw.choice(len(self._books)))]
        if not book:
            return []
        start = int(self._draw.choice(len(book)))
        return self._split(book[start:][: size * 10])[1:-1]


def hidden(
    facts: Sequence[str], sentences: Sentences, tokens: TokenCounter, size: int, draw: np.random.Generator
) -> list[int]:
    """Return the token ids of facts in their order, at drawn places between sentences; `size` tokens together."""
    told = [tokens.encode(" " + fact, special=False) for fact in facts]
    around = sentences.take(size - sum(map(len, told)))
    places = np.sort(draw.choice(range(len(around) + 1), len(told)))
    parts: list[list[list[int]]] = [[] for _ in range(len(around) + 1)]
    for place, fact in zip(places, told, strict=True):
        parts[place].append(fact)
    for part, sentence in zip(parts, around, strict=False):
        part.append(sentence)
    return [token for part in parts for sentence in part for token in sentence]


def names_only(target: str, output: str, question: str, labels: Collection[str]) -> bool:
    """Return whether the first sentence of an answer names the target and no other label, apart from the question's."""
    answer = output.lower().split(".")[0].split("<context>")[0].split("<example>")[0]
    asked = question.lower()
    named = {label for label in map(str.lower, labels) if label in answer and label not in asked}
    return named == {target.lower()}


def _splitter() -> Callable[[str], list[str]]:
    """Punkt without parameters. Raises UserError if nltk is not installed."""
    try:
        from nltk.tokenize.punkt import PunktSentenceTokenizer
    except ModuleNotFoundError:
        raise UserError(f"books are split into sentences by nltk; run: {FIX}") from None
    return PunktSentenceTokenizer().tokenize


@remembered
def _read(root: str | None, name: str) -> tuple[Question, ...]:
    """Return the questions of a file of bAbI. Raises UserError for a file that is none."""
    path = find(root, name)
    questions, facts = list[Question](), list[str]()
    try:
        for line in path.read_text("utf-8").strip().split("\n"):
            number, text = line.split(" ", 1)
            facts = [] if int(number) == 1 else facts
            text, *rest = text.split("\t")
            if rest:
                questions.append(Question(tuple(facts), text, rest[0]))
            else:
                facts.append(text)
    except ValueError as error:
        raise UserError(f"{path} is no file of bAbI: {error}") from None
    return tuple(questions)
