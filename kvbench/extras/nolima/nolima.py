"""NoLiMa: a needle that shares no words with the question, in books. https://github.com/adobe-research/NoLiMa

    needle_set.json     [{"id": "0401", "needle": "...{CHAR} ... {1}.", "questions": {"onehop": "...{2}?", ...},
                          "character_set": ["Yuki", ...], "tests": {"T17_C02": {"input_args": ["...", "..."]}}}, ...]
    rand_book_1.txt     lines of books

Follows run_tests.py, async_evaluate.py and data/book_haystack.py: the needle takes the place of a line break near its
depth, of `depths` that are spread evenly over the text. Prompt, texts and metric (`contains`) are theirs. Books are
encoded without special tokens, as async_api_connector.py does for models that vLLM serves.

Difference: books are numbered in the order of their names (there: of the file system), which decides on drawn names.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles, find, limit_samples, remembered
from kvbench.tasks.task import InvalidSample, Sample, Task, TokenCounter, require_positive, require_samples

NEEDLES = "nolima/needle_set.json"
BOOKS = tuple(f"nolima/rand_book_{number}.txt" for number in range(1, 6))
PROMPT = (
    "You will answer a question based on the following book snippet:\n\n{haystack}\n\nUse the information provided in "
    "the book snippet to answer the question. Your answer should be short and based on either explicitly stated facts "
    "or strong, logical inferences.\n\nQuestion: {question}\n\n Return only the final answer with no additional "
    "explanation or reasoning."
)
CHARACTER = "{CHAR}"
STRIDE = 7
"""Depths between a sample and the next of the same test; shares no factor with 26."""


@dataclass(frozen=True)
class Test:
    """A needle with a question about it. answers: the right ones, unless the needle names one of `characters`."""

    id: str
    kind: str
    needle: str
    question: str
    prompt: str
    answers: tuple[str, ...]
    characters: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class NoLiMa(FromFiles, Task):
    """All tests at all depths of all books. kind: only questions of one kind (onehop, twohop); null: all.

    - Protocol: prompt, needles and places of `run_tests.py` and `book_haystack.py`: `task.context_length` tokens of a
      book with the needle in place of a line break, at 26 depths; the name in it is drawn by numpy's RandomState from
      the needle's number and the book. Books are encoded without special tokens, as there for models that vLLM serves,
      so that a BOS moves no depth. The system turn "You are a helpful assistant" is `model.system`. The published
      lengths are 250 to 32000.
    - Split: after the book.
    - Source: amodaresi/NoLiMa, `needle_set.json` and five books; non-commercial research only.
    - Metric: `contains`, whether a right name occurs in the answer. The base score and the effective length of its
      table are means over 250 to 1000 tokens, and the longest length with 85 % of it.
    - Traps: the published runs draw names with the seed 42; `seed` here is 42 too unless it is set.
    - Differences: books are numbered by name, in `run_tests.py` in the order of the file system; samples go through the
      tests first, then through depths and books.
    """

    context_length: int
    kind: str | None = None
    depths: int = 26
    max_new_tokens: int = 192
    version = "nolima.1"  # names the protocol; `data_sha256` names the texts
    metric = "nolima_contains"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "samples", "max_new_tokens", "context_length", "depths")
        if self.depths % STRIDE == 0:
            raise UserError(f"task.depths={self.depths} of {self.name}: no multiple of {STRIDE}, such as 26")
        limit_samples(self, lambda: len(self._tests) * self.depths * len(BOOKS))

    @property
    def files(self) -> tuple[str, ...]:
        return (NEEDLES, *BOOKS)

    @property
    def _tests(self) -> list[Test]:
        tests = _read_tests(self.root, NEEDLES)
        kinds = sorted({test.kind for test in tests})
        if self.kind not in (None, *kinds):
            raise UserError(f"task.kind={self.kind} of {self.name}: choose one of {', '.join(kinds)}, or null")
        return [test for test in tests if self.kind in (None, test.kind)]

    def score(self, prediction: str, sample: Sample) -> float:
        return float(any(answer in prediction for answer in sample.references))

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        tests = self._tests
        require_samples(self, indices, len(tests) * self.depths * len(BOOKS))
        for index in sorted(indices):
            turn, place = divmod(index, len(tests))
            book, step = divmod(turn, self.depths)
            yield self._sample(count_tokens, index, tests[place], book, (STRIDE * step + place) % self.depths)

    def _sample(self, tokens: TokenCounter, index: int, test: Test, book: int, step: int) -> Sample:
        depth = float(np.linspace(0, 100, self.depths)[step]) / 100
        needle, question, answers = test.needle, test.question, test.answers
        if CHARACTER in needle:
            draw = np.random.RandomState(self.seed + int(test.id[:4]) + book)
            answers = ([str(draw.choice(test.characters)) for _ in range(step + 1)][-1],)
            needle, question = needle.replace(CHARACTER, answers[0]), question.replace(CHARACTER, answers[0])
        text = placed(_encoded(tokens, self.root, BOOKS[book]), tokens, needle, self.context_length, depth)
        before, after = test.prompt.split("{haystack}")
        end = after.replace("{question}", question)
        return Sample(index, self.name, before + text, end, "", answers, self.max_new_tokens, kind=test.kind)


def placed(book: tuple[Sequence[int], np.ndarray], tokens: TokenCounter, needle: str, length: int, depth: float) -> str:
    """`length` tokens of a book with the needle in place of the first line break at its depth (0..1) or behind it.

    Raises UserError for a book that is too short.
    """
    ids, breaks = book
    distances = breaks / (length + 1) - depth
    distances[distances < 0] = np.inf
    place = int(breaks[np.argmin(distances)])
    start = place - int(np.round(length * depth))
    if not 0 <= start <= start + length <= len(ids):
        raise UserError(f"task.context_length={length}: a book of {len(ids)} tokens is too short; choose fewer tokens")
    before, after = tokens.decode(ids[start : place + 1]), tokens.decode(ids[place + 1 : start + length])
    return before[: max(before.rfind("\n"), 0)] + " " + needle + "\n" + after


@lru_cache(maxsize=len(BOOKS))
def _encoded(tokens: TokenCounter, root: str | None, name: str) -> tuple[Sequence[int], np.ndarray]:
    """Return the tokens of a book, and the places of tokens with a line break; the first token counts as one."""
    ids = tokens.encode(find(root, name).read_text("utf-8"), special=False)
    breaks = {token: "\n" in tokens.decode([token]) for token in set(ids)}
    return ids, np.array([0, *(place for place, token in enumerate(ids) if breaks[token])])


@remembered
def _read_tests(root: str | None, name: str) -> tuple[Test, ...]:
    path = find(root, name)
    try:
        entries = json.loads(path.read_text("utf-8"))
        return tuple(test for entry in entries for test in _tests_of(entry))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UserError(f"{path} is no needle set of NoLiMa: {type(error).__name__}: {error}") from None


def _tests_of(entry: Mapping[str, Any]) -> Iterator[Test]:
    """Yield the tests of one needle. A question takes the last of its arguments, as in run_tests.py."""
    for kind, question in jsonl.field(entry, "questions").items():
        for name, test in jsonl.field(entry, "tests").items():
            needle, text = jsonl.text(entry, "needle"), question
            for number, argument in enumerate(test["input_args"], start=1):
                mark = f"{{{number}}}"
                needle = needle.replace(mark, argument)
                text = question.replace(mark, argument) if mark in question else text
            names = tuple(entry.get("character_set", ()))
            answers, prompt = tuple(test.get("gold_answers") or ()), entry.get("task_template", PROMPT)
            yield Test(f"{entry['id']}_{name}", kind, needle, text, prompt, answers, names)
