"""Haystacks of RULER: repeated noise, other needles, or essays, split into sentences.

Follows scripts/data/synthetic/niah.py of NVIDIA/RULER at e40fae1 (2024, where noise is called repeat) and c3f5e3b
(2026). A needle in essays stands between two sentences. The benchmark calls nltk's `sent_tokenize`, which is Punkt with
its English model, a download of its own; Punkt without parameters (it knows no abbreviations) finds other sentences, so
needles stand elsewhere and the prompt is another. A task's version names the one that was used.
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import Literal

from kvbench.support.errors import MissingFile, UserError
from kvbench.tasks.files import find, listing, remembered
from kvbench.tasks.metrics import FIX

ESSAYS, BOOKS = "paul_graham_essays/*.txt", "pg19/*.txt"
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
DEPTHS = [round(100 * place / 39) for place in range(40)]
"""Percent of the sentences before a needle in essays."""
Splitter = Literal["auto", "english", "bare"]
"""`english` is the official one, `bare` is Punkt without parameters, `auto` the first of the two that is installed."""
DOWNLOAD = "python -m nltk.downloader punkt_tab"


def inserted(needles: Sequence[str], lines: list[str], rng: random.Random) -> list[str]:
    """`lines` with needles at positions drawn from `rng`, from the last to the first: the first needle stands last."""
    places = sorted(rng.sample(range(len(lines)), len(needles)), reverse=True)
    for place, needle in zip(places, needles, strict=True):
        lines.insert(place, needle)
    return lines


def joined(root: str | None, pattern: str) -> str:
    """Join the files of a pattern under `data.root`, in the order of their names; line ends become newlines.

    The essays are the 49 files of https://github.com/gkamradt/LLMTest_NeedleInAHaystack, which RULER's
    scripts/data/synthetic/json/download_paulgraham_essay.py joins without a separator. RULER appends 169 pages in html;
    these come after the first 111,877 words, so prompts up to about 128K tokens do not reach them.

    Raises MissingFile if there is no file, UserError for one that is not UTF-8.
    """
    return "".join(_text(root, name) for name in listing(root, pattern))


@remembered
def _text(root: str | None, name: str) -> str:
    file = find(root, name)
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: {error}") from None


class Prose:
    """A text of which prompts have parts; sizes and places are in words.

    splitter: as `resolved` returns it. wraps: after the last word comes the first again; otherwise a part ends there.
    """

    def __init__(self, text: str, splitter: str, wraps: bool):
        self._words = re.sub(r"\s+", " ", text).split(" ")
        self._split = split_sentences(splitter)
        self._wraps = wraps
        self._sentences: dict[tuple[int, int], list[str]] = {}

    def __len__(self) -> int:
        return len(self._words)

    def words(self, size: int, start: int = 0) -> str:
        """Return the `size` words from word `start` on, joined by one space."""
        times = -(-(start + size) // len(self._words)) if self._wraps else 1
        words = self._words * times if times > 1 else self._words
        return " ".join(words[start : start + size])

    def around(self, needles: Sequence[str], size: int, rng: random.Random, start: int = 0) -> str:
        """Put needle i before the i-th of the sorted depths of these words; all is joined by one space."""
        if (size, start) not in self._sentences:  # sizes recur, and splitting a long text is slow
            self._sentences[size, start] = self._split(self.words(size, start).strip())
        sentences = self._sentences[size, start]
        places = sorted(int(len(sentences) * (depth / 100)) for depth in rng.sample(DEPTHS, len(needles)))
        parts, start = [], 0
        for place, needle in zip(places, needles, strict=True):
            parts += [" ".join(sentences[start:place]), needle]
            start = place
        return " ".join([*parts, " ".join(sentences[start:])])


def resolved(splitter: str) -> str:
    """`english` or `bare`: the meaning of `splitter` on this machine.

    Raises UserError if nltk is not installed, MissingFile if the model of `english` is not.
    """
    try:
        from nltk.data import find as find_model
    except ModuleNotFoundError:
        raise UserError(f"haystacks of essays are split into sentences by nltk; run: {FIX}") from None
    if splitter == "bare":
        return splitter
    try:
        find_model("tokenizers/punkt_tab/english/")
    except LookupError:
        if splitter == "auto":
            return "bare"
        raise MissingFile(
            f"task.splitter=english needs the English Punkt model of nltk; run: {DOWNLOAD} (or set task.splitter=bare)"
        ) from None
    return "english"


def split_sentences(splitter: str) -> Callable[[str], list[str]]:
    """Return the function that splits a text; `splitter` as `resolved` returns it."""
    if splitter == "english":
        from nltk.tokenize import sent_tokenize

        return sent_tokenize
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    return PunktSentenceTokenizer().tokenize
