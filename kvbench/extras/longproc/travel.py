"""The worked search that LongProc's prompts of travel_planning show: travel_planning_evaluator.py at 78e873a.

    Current day: 1. Current plan: [].
    Check whether the city with an arrival day of Day 1 - is fixed.
    No. Consider possible options from cities needing arrangement: [Lille, York] and explore these options in order. ...

Cities are tried in their order, depth first, until a whole plan is found.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvbench.support.errors import UserError

Stop = Mapping[str, Any]
"""A city with its arrival and departure days."""


def travel(problem: Mapping[str, Any]) -> str:
    """Return the search for a plan of a trip, and the plan. Raises UserError if there is none."""
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


def _indent(depth: int) -> str:
    return " " * depth + "|- " if depth else ""


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
    """Return a whole plan that begins with `plan` and goes on at a day, None if there is none."""
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
        if (complete := _arranged(cities, option["end_day"], [*plan, option], rest, fixed, flights, lines)) is not None:
            return complete
    lines.append(f"{inner}Fail to arrange any option on day {day} in the current arrangement. Drop this branch.")
    return None


def _checks(option: Stop, plan: Sequence[Stop], fixed: Stop | None, flights: set[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines about a city that is tried next; the last line says whether it is arranged."""
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
    if fixed is None:
        yield f"{check}None."
        yield "No following fixed schedules. This arrangement is compatible."
    else:
        name, arrival = fixed["city"], fixed["start_day"]
        yield f"{check}{name} (Day {arrival} - {fixed['end_day']})."
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
