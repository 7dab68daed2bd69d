"""The audit of printed means: worked cases, properties, true tables inside the bounds, and files that are refused."""

import csv
import json
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cli.main import main
from kvbench.extras.audit.averages import Average, tasks_test
from kvbench.extras.audit.means_file import comparisons
from kvbench.extras.audit.pair_tests import least_correlation, needed, p_value, smallest_gain
from kvbench.extras.audit.pairs import LEVELS, Pair, counts, possible_sizes
from kvbench.extras.audit.verdicts import Verdict, decisive, judged, verdict, verdict_of_all


def right(b: float, a: float, n: int, prompts: str = "") -> Pair:
    """Right and wrong answers, means in percent with a decimal."""
    return Pair(a / 100, b / 100, n, half=0.0005, prompts=prompts)


@pytest.mark.parametrize(
    ("pair", "net", "discordant", "best", "worst", "expected"),
    [
        (right(9.5, 7.0, 200), 5, (5, 33), 0.0625, 0.487, Verdict.INCONCLUSIVE),
        (right(33.2, 10.8, 250), 56, (56, 110), 2.78e-17, 8.31e-08, Verdict.DECIDED),
        (right(69.8, 67.6, 500), 11, (11, 313), 0.000977, 0.572, Verdict.DEPENDS),
        (right(33.2, 33.0, 500), 1, None, 1.0, 1.0, Verdict.INCONCLUSIVE),
    ],
)
def test_right_and_wrong_answers_have_exact_bounds(
    pair: Pair, net: int, discordant: tuple[int, int] | None, best: float, worst: float, expected: Verdict
) -> None:
    assert pair.net == net
    if discordant is not None:
        assert (pair.discordant("best"), pair.discordant("any")) == discordant
    assert (p_value(pair, "best"), p_value(pair, "any")) == pytest.approx((best, worst), rel=2e-3)
    assert judged([pair]).verdict is expected


def test_graded_scores_and_those_without_bounds_or_a_count_that_fits() -> None:
    qasper = Pair(0.3195, 0.3529, 200, half=0.00005, parts=None)
    assert (p_value(qasper, "any"), p_value(qasper, "rho0")) == pytest.approx((0.566, 0.48), abs=5e-4)
    unbounded = Pair(12.0, 11.0, 50, parts=None, bounded=False)
    assert not unbounded.judged and judged([unbounded]).verdict is Verdict.NOT_AUDITABLE
    known = Pair(12.0, 11.0, 50, parts=None, bounded=False, spread=(1.0, 1.0))
    assert judged([known]).verdict is Verdict.DECIDED
    cake = Pair(0.672, 0.678, 229, half=0.0005)
    assert cake.lacks_rows and judged([cake]).verdict is Verdict.NOT_AUDITABLE
    assert not Pair(0.672, 0.668, 229, half=0.0005).lacks_rows


def test_digits_tell_numbers_of_prompts() -> None:
    assert possible_sizes([0.076, 0.368, 0.108, 0.472], 0.0005) == [250, 288, 462, 489, 500]
    assert [bool(counts(0.678, n, 0.0005)) for n in (229, 228, 227)] == [False, False, True]


def test_smallest_gain_and_need() -> None:
    gain = smallest_gain(right(40.0, 40.0, 250), "best")
    assert gain == pytest.approx(0.0314, abs=5e-5)
    ruler = Pair(0.793, 0.798, 500, half=0.0005, tasks=13)
    assert (needed(ruler, "any"), needed(ruler, "rho0")) == (9_878, 7_858)
    repobench = Pair(0.4685, 0.4892, 500, half=0.00005, parts=None, factor=0.15, rho=0.5)
    needs = [needed(repobench, level) for level in LEVELS[:3]]
    assert needs == pytest.approx([17_540, 9_144, 691], abs=1)
    assert least_correlation(right(69.8, 67.6, 500)) == pytest.approx(0.855, abs=5e-4)


def test_errors_over_shared_prompts_add() -> None:
    pairs = ((0.6, 0.7), (0.75, 0.8))
    same, apart = (
        Average(tuple(Pair(a, b, 250, prompts=name) for (a, b), name in zip(pairs, names, strict=True)))
        for names in ("xx", "xy")
    )
    errors = [100 * average.standard_error("any") for average in (same, apart)]
    assert errors == pytest.approx([4.767, 3.391], abs=5e-4)
    means = ((150, 0.50), (200, 0.40), (500, 0.55))
    gains = Average(tuple(Pair(mean, mean + 0.05, n, parts=None, prompts=str(n)) for n, mean in means))
    assert 100 * gains.standard_error("rho0") == pytest.approx(2.741, abs=5e-4)  # 2.409 as one heap of 850


def test_right_answers_over_lengths_are_one_heap() -> None:
    means = ((93.2, 92.8), (97.2, 96.8), (95.2, 97.2), (96.8, 98.0))
    pairs = [right(b, a, 250, prompts=str(i)) for i, (a, b) in enumerate(means)]
    assert [pair.net for pair in pairs] == [-1, -1, 5, 3]
    result = judged(pairs)
    assert (result.p["best"], result.p["any"]) == pytest.approx((0.109, 0.581), abs=5e-4)
    assert result.verdict is Verdict.INCONCLUSIVE


def test_sign_flips_over_tasks() -> None:
    result = tasks_test(enumerate([3, 1, 2, -1, 0]), unit=1)
    assert (result.p, result.sign_p, result.up, result.down) == (3 / 8, 5 / 8, 3, 1)
    shared = tasks_test([("a", 0.01), ("a", 0.02), ("b", -0.01)], unit=0.01)
    assert (result.p, shared.up, shared.down) == (3 / 8, 1, 1)


def test_two_tests_are_two_chances() -> None:
    assert decisive(0.04, 0.5) == 0.04
    assert decisive(0.9, 0.02) == 0.04
    assert verdict(0.9, 0.001, 0.026) is Verdict.DEPENDS
    assert verdict(0.9, 0.06, 0.4) is Verdict.INCONCLUSIVE
    parts = [judged([right(b, a, n)]) for b, a, n in ((33.2, 10.8, 250), (69.8, 67.6, 500), (33.2, 33.0, 500))]
    sure = [Verdict.DECIDED, Verdict.DEPENDS, Verdict.INCONCLUSIVE]  # all of a claim is as sure as its least
    assert [verdict_of_all(parts[:n]) for n in (1, 2, 3)] == sure


def test_prompts_about_one_text_count_once() -> None:
    alone, shared = (Pair(0.4, 0.5, 240, half=0.0005, texts=texts) for texts in (None, 30))
    assert shared.right is None
    for level in LEVELS:
        assert p_value(shared, level) > p_value(alone, level)


MEANS = st.integers(0, 1000).map(lambda value: value / 1000)
PAIRS = st.builds(
    Pair,
    MEANS,
    MEANS,
    st.integers(2, 600),
    half=st.sampled_from([0.0005, 0.005]),
    parts=st.sampled_from([1, 4, None]),
    factor=st.sampled_from([1.0, 0.33, 0.04]),
    rho=st.sampled_from([0.5, 0.8]),
    tasks=st.sampled_from([1, 13]),
)


@settings(max_examples=150, deadline=None)
@given(PAIRS)
def test_levels_are_ordered_and_sides_alike(pair: Pair) -> None:
    squares = [pair.mean_square(level) for level in LEVELS]
    p = [p_value(pair, level) for level in LEVELS]
    mirrored = Pair(pair.b, pair.a, pair.n, pair.half, pair.parts, pair.factor, pair.rho, tasks=pair.tasks)
    assert all(first >= second - 1e-12 for first, second in pairwise(squares))
    assert all(0 <= value <= 1 for value in p)
    assert all(first >= second - 1e-12 for first, second in pairwise(p))
    assert [p_value(mirrored, level) for level in LEVELS] == pytest.approx(p, rel=1e-9)
    for level in LEVELS:
        assert pair.mean_square(level) >= (pair.b - pair.a) ** 2 - 2e-2 * (pair.right is not None) - 1e-12
        need = needed(pair, level)
        assert (need is None) == (pair.difference == 0)
        gain = smallest_gain(pair, level)
        assert gain is None or 0 < gain <= 1 - pair.a + 1e-9


@settings(max_examples=60, deadline=None)
@given(PAIRS, st.integers(2, 5))
def test_more_prompts_are_never_less_sure(pair: Pair, times: int) -> None:
    normal = Pair(pair.a, pair.b, pair.n, 0.0, None, pair.factor, pair.rho)
    more = Pair(pair.a, pair.b, times * pair.n, 0.0, None, pair.factor, pair.rho)
    for level in LEVELS:
        assert p_value(more, level) <= p_value(normal, level) + 1e-12


def test_every_table_of_two_methods_lies_inside_the_bounds() -> None:
    for n in (6, 11):
        for both, only_a, only_b in product(range(n + 1), repeat=3):
            if both + only_a + only_b > n:
                continue
            pair = Pair((both + only_a) / n, (both + only_b) / n, n, half=1e-6)
            assert pair.right is not None
            assert pair.discordant("best") <= only_a + only_b <= pair.discordant("any")


def test_false_alarms_are_rare_whatever_the_dependence() -> None:
    generator = np.random.default_rng(3)
    n, tables = 120, 250
    for share in (0.0, 1.0):  # of opposed prompts: independent answers, then the most opposed ones
        a = generator.random((tables, n)) < 0.5
        b = np.where(generator.random((tables, n)) < share, ~a, generator.random((tables, n)) < 0.5)
        alarms = [
            p_value(Pair(x / n, y / n, n, half=1e-6), "any") <= 0.05 for x, y in zip(a.sum(1), b.sum(1), strict=True)
        ]
        assert np.mean(alarms) <= 0.09


def write(path: Path, text: str) -> Path:
    file = path / "means.csv"
    file.write_text(text, "utf-8")
    return file


TABLE = """method,host,task,mean,n,scores,context_length
H2O,,needle,7.0,200,,4096
Key,H2O,needle,9.5,200,,4096
H2O,H2O,needle,10.8,250,,8192
Key,H2O,needle,33.2,250,,8192
H2O,,qa,31.95,200,graded,
Key,H2O,qa,35.29,200,graded,
H2O,,longbench/multifieldqa_zh,30.10,200,,
Key,H2O,longbench/multifieldqa_zh,30.20,200,,
"""


def test_a_file_is_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, TABLE)
    assert main(["audit", str(tmp_path / "none.csv")]) == 3
    assert main(["audit", str(file), "--format", "json"]) == 0
    cells = [record for record in json.loads(capsys.readouterr().out) if record["kind"] == "difference"]
    assert [cell["verdict"] for cell in cells] == ["inconclusive", "decided", "depends", "inconclusive"]
    assert (cells[0]["discordant_best"], cells[0]["discordant_any"]) == (5, 33)
    assert cells[2]["p_any"] == pytest.approx(0.566, abs=5e-4)
    pairs, _, _ = comparisons(file)
    assert (pairs[3].pair.units, pairs[3].pair.factor) == (142, 0.33)
    assert main(["audit", str(file)]) == 0
    assert "depends" in capsys.readouterr().out
    out = tmp_path / "audit.csv"
    assert main(["audit", str(file), "--out", str(out)]) == 0
    with out.open(encoding="utf-8") as lines:
        assert len([*csv.DictReader(lines)]) == 5  # four differences and their average


def test_perplexity_without_sd_has_no_verdict_and_an_unknown_n_a_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "method,host,task,mean,n,unit{}\nA,,pg19,12.5,50,perplexity{}\nB,A,pg19,11.0,50,perplexity{}\n"
    for sd, expected in (("", "not auditable"), (",1.0", "decided")):
        file = write(tmp_path, text.format(",sd" if sd else "", sd, sd))
        assert main(["audit", str(file), "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["verdict"] == expected
    file = write(tmp_path, "method,host,task,mean,n\nA,,x,7.6,\nB,A,x,36.8,\nA,,y,10.8,\nB,A,y,47.2,\n")
    assert main(["audit", str(file), "--out", str(tmp_path / "out.txt")]) == 0
    page = (tmp_path / "out.txt").read_text("utf-8")
    assert "n unknown" in page and "would fit 250, 288, 462" in page
    assert "decided" not in page.split("n is not known")[0]


def test_lines_of_hosts_digits_of_a_task_and_copies(tmp_path: Path) -> None:
    text = "method,host,task,mean,n\nH2O,,x,40,100\nTOVA,,x,50,100\nKey,H2O,x,45,100\nKey,TOVA,x,52,100\n"
    pairs, bests, _ = comparisons(write(tmp_path, text))
    assert [(pair.of, pair.against, pair.pair.net) for pair in pairs] == [("Key", "H2O", 5), ("Key", "TOVA", 2)]
    assert [(best.against, best.pair.net, best.pair.rho) for best in bests] == [("TOVA", 2, 0.8)]
    file = write(tmp_path, "method,host,task,mean,n\nA,,x,0.33,500\nB,A,x,0.332,500\n")
    assert comparisons(file)[0][0].pair.net == 1
    lines = "".join(f"{name},{host},{task},0.5,100\n" for name, host in (("A", ""), ("B", "A")) for task in "xyz")
    assert "copy" in comparisons(write(tmp_path, f"method,host,task,mean,n\n{lines}"))[2][0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method,host,task,mean\nA,,x,1.0\n", "lacks the column n"),
        ("method,host,task,mean,n,m\nA,,x,1.0,10,1\n", "has the column m"),
        ("method,host,task,mean,n\n", "no line below its header"),
        ("method,host,task,mean,n\nA,,x,101,10\n", "allowed: 0 to 100"),
        ("method,host,task,mean,n,unit\nA,,x,1.5,10,rate\n", "allowed: 0 to 1"),
        ("method,host,task,mean,n\nA,,x,high,10\n", "mean=high"),
        ("method,host,task,mean,n\nA,,x,50,0\n", "n=0"),
        ("method,host,task,mean,n\nA,,x,50,ten\n", "n=ten"),
        ("method,host,task,mean,n\nA,,x,50,10\nA,,x,60,10\n", "lines 2 and 3 are both of A, x"),
        ("method,host,task,mean,n\nB,A,x,50,10\nA,,y,60,10\n", "host A has no line of its own for x"),
        ("method,host,task,mean,n\nA,,x,50,10\nB,A,x,60,20\n", "differ in n"),
        ("method,host,task,mean,n\nA,,x,50,10\nB,,x,60,10\n", "no method with a host"),
        ("method,host,task,mean,n,scores\nA,,x,50,10,fine\n", "scores=fine"),
        ("method,host,task,mean,n,contexts\nA,,x,50,10,20\n", "contexts=20"),
        ("method,host,task,mean,n\n,,x,50,10\n", "cannot be blank"),
        ("method,host,task,mean,n\nA,,x\n", "different numbers of fields"),
    ],
)
def test_a_bad_file_is_refused(text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(write(tmp_path, text))]) == 2
    assert words in capsys.readouterr().err
