"""The view of RULER's keys equals the sorted list it stands for, and only the right word lists are read."""

import itertools
from importlib import metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.tasks.ruler import words

hyphenated = st.text("ab-", min_size=1, max_size=4)


@given(lefts=st.lists(hyphenated, min_size=1, max_size=6), rights=st.lists(hyphenated, min_size=1, max_size=6))
def test_the_view_is_the_sorted_list_of_all_pairs(lefts: list[str], rights: list[str]):
    pairs = words.SortedProduct(lefts, rights)
    assert list(pairs) == sorted({f"{left}-{right}" for left, right in itertools.product(lefts, rights)})


def test_the_keys_are_those_of_the_pinned_release():
    keys = words.keys()
    assert (len(keys), keys[0], keys[len(keys) - 1]) == (6_175_260, "Early-ATM", "zonked-zucchini")


def test_another_release_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(words, "version", lambda name: "3.0.1")
    words.keys.cache_clear()
    with pytest.raises(ValueError, match=r"found 3\.0\.1; run: pip install wonderwords==2\.2\.0"):
        words.keys()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(words, "version", missing)
    words.keys.cache_clear()
    with pytest.raises(ValueError, match="none installed"):
        words.keys()
