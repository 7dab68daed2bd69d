"""Training rows: questions that the context answers, in the words of the protocol."""

import random
import re
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer

NEEDLES = [f"{family}/{hay}" for family in ("single", "values", "queries") for hay in ("essay", "noise", "needle")]
KINDS = [*NEEDLES, "single/essay/uuid", "single/needle/uuid", "tracking", "common", "frequent", "text"]
RANDOM = ("copying", "spaced", "sets", "counts")


def draw(modules: SimpleNamespace, source, seed: int, name: str, tokens: int = 433):
    return modules.families.Families(source).row(random.Random(seed), name, tokens)


@pytest.mark.parametrize("name", [*KINDS, *RANDOM])
def test_rows_fit_and_say_what_is_learned(modules, source, name: str) -> None:
    answers = 0
    for seed in range(7):
        row = modules.rows.skip(random.Random(seed), draw(modules, source, seed, name), 2000)
        assert 250 < len(row.ids) == len(row.weights) == len(row.positions) <= 433
        assert all(after > before for before, after in pairwise(row.positions)) and row.positions[-1] < 2000
        inside = {place for first, last in row.answers for place in range(first, last)}
        learned = {place for place, weight in enumerate(row.weights) if weight}
        if name in ("tracking", "common", "frequent", *NEEDLES):
            assert inside <= learned
            assert all(row.weights[place] == modules.rows.GUESSED for place in learned - inside)
        for place, right in row.alternatives.items():
            assert place in learned and row.ids[place] in right and len(right) > 1
        answers += len(row.answers)
    assert (answers > 6) == (name != "text")


@pytest.mark.parametrize("name", NEEDLES)
def test_answers_are_what_the_needles_say(modules, source, tokenizer: Tokenizer, name: str) -> None:
    """The values of the keys in the order of the question; those of one key in any order, and any of them is right."""
    for seed in range(9):
        row = draw(modules, source, seed, name)
        context = tokenizer.decode(row.ids[: row.answers[0][0]])
        needles = re.findall(r"magic numbers for (\S+) is: (\d{7})\.", context)
        for first, last in row.answers:
            question = tokenizer.decode(row.ids[:first]).rsplit("\n", 1)[1]
            keys = question.split(" for ")[-1].partition(" mentioned")[0].replace(", and ", ", ").split(", ")
            answer = tokenizer.decode(row.ids[first : last - 1]).strip()
            assert row.ids[last - 1] == modules.rows.END_ID
            values = [[value for key, value in needles if key == queried] for queried in keys]
            if name.startswith("single"):
                assert [answer] == values[0]
                continue
            answered = re.findall(r"(\S+): (\d{7})", answer)
            assert [key for key, _ in answered] == [key for key, each in zip(keys, values, strict=True) for _ in each]
            assert sorted(value for _, value in answered) == sorted(value for each in values for value in each)
            if name.startswith("values"):
                start = first + len(tokenizer.encode(f" {keys[0]}:").ids)
                firsts = {tokenizer.encode(f" {value}").ids[0] for value in values[0]}
                assert row.alternatives.get(start, [row.ids[start]]) == sorted(firsts)


def test_an_answer_names_every_variable_of_the_chain_in_any_order(modules, source, tokenizer: Tokenizer) -> None:
    in_order = 0
    for seed in range(8):
        row = draw(modules, source, seed, "tracking", tokens=701)
        text = tokenizer.decode(row.ids)
        first, last = row.answers[-1]
        names = tokenizer.decode(row.ids[first:last]).split()
        value = re.findall(r"the value (\d{5}), they are", text)[-1]
        (begin,) = re.findall(rf"VAR (\w+) = {value}\n", text)
        after = {before: name for name, before in re.findall(r"VAR (\w+) = VAR (\w+) \n", text)}
        chain = [begin]
        while chain[-1] in after:
            chain.append(after[chain[-1]])
        assert len(chain) == 5 and sorted(names) == sorted(chain)
        in_order += names == chain
    assert in_order < 8


@pytest.mark.parametrize(("name", "count"), [("common", 10), ("frequent", 3)])
def test_answers_are_the_most_frequent_words(modules, source, tokenizer: Tokenizer, name: str, count: int) -> None:
    for seed in range(5):
        row = draw(modules, source, seed, name, tokens=900)
        ((first, last),) = row.answers
        answer = tokenizer.decode(row.ids[first:last])
        words = re.findall(r"\d+\. (\S+)", answer) if name == "common" else answer.split()
        text = tokenizer.decode(row.ids[:first]).rsplit("\nQuestion:", 1)[0]
        text = text.rsplit("appear most often.\n" if name == "common" else "coded words. ", 1)[1]
        counts = Counter(re.findall(r"\d+\. (\S+)", text) if name == "common" else text.replace("...", "").split())
        assert len(words) == count and set(words) == {word for word, _ in counts.most_common(count)}
        assert min(counts[word] for word in words) > max(counts[word] for word in counts.keys() - set(words))


def test_what_is_hidden_is_not_asked_for(modules, source, tokenizer: Tokenizer) -> None:
    """A value stays visible whole or goes wherever it is told, and then weighs next to nothing."""
    gone = 0
    for seed in range(40):
        row = draw(modules, source, seed, "values/essay", 277)
        assert len(row.answers) == 1
        modules.rows.hide(random.Random(seed), row, source.newline)
        first, last = row.answers[0]
        assert len(row.hidden) == row.blind_from <= first and any(row.hidden)
        for value in re.findall(r"\d{7}", tokenizer.decode(row.ids[first:last])):
            ids = tokenizer.encode(f" {value}").ids
            places = [at for at in range(row.blind_from) if row.ids[at : at + len(ids)] == ids]
            stays = any(not any(row.hidden[at : at + len(ids)]) for at in places)
            at = next(at for at in range(first, last) if row.ids[at : at + len(ids)] == ids)
            weights = [modules.rows.CHOSEN, *[1.0] * (len(ids) - 1)] if stays else [modules.rows.GUESSED] * len(ids)
            assert row.weights[at : at + len(ids)] == weights
            gone += not stays
    assert gone > 20


def test_a_batch_names_what_is_right_at_each_place(modules, source) -> None:
    rows = [draw(modules, source, seed, "values/noise", 300) for seed in range(3)]
    batch = modules.rows.collate(rows, 320)
    assert batch.ids.shape == batch.positions.shape == batch.hidden.shape == (3, 320)
    for place, right in zip(batch.places.tolist(), batch.right.tolist(), strict=True):
        row, at = rows[place // 320], place % 320 + 1
        allowed = [token for token in right if token >= 0]
        assert row.ids[at] in allowed and row.weights[at]
        assert allowed == row.alternatives.get(at, [row.ids[at]])
    assert len(batch.places) == sum(sum(map(bool, row.weights[1:])) for row in rows)
    for index, row in enumerate(rows):
        total = batch.weights[batch.places // 320 == index].sum()
        assert total == pytest.approx(sum(row.weights[1:]) ** 0.5, rel=1e-5)
