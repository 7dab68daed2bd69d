"""RULER's searches for a size: what they probe, where they end, and that they end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.tasks.ruler.task import TRIES, DoesNotFit, RulerPrompt, bisected, fitting, stepped


class Probes:
    """Texts of `base + per_unit * size` tokens; remembers which sizes were probed."""

    def __init__(self, per_unit: int, base: int = 0):
        self.per_unit, self.base, self.sizes = per_unit, base, list[int]()

    def __call__(self, size: int) -> int:
        self.sizes.append(size)
        return self.base + self.per_unit * size


def prompt_of(length: int) -> RulerPrompt:
    return RulerPrompt("x" * length, "", "", ())


@given(st.integers(1, 9), st.integers(1, 40), st.integers(50, 700), st.integers(0, 49))
def test_bisection_finds_the_largest_that_fits(per_unit: int, step: int, room: int, base: int):
    high = max(3 * room // per_unit, 2 * step)
    size = bisected(Probes(per_unit, base), step, high, room)
    assert size == max(step, min(high, (room - base) // per_unit))


@given(st.integers(1, 9), st.integers(1, 7), st.integers(80, 700))
def test_steps_end_below_the_room_or_one_above_it_when_met_exactly(per_unit: int, step: int, room: int):
    probes = Probes(per_unit)
    size = stepped(probes, step, room)
    assert probes.sizes == [step * number for number in range(1, len(probes.sizes) + 1)]
    exact = per_unit * probes.sizes[-1] == room
    assert size == probes.sizes[-1] + (step if exact else -step)


@pytest.mark.parametrize(("last_probe", "probed"), [(None, [10, 20]), (35, [10, 20, 30])])
def test_steps_end_at_what_there_is(last_probe: int | None, probed: list[int]):
    probes = Probes(1)
    assert stepped(probes, 10, 1000, most=25, last_probe=last_probe) == 25
    assert probes.sizes == probed


def test_a_first_step_that_is_too_long_is_no_size():
    with pytest.raises(DoesNotFit, match="up to 50 tokens"):
        stepped(Probes(5), 10, 49)


def test_a_prompt_shrinks_by_steps_and_then_is_redrawn_until_it_fits():
    sizes, lengths = list[int](), iter([9, 9, 9, 9, 5])

    def draw(size: int) -> RulerPrompt:
        sizes.append(size)
        return prompt_of(next(lengths))

    assert fitting(draw, len, 12, 5, 5) == prompt_of(5)
    assert sizes == [12, 7, 2, 2, 2]


def test_what_never_fits_ends():
    probes = Probes(1)
    with pytest.raises(DoesNotFit, match="up to 4 tokens"):
        fitting(lambda size: prompt_of(probes(size)), len, 4, 4, 3)
    assert probes.sizes == [4] * TRIES


def test_a_prompt_shrinks_to_the_smallest_haystack_that_holds_its_needles():
    sizes, lengths = list[int](), iter([9, 9, 5])

    def draw(size: int) -> RulerPrompt:
        sizes.append(size)
        return prompt_of(next(lengths))

    assert fitting(draw, len, 9, 5, 5, smallest=5) == prompt_of(5)
    assert sizes == [9, 5, 5]
