"""The documents and questions of SQuAD and HotpotQA as RULER reads them: read_squad and read_hotpotqa of its qa.py."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.files import find, remembered


@dataclass(frozen=True)
class Question:
    """A question with its right answers (duplicates kept). Documents are numbers in the pool.

    `own` are shown always, `related` before any other.
    """

    text: str
    answers: tuple[str, ...]
    own: tuple[int, ...]
    related: tuple[int, ...] = ()


@dataclass(frozen=True)
class Passages:
    """All distinct documents of a data set, sorted, and its questions in the order of the file."""

    documents: tuple[str, ...]
    questions: tuple[Question, ...]


def passages(root: str | None, dataset: str) -> Passages:
    """A data set of `ruler/DATASET.json` under `data.root`.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is not the JSON that the data set is published as.
    """
    return _read(root, f"ruler/{dataset}.json")


@remembered
def _read(root: str | None, name: str) -> Passages:
    path = find(root, name)
    dataset = path.stem
    try:
        return READERS[dataset](json.loads(path.read_text(encoding="utf-8")))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not {dataset} as published: {type(error).__name__} {error}") from None


def _squad(read: Any) -> Passages:
    """SQuAD 2.0: a paragraph is a document, the others of its article are related; only questions with an answer."""
    articles = [article["paragraphs"] for article in read["data"]]
    numbers = _numbered({paragraph["context"] for article in articles for paragraph in article})
    questions = []
    for article in articles:
        of_article = [numbers[paragraph["context"]] for paragraph in article]
        for paragraph, own in zip(article, of_article, strict=True):
            related = tuple(number for number in of_article if number != own)
            for asked in paragraph["qas"]:
                if not asked["is_impossible"]:
                    answers = tuple(answer["text"] for answer in asked["answers"])
                    questions.append(Question(asked["question"], answers, (own,), related))
    return Passages(tuple(numbers), tuple(questions))


def _hotpotqa(read: Any) -> Passages:
    """HotpotQA, distractor setting: a title and its sentences are a document; all of a question's are its own."""
    contexts = [[f"{title}\n{''.join(sentences)}" for title, sentences in row["context"]] for row in read]
    numbers = _numbered({document for context in contexts for document in context})
    questions = tuple(
        Question(row["question"], (row["answer"],), tuple(numbers[document] for document in context))
        for row, context in zip(read, contexts, strict=True)
    )
    return Passages(tuple(numbers), questions)


def _numbered(documents: set[str]) -> dict[str, int]:
    return {document: number for number, document in enumerate(sorted(documents))}


READERS: dict[str, Callable[[Any], Passages]] = {"squad": _squad, "hotpotqa": _hotpotqa}
"""The data sets that can be asked for, and what reads the JSON of each."""
