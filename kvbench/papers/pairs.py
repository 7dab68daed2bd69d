"""Pairs of policies compared task by task, as LAVa's Figure 5 counts them: who has the higher number, and how often."""

from collections.abc import Mapping, Sequence

from kvbench.papers.item import Item

At = tuple[str, ...]


def counted(item: Item, by_task: Mapping[str, Mapping[At, float]]) -> dict[At, tuple[int, int]]:
    """Tasks that each of a pair wins and tasks that both have, by place; a tie is won by neither.

    Places are partners where one is the other but for its policy and score.
    """
    policy = item.keys.index("policy")
    places = list(dict.fromkeys(at for found in by_task.values() for at in found))
    found: dict[At, tuple[int, int]] = {}
    for pair in item.layout.wins:
        for at in places:
            if at[policy] not in pair:
                continue
            other = pair[1 - pair.index(at[policy])]
            partners = [one for one in places if one[policy] == other and _rest(item, one) == _rest(item, at)]
            both = [(numbers[at], numbers[one]) for one in partners for numbers in _with(by_task, at, one)]
            if both:
                found[at] = sum(mine > theirs for mine, theirs in both), len(both)
    return found


def _with(by_task: Mapping[str, Mapping[At, float]], *places: At) -> Sequence[Mapping[At, float]]:
    return [numbers for numbers in by_task.values() if all(place in numbers for place in places)]


def _rest(item: Item, at: At) -> At:
    return tuple(value for key, value in zip(item.keys, at, strict=True) if key not in ("policy", "score"))
