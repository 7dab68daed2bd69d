"""Rows of the later stages: questions that the context answers, in the words of the protocol."""

import random
import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer

FAMILIES = ("single", "values", "queries", "tracking", "text")
HAYS = ("essay", "noise", "needle")


def draw(modules: SimpleNamespace, source, seed: int, family: str, hay: str = "essay", tokens: int = 433, **more):
    blend = modules.families.Blend(((family, 1.0),), 200, 500, hays=((hay, 1.0),), uuid_share=0.0, **more)
    return modules.families.Families(source).row(random.Random(seed), blend, tokens)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("hay", HAYS)
def test_rows_are_about_as_long_as_asked_and_say_what_is_learned(modules, source, family: str, hay: str) -> None:
    for seed in range(7):
        row = draw(modules, source, seed, family, hay)
        assert len(row.ids) == len(row.weights) == len(row.positions) <= 1.25 * 433
        assert all(after > before for before, after in pairwise(row.positions))
        assert row.positions[-1] < 4096
        answered = np.zeros(len(row.ids), dtype=bool)
        for first, last in row.answers:
            answered[first:last] = True
        weights = np.array(row.weights)
        assert (weights[answered] >= modules.families.REPEATED).all() and (weights[~answered] < 0.1).all()
        assert (len(row.answers) > 0) == (family != "text")


def test_the_values_of_needles_and_keys_are_not_learned_by_heart(modules, source, tokenizer: Tokenizer) -> None:
    row = draw(modules, source, 3, "single")
    text = tokenizer.decode([token for token, weight in zip(row.ids, row.weights, strict=True) if 0 < weight < 1])
    assert "Nobody had seen" in text and "magic" not in text


@pytest.mark.parametrize("hay", HAYS)
@pytest.mark.parametrize("family", ["single", "values", "queries"])
def test_answers_are_what_the_needles_say(modules, source, tokenizer: Tokenizer, family: str, hay: str) -> None:
    for seed in range(9):
        row = draw(modules, source, seed, family, hay)
        context = tokenizer.decode(row.ids[: row.answers[0][0]])
        told = re.findall(r"magic numbers for (\S+) is: (\d{7})\.", context)
        for first, last in row.answers:
            question = tokenizer.decode(row.ids[:first]).rsplit("\n", 1)[1]
            keys = question.split(" for ")[-1].partition(" mentioned")[0].replace(", and ", ", ").split(", ")
            answer = tokenizer.decode(row.ids[first : last - 1]).strip()
            assert row.ids[last - 1] == modules.rows.END_ID
            values = [(key, value) for key in keys for name, value in told if name == key]
            assert answer == (values[0][1] if family == "single" else ", ".join(f"{k}: {v}" for k, v in values))
        assert all(name.startswith(family) for name in row.names)


def test_chains_are_followed_in_order(modules, source, tokenizer: Tokenizer) -> None:
    for seed in range(5):
        row = draw(modules, source, seed, "tracking", tokens=701)
        text = tokenizer.decode(row.ids)
        first, last = row.answers[-1]
        names = tokenizer.decode(row.ids[first:last]).split()
        value = re.findall(r"the value (\d{5}), they are", text)[-1]
        assert f"VAR {names[0]} = {value}\n" in text
        assert all(f"VAR {after} = VAR {before} \n" in text for before, after in pairwise(names))


def test_what_is_hidden_is_not_asked_for(modules, source, tokenizer: Tokenizer) -> None:
    """A value stays visible whole or goes wherever it is told, and then weighs next to nothing."""
    blend = modules.families.Blend((("single", 1.0),), 200, 300, uuid_share=0.0)
    gone = 0
    for seed in range(40):
        row = modules.families.Families(source).evicted(random.Random(seed), blend, 277)
        first, last = row.answers[0]
        seen = modules.rows.visible([row], len(row.ids))[0, 0]
        assert seen[first, : row.blind].sum() < row.blind and seen[row.blind, row.blind]
        for value in re.findall(r"\d{7}", tokenizer.decode(row.ids[first:last])):
            ids = tokenizer.encode(f" {value}").ids
            places = [at for at in range(row.blind) if row.ids[at : at + len(ids)] == ids]
            whole = any(seen[first, at : at + len(ids)].all() for at in places)
            at = next(at for at in range(first, last) if row.ids[at : at + len(ids)] == ids)
            assert set(row.weights[at : at + len(ids)]) == {1.0 if whole else modules.rows.GUESSED}
            gone += not whole
    assert gone > 5
