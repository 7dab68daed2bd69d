"""Which splitter stands behind `auto`, and what is refused rather than replaced."""

import sys

import pytest

from kvbench.tasks.ruler.haystack import resolved, split_sentences

TEXT = "Mr. Smith spoke. Then he left! Did he?"


def no_model() -> None:
    raise LookupError


@pytest.mark.parametrize(("installed", "meaning"), [(True, "english"), (False, "bare")])
def test_auto_is_the_official_model_where_it_is_installed(installed: bool, meaning: str, monkeypatch):
    monkeypatch.setattr("nltk.data.find", lambda _: None if installed else no_model())
    assert resolved("auto") == meaning
    assert resolved("bare") == "bare"


def test_the_official_model_is_not_replaced(monkeypatch):
    monkeypatch.setattr("nltk.data.find", lambda _: no_model())
    with pytest.raises(FileNotFoundError, match=r"python -m nltk\.downloader punkt_tab"):
        resolved("english")


def test_without_nltk_the_fix_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk.data", None)
    with pytest.raises(ValueError, match=r"pip install 'kvbench\[benchmarks\]'"):
        resolved("auto")


def test_bare_knows_no_abbreviations():
    assert split_sentences("bare")(TEXT) == ["Mr.", "Smith spoke.", "Then he left!", "Did he?"]
