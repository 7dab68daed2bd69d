"""All pairs of methods: p against the exact test of one pair, chance of a false difference, and letters."""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvbench.extras.board.all_pairs import all_pairs, letters, pairs_told_apart
from kvbench.report.stats.paired_tests import sign_flip


def alone(values: np.ndarray) -> np.ndarray:
    return np.arange(values.shape[1])


def test_p_of_one_pair_is_that_of_the_sign_flip_test() -> None:
    generator = np.random.default_rng(1)
    values = generator.random((2, 40)) + np.array([[0.0], [0.12]])
    exact = sign_flip(values[1] - values[0], finest=1e-4).p
    assert abs(all_pairs(values, alone(values))[0, 1] - exact) < 0.01


def test_contexts_flip_as_a_whole_and_equal_methods_are_never_told_apart() -> None:
    """Ten prompts about one context are one observation: no p below a half."""
    values = np.stack((np.zeros(10), np.ones(10)))
    assert all_pairs(values, np.zeros(10, int))[0, 1] > 0.9
    assert all_pairs(values, alone(values))[0, 1] < 0.01
    values = np.tile(np.random.default_rng(2).random(30), (3, 1))
    values[2] += 1.0
    p = all_pairs(values, alone(values))
    assert p[0, 1] == 1.0 and max(p[0, 2], p[1, 2]) < 0.01
    assert (p == p.T).all()


def test_false_differences_are_as_rare_as_promised() -> None:
    """Eight equally good methods on thirty prompts, 200 times: in about one of twenty any pair is told apart."""
    generator = np.random.default_rng(3)
    false = sum(
        bool(pairs_told_apart(all_pairs(values := generator.normal(size=(8, 30)), alone(values), 499), 0.05))
        for _ in range(200)
    )
    assert 2 <= false <= 20  # of 10 expected; a test without correction finds far more


@given(
    st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.sampled_from([*combinations(range(8), 2)]))))
)
def test_a_common_letter_is_the_same_as_not_told_apart(drawn: tuple[int, set[tuple[int, int]]]) -> None:
    methods, pairs = drawn
    apart = {pair for pair in pairs if pair[1] < methods}
    groups = letters(sorted(apart), methods)
    assert all(groups)
    for pair in combinations(range(methods), 2):
        assert (not {*groups[pair[0]]} & {*groups[pair[1]]}) == (pair in apart)
