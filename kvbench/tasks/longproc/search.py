"""Worked searches that LongProc's prompts show: countdown_evaluator.py and travel_planning_evaluator.py at 78e873a.

    Initial number set: [40, 19, 23, 7], target: 29. Options for choosing two numbers: [(40, 19), ...].
     |- Pick two numbers (40, 19) (numbers left: [23, 7]). Try possible operations.
      |- Try 40 + 19 = 59. Add 59 to the number set. Current number set: [59, 23, 7], target: 29. Options ...

Numbers and cities are tried in their order, depth first, until the target or a whole plan is found.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from kvbench.support.errors import UserError

LARGEST = 2000
"""Intermediate results from which on a branch is dropped."""
Stop = Mapping[str, Any]
"""A city with its arrival and departure days."""


def countdown(numbers: Sequence[int], target: int) -> str:
    """The search for the target, and the three equations that it finds. Raises UserError if there are none."""
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
    """The equations that lead to the target, None if none do."""
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
    equation: str, result: float | None, rest: Sequence[int], target: int, depth: int, lines: list[str]
) -> tuple[str, ...] | None:
    """The further equations after one, none of them at the target; None where the branch is dropped."""
    line = f"{_indent(depth)}Try {equation}."
    if result is None:
        lines.append(f"{line} drop this branch.")
    elif isinstance(result, float):
        lines.append(f"{line} {result:.1f} is a decimal, drop this branch.")
    elif result >= LARGEST:
        lines.append(f"{line} {result} exceeds the maximum intermediate result, drop this branch.")
    elif not rest:
        is_target = result == target
        end = f"== {target}, target found!" if is_target else f"!= {target}, drop this branch."
        lines.append(f"{line} Evaluate {result} {end}")
        return () if is_target else None
    else:
        whole = [result, *rest]
        many = len(rest) > 1
        options = f". {_options(whole)}" if many else ", just two numbers left."
        lines.append(f"{line} Add {result} to the number set. Current number set: {whole}, target: {target}{options}")
        return _combined(whole, target, depth + many, lines)
    return None


def _options(numbers: Sequence[int]) -> str:
    return f"Options for choosing two numbers: {list(combinations(numbers, 2))}."


def _indent(depth: int) -> str:
    return " " * depth + "|- " if depth else ""


def travel(problem: Mapping[str, Any]) -> str:
    """The search for a plan of a trip, and the plan. Raises UserError if there is none."""
    constraints: Sequence[Stop] = problem["constraints"]
    fixed = {stop["city"]: stop for stop in constraints if stop["type"] == "fixed"}
    stays = [stop for stop in constraints if stop["type"] == "duration"]
    free = [stop for stop in stays if stop["city"] not in fixed]
    by_arrival = sorted(fixed.values(), key=lambda stop: stop["start_day"])
    lines = [
        "Read the requirements and identify the cities that have fixed schedules and the cities that need to be "
        "arranged.",
        *(f"{_stay(stop)}{', ' + _schedule(fixed[stop['city']]) if stop['city'] in fixed else '.'}" for stop in stays),
        "",
        f"Cities that have fixed schedules{' (sorted by their arrival days):' if fixed else ': None.'}",
        *(f"* City: {stop['city']}, {_schedule(stop)}" for stop in by_arrival),
        "",
        f"Cities needing arrangement:{'' if free else ' None.'}",
        *(f"{_stay(stop)}." for stop in free),
        "",
    ]
    flights = {tuple(pair) for pair in problem["connected_cities"]}
    plan = _arranged(problem["num_cities"], 1, [], free, by_arrival, flights, lines)
    if plan is None:
        raise UserError(f"there is no plan for {problem.get('id', 'a problem')}")
    search = "\n".join(lines)
    return (
        f"<Solving Procedure>\n{search}\n</Solving Procedure>\n\nOutput the plan in the required format:\n<Plan>\n"
        f"{_written(plan)}\n</Plan>"
    )


def _stay(stop: Stop) -> str:
    return f"* City: {stop['city']}, Duration: {stop['num_days']} days"


def _schedule(stop: Stop) -> str:
    return f"Fixed Schedule: Day {stop['start_day']} - {stop['end_day']}."


def _arranged(
    cities: int,
    day: int,
    plan: list[Stop],
    free: Sequence[Stop],
    fixed: Sequence[Stop],
    flights: set[tuple[str, ...]],
    lines: list[str],
) -> list[Stop] | None:
    """A whole plan that begins with `plan` and goes on at a day, None if there is none."""
    outer, inner = _indent(2 * len(plan)), _indent(2 * len(plan) + 1)
    lines.append(f"{outer}Current day: {day}. Current plan: {_names(plan)}.")
    if len(plan) == cities:
        lines.append(f"{outer}All {cities} cities are arranged. Complete plan is found!")
        return plan
    lines.append(f"{outer}Check whether the city with an arrival day of Day {day} - is fixed.")
    options = [_stop(stop["city"], day, stop["end_day"]) for stop in fixed if stop["start_day"] == day][:1]
    if options:
        lines.append(f"{outer}Yes. The city with an arrival day of Day {day} - is fixed: {options[0]['city']}.")
    else:
        options = [_stop(stop["city"], day, day + stop["num_days"] - 1) for stop in free]
        lines.append(
            f"{outer}No. Consider possible options from cities needing arrangement: {_names(free)} and explore these "
            "options in order."
        )
    later = next((stop for stop in fixed if stop["start_day"] > day), None)
    for option in options:
        lines += [f"{inner}{line}" for line in _checks(option, plan, later, flights)]
        if not lines[-1].endswith("Continue to arrange the rest of the plan."):
            continue
        rest = [stop for stop in free if stop["city"] != option["city"]]
        if (whole := _arranged(cities, option["end_day"], [*plan, option], rest, fixed, flights, lines)) is not None:
            return whole
    lines.append(f"{inner}Fail to arrange any option on day {day} in the current arrangement. Drop this branch.")
    return None


def _checks(option: Stop, plan: Sequence[Stop], later: Stop | None, flights: set[tuple[str, ...]]) -> Iterator[str]:
    """What is said of a city that is tried next; the last line says whether it is arranged."""
    city, start, end = option["city"], option["start_day"], option["end_day"]
    origin = plan[-1]["city"] if plan else "the starting point"
    days = f"Duration: {option['num_days']} days. Schedule: Day {start} - {end}."
    yield f"Try arranging to visit {city} from Day {start}. {days}"
    yield f"Check for direct flight from {origin} to {city}."
    if plan and (origin, city) not in flights:
        yield "No. Drop this branch."
        return
    yield "Yes."
    check = f"Check whether this arrangement is compatible with the next fixed schedule after Day {start}: "
    if later is None:
        yield f"{check}None."
        yield "No following fixed schedules. This arrangement is compatible."
    else:
        name, arrival = later["city"], later["start_day"]
        yield f"{check}{name} (Day {arrival} - {later['end_day']})."
        days = f"The departure day of {city} is Day {end}. The arrival day of {name} is Day {arrival}. Day {end} is"
        if arrival < end:
            yield f"{days} later than (>) Day {arrival}. This arrangement is incompatible. Drop this branch."
            return
        yield f"{days} not later than (<=) Day {arrival}. This arrangement is compatible."
    yield "This arrangement is feasible for now. Continue to arrange the rest of the plan."


def _stop(city: str, start: int, end: int) -> Stop:
    return {"city": city, "start_day": start, "end_day": end, "num_days": end - start + 1}


def _names(stops: Sequence[Stop]) -> str:
    return f"[{', '.join(stop['city'] for stop in stops)}]"


def _written(plan: Sequence[Stop]) -> str:
    lines = []
    for place, stop in enumerate(plan):
        city, start, end = stop["city"], stop["start_day"], stop["end_day"]
        visit = f"Visit {city}" if place else f"Arriving in {city} and visit {city}"
        lines.append(f"**Day {start}-{end}:** {visit} for {stop['num_days']} days.")
        if place + 1 < len(plan):
            lines.append(f"**Day {end}:** Fly from {city} to {plan[place + 1]['city']}.")
    return "\n".join(lines)
