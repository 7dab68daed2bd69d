import hashlib
from dataclasses import replace

import numpy as np
import pytest

from kvbench.records import Row
from kvbench.report.compare.compare import STEPS, could_flip, step_of
from kvbench.report.compare.paired_rows import Side, Unpaired, counted, pair
from kvbench.report.stats.paired import Paired
from kvbench.support.errors import UserError


def side(name: str, *cells: list[Row], source: str = "runs", settings: dict[str, dict] | None = None) -> Side:
    rows = [row for cell in cells for row in cell]
    return Side(name, rows, source, (settings or {}).get)


def values(match) -> list[tuple[float, float]]:
    return [(a.value, b.value) for a, b in match.rows]


def test_selections_that_differ_in_score_are_paired_by_the_rest(cell) -> None:
    a = side("A", cell([1.0, 0.0, 1.0]), cell([0.0, 0.0, 1.0], budget="0.2"))
    b = side("B", cell([0.0, 1.0], score="caote"), cell([1.0] * 3, score="caote", budget="0.2"))
    pairing = pair(a, b)
    assert pairing.compared == {"score": (("attn",), ("caote",))}
    assert [match.key["budget"] for match in pairing.matches] == ["0.1", "0.2"]
    assert values(pairing.matches[0]) == [(1.0, 0.0), (0.0, 1.0)]
    assert pairing.matches[0].unpaired == (Unpaired(2, "B", "absent"),)
    assert values(pairing.matches[1]) == [(0.0, 1.0), (0.0, 1.0), (1.0, 1.0)]


def test_failures_and_blanks_are_no_pairs_and_are_told_apart(cell) -> None:
    a = side("A", cell([1.0, "out of memory", None, 1.0, "x", 0.5]))
    b = side("B", cell([0.0, 1.0, 1.0, "prompt too long", "y"], policy="h2o"))
    (match,) = pair(a, b).matches
    assert values(match) == [(1.0, 0.0)]
    assert counted(match.unpaired) == {
        ("A", "failed"): [1, 4],
        ("A", "no value"): [2],
        ("B", "failed"): [3, 4],
        ("B", "absent"): [5],
    }
    assert len(match.both) == 5


def test_two_folders_with_the_same_cells_are_paired_cell_by_cell(cell) -> None:
    cells = [cell([1.0, 0.0]), cell([0.0, 0.0], policy="h2o"), cell([1.0, 1.0], "full")]
    pairing = pair(side("A", *cells, source="one"), side("B", *reversed(cells), source="two"))
    assert pairing.compared == {}
    assert [match.key["policy"] for match in pairing.matches] == ["full", "h2o", "snapkv"]
    assert all(a == b for match in pairing.matches for a, b in match.rows)
    lacking = pair(side("A", *cells[:2], source="one"), side("B", *cells[::2], source="two")).matches
    by_policy = {match.key["policy"]: counted(match.unpaired) for match in lacking}
    assert by_policy["h2o"] == {("B", "absent"): [0, 1]} and by_policy["full"] == {("A", "absent"): [0, 1]}


@pytest.mark.parametrize(
    ("columns", "advice"),
    [
        ({"budget": "0.4"}, "add budget=0.2 or budget=0.4 to it"),
        ({"budget": "0.2", "score": "caote"}, "add score=attn or score=caote to it"),
    ],
)
def test_two_possible_partners_are_refused_with_what_to_add(cell, columns: dict, advice: str) -> None:
    a = side("A", cell([1.0], "full"))
    b = side("B", cell([1.0], budget="0.2"), cell([0.0], **columns))
    with pytest.raises(ValueError, match=r"ambiguous: B has .* for one sample|ambiguous: B has two rows") as caught:
        pair(a, b)
    assert advice in str(caught.value)


def test_two_cells_on_one_line_are_refused_with_the_setting_that_differs(cell) -> None:
    """Though no sample is of both."""
    narrow, wide = cell([1.0, 0.0], cell="narrow"), cell([0.0] * 4, cell="wide")[2:]
    settings = {name: {"policy": {"window": size}} for name, size in (("narrow", 16), ("wide", 32))}
    b = side("B", narrow, wide, source="more", settings=settings)
    with pytest.raises(UserError, match=r"ambiguous: B has two cells on one line: .*policy\.window=16"):
        pair(side("A", cell([1.0] * 4, "h2o")), b)


def test_settings_tell_cells_apart_whose_columns_are_the_same(cell) -> None:
    narrow, wide = cell([1.0, 0.0], cell="narrow"), cell([0.0, 0.0], cell="wide")
    other = cell([1.0, 1.0], score="caote", cell="other"), cell([0.0, 1.0], score="caote", cell="more")
    settings = {"narrow": 16, "wide": 32, "other": 16, "more": 32}
    described = {name: {"policy": {"window": window}} for name, window in settings.items()}
    pairing = pair(side("A", narrow, wide, settings=described), side("B", *other, settings=described))
    assert [(match.key["policy.window"], values(match)) for match in pairing.matches] == [
        (16, [(1.0, 1.0), (0.0, 1.0)]),
        (32, [(0.0, 0.0), (0.0, 1.0)]),
    ]
    with pytest.raises(ValueError, match=r"add policy\.window=16 or policy\.window=32 to it"):
        pair(side("A", narrow, wide, settings=described), side("B", cell([1.0], score="caote"), settings={}))
    versions = {"narrow": "1" * 64, "wide": "2" * 64}
    files = {name: {"plugins": {"my.py": {"sha256": sha256}}} for name, sha256 in versions.items()}
    named = r"add plugins.my.py.sha256=1{12}[*] or plugins.my.py.sha256=2{12}[*] to it"
    with pytest.raises(ValueError, match=named):
        pair(side("A", narrow, wide, settings=files), side("B", cell([1.0], score="caote"), settings={}))
    with pytest.raises(ValueError, match="add cell=narrow or cell=wide to it"):
        pair(side("A", narrow, wide), side("B", cell([1.0], score="caote")))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"task": "ruler/vt"}, "nothing to pair: A has task .*, B has ruler/vt"),
        ({"context_length": 1024}, "nothing to pair: A has context_length .*, B has 1024"),
        ({"seed": 7}, "nothing to pair: A has seed .*, B has 7"),
        ({"metric": "f1"}, "judged by string_match_all on one side and by f1 on the other"),
    ],
)
def test_other_questions_and_metrics_are_not_compared(cell, columns: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pair(side("A", cell([1.0])), side("B", cell([1.0], score="caote", **columns)))


def test_a_row_is_not_compared_with_itself_nor_values_of_different_units(cell) -> None:
    rows, nats = cell([1.0, 0.0]), cell([2.0, 3.0], metric="nll")
    with pytest.raises(ValueError, match="both select cell"):
        pair(side("A", rows), side("B", rows, cell([1.0, 0.0], policy="h2o")))
    with pytest.raises(ValueError, match="nll, string_match_all have different units"):
        Paired.of([*zip(rows, rows, strict=True), *zip(nats, nats, strict=True)])


def test_models_are_compared_or_paired(cell) -> None:
    a, b = cell([1.0, 0.0], model="small"), cell([1.0, 1.0], model="large")
    assert pair(side("A", a), side("B", b)).compared == {"model": (("small",), ("large",))}
    others = [cell([0.0, 0.0], "h2o", model=model) for model in ("small", "large")]
    assert [match.key["model"] for match in pair(side("A", a, b), side("B", *others)).matches] == ["large", "small"]
    with pytest.raises(ValueError, match="add model=small or model=large to it"):
        pair(side("A", a, b), side("B", cell([0.0], model="third")))


def test_pairs_become_arrays(cell) -> None:
    (match,) = pair(side("A", cell([1.0, 0.0, 0.3])), side("B", cell([0.0, 0.0, 0.1], "h2o"))).matches
    arrays = Paired.of(match.rows)
    assert np.allclose(arrays.difference, [-1, 0, -0.2])
    assert (arrays.n, arrays.clusters, arrays.independent, arrays.binary, arrays.rate) == (3, 3, True, False, True)
    twice = Paired.of([*match.rows, *match.rows])
    assert (twice.n, twice.clusters, twice.independent) == (6, 3, False)
    sums, sizes = twice.sums()
    assert np.allclose(sums, [-2, 0, -0.4]) and sizes.tolist() == [2, 2, 2]


def test_a_difference_is_without_the_rounding_of_its_sides() -> None:
    a, b = np.array([0.1 + 0.2, 1e6 * (0.1 + 0.2), 0.3]), np.array([0.3, 1e6 * 0.3, 0.3 + 1e-9])
    assert [*Paired(a, b, np.arange(3)).difference] == [0.0, 0.0, pytest.approx(1e-9)]


def test_rows_with_the_hash_of_one_context_are_one_cluster(cell) -> None:
    a, b = cell([1.0] * 6), cell([0.0] * 6, "h2o")
    hashes = ["c" * 64, "d" * 64, "c" * 64, None, hashlib.sha256(b"").hexdigest(), hashlib.sha256(b"").hexdigest()]
    a = [replace(row, context_sha256=known) for row, known in zip(a, hashes, strict=True)]
    assert Paired.of(list(zip(a, b, strict=True))).cluster.tolist() == [0, 1, 0, 2, 3, 4]


def test_lower_is_better_turns_round_once(cell) -> None:
    (match,) = pair(side("A", cell([2.0, 3.0], metric="nll")), side("B", cell([2.5, 3.5], "h2o", metric="nll"))).matches
    arrays = Paired.of(match.rows)
    assert not arrays.rate and not arrays.higher
    assert arrays.gain().difference.tolist() == [-0.5, -0.5]
    assert arrays.gain().gain().difference.tolist() == [-0.5, -0.5]


@pytest.mark.parametrize(
    ("dtype", "margin", "expected"),
    [
        ("bfloat16", 0.1, True),
        ("bfloat16", 0.125, False),
        ("float32", 0.1, False),
        ("float32", 1e-6, True),
        ("float16", 0.01, True),
        ("auto", 0.0, None),
        ("bfloat16", None, None),
    ],
)
def test_an_answer_could_flip_below_the_step_of_its_dtype(cell, dtype: str, margin, expected) -> None:
    row = replace(cell([1.0])[0], top2_margin=margin)
    assert could_flip(row, step_of({"model": {"dtype": dtype}})) is expected
    assert could_flip(row, step_of(None)) is None


def test_steps_are_those_of_the_formats() -> None:
    for dtype in ("float16", "float32", "float64"):
        assert {np.spacing(np.dtype(dtype).type(number)) for number in (16, 31)} == {STEPS[dtype]}


def test_answers_from_elsewhere_pair_with_ours_whose_settings_they_do_not_say(cell) -> None:
    """Method and budget pair; score, variant, layout and schedule are unknown there. Two of ours are ambiguous."""
    ours = [cell([1.0, 1.0], "full", score=None), cell([1.0, 0.0]), cell([0.0, 0.0], budget="0.2")]
    unsaid = {"score": None, "variant": None, "layout": None}
    served = [cell([1.0, 0.0], "full", cell="e" * 16, **unsaid), cell([0.0, 1.0], cell="f" * 16, **unsaid)]
    there = side("B", *served, source="served", settings={row.cell: {"endpoint": {}} for (row, _) in served})
    by_key = {(match.key["policy"], match.key["budget"]): match for match in pair(side("A", *ours), there).matches}
    assert values(by_key["snapkv", "0.1"]) == [(1.0, 0.0), (0.0, 1.0)]
    assert values(by_key["full", "1.0"]) == [(1.0, 1.0), (1.0, 0.0)]
    assert not by_key["snapkv", "0.2"].rows
    two = side("A", *ours, cell([1.0, 0.0], score="caote"))
    with pytest.raises(ValueError, match="add score=attn or score=caote to it"):
        pair(two, there)
