"""Splitting essays into sentences: a needle of RULER stands between two of them.

The benchmark calls nltk's `sent_tokenize`, i.e. Punkt with its English model. That model is a download of its own; with
Punkt without parameters other sentences come out (it knows no abbreviations), so needles stand elsewhere and the prompt
is another. Which one was used is part of a task's version.
"""

from collections.abc import Callable

from kvbench.support.errors import MissingFile, UserError

SPLITTERS = ("auto", "english", "bare")
"""`english` is the official one, `bare` is Punkt without parameters, `auto` the first of the two that is installed."""
INSTALL = "pip install 'kvbench[benchmarks]'"
DOWNLOAD = "python -m nltk.downloader punkt_tab"


def resolved(splitter: str) -> str:
    """`english` or `bare`: what `splitter` means on this machine.

    Raises:
        ValueError: nltk is not installed.
        FileNotFoundError: `english` is asked for and its model is not installed.
    """
    has_english = _has_english()
    if splitter == "english" and not has_english:
        raise MissingFile(
            f"task.splitter=english needs the English Punkt model of nltk; run: {DOWNLOAD} (or set task.splitter=bare)"
        )
    if splitter == "auto":
        return "english" if has_english else "bare"
    return splitter


def split_sentences(splitter: str) -> Callable[[str], list[str]]:
    """The function that splits a text; `splitter` as `resolved` returns it."""
    if splitter == "english":
        from nltk.tokenize import sent_tokenize

        return sent_tokenize
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    return PunktSentenceTokenizer().tokenize


def _has_english() -> bool:
    try:
        from nltk.data import find
    except ModuleNotFoundError:
        raise UserError(f"haystacks of essays are split into sentences by nltk; run: {INSTALL}") from None
    try:
        find("tokenizers/punkt_tab/english/")
    except LookupError:
        return False
    return True
