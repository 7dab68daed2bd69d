"""The worked searches that LongProc's countdown prompts show: countdown_evaluator.py at 78e873a.

    Initial number set: [40, 19, 23, 7], target: 29. Options for choosing two numbers: [(40, 19), ...].
     |- Pick two numbers (40, 19) (numbers left: [23, 7]). Try possible operations.
      |- Try 40 + 19 = 59. Add 59 to the number set. Current number set: [59, 23, 7], target: 29. Options ...

Pairs of numbers are tried in their order, depth first, until the target is found.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from kvbench.support.errors import UserError

LARGEST = 2000
"""Intermediate results from which on a branch is dropped."""


def countdown(numbers: Sequence[int], target: int) -> str:
    """Return the search for the target, and the three equations that it finds. Raises UserError if there are none."""
    lines = [f"Initial number set: {list(numbers)}, target: {target}. {_options(numbers)}"]
    steps = _combined(numbers, target, 1, lines)
    if steps is None:
        raise UserError(f"the target {target} cannot be reached with {list(numbers)}")
    first, second, last = steps
    return (
        "# Search Procedure\n" + "\n".join(lines) + "\n\nNow we have found the target, let's trace back the solution:\n"
        f"Final step: {last}\nThe step before: {second}\nThe first step: {first}\n\n"
        f"Output the solution in the required format:\n<Solution>\n{first}\n{second}\n{last}\n</Solution>\n"
    )


def _combined(numbers: Sequence[int], target: int, depth: int, lines: list[str]) -> tuple[str, ...] | None:
    """Return the equations that lead to the target, None if none do."""
    for first, second in combinations(range(len(numbers)), 2):
        rest = [number for place, number in enumerate(numbers) if place not in (first, second)]
        pair = numbers[first], numbers[second]
        if rest:
            lines.append(f"{_indent(depth)}Pick two numbers {pair} (numbers left: {rest}). Try possible operations.")
        for equation, result in _equations(max(pair), min(pair)):
            if (steps := _tried(equation, result, rest, target, depth + 1, lines)) is not None:
                return equation, *steps
    return None


def _equations(larger: int, smaller: int) -> Iterator[tuple[str, float | None]]:
    """Sum, difference, product and quotient, each with its equation; a quotient by 0 has no value."""
    yield f"{larger} + {smaller} = {larger + smaller}", larger + smaller
    yield f"{larger} - {smaller} = {larger - smaller}", larger - smaller
    yield f"{larger} * {smaller} = {larger * smaller}", larger * smaller
    if smaller == 0:
        yield f"{larger} / {smaller} (invalid operation)", None
    elif larger % smaller:
        yield f"{larger} / {smaller} = {larger / smaller:.1f}", larger / smaller
    else:
        yield f"{larger} / {smaller} = {larger // smaller}", larger // smaller


def _tried(
    equation: str, result: float | None, numbers_left: Sequence[int], target: int, depth: int, lines: list[str]
) -> tuple[str, ...] | None:
    """Return the further equations after one, none of them at the target; None where the branch is dropped."""
    line = f"{_indent(depth)}Try {equation}."
    if result is None:
        lines.append(f"{line} drop this branch.")
    elif isinstance(result, float):
        lines.append(f"{line} {result:.1f} is a decimal, drop this branch.")
    elif result >= LARGEST:
        lines.append(f"{line} {result} exceeds the maximum intermediate result, drop this branch.")
    elif not numbers_left:
        is_target = result == target
        end = f"== {target}, target found!" if is_target else f"!= {target}, drop this branch."
        lines.append(f"{line} Evaluate {result} {end}")
        return () if is_target else None
    else:
        whole = [result, *numbers_left]
        many = len(numbers_left) > 1
        options = f". {_options(whole)}" if many else ", just two numbers left."
        lines.append(f"{line} Add {result} to the number set. Current number set: {whole}, target: {target}{options}")
        return _combined(whole, target, depth + many, lines)
    return None


def _options(numbers: Sequence[int]) -> str:
    return f"Options for choosing two numbers: {list(combinations(numbers, 2))}."


def _indent(depth: int) -> str:
    return " " * depth + "|- "
