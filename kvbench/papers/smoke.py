"""An item of a paper made small: its own settings with shorter contexts, smaller budgets and fewer of each, for the
embedded model on a laptop. What such a run says is that the page can be made.

Sizes are put in the place of the item's by rank, so that a table keeps several columns, and tables that share cells at
full size share them here.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from kvbench.config.compose import with_members
from kvbench.config.overrides import Override, parse
from kvbench.run.plan import Cell
from kvbench.tasks.likelihood import Likelihood

ALWAYS = ("model=reference", "task.samples=1", "task.max_new_tokens=8", "task.buffer=60", "task.repeats=2")
"""What every item becomes. `task.buffer` are tokens that a needle's text leaves to question and answer."""
SIZES = {
    "task.max_prompt_tokens": ("320",),
    "task.batch": ("1", "2"),
    "task.new_tokens": ("8",),
    "budget": ("48", "64", "96", "128"),
    "score.chunk": ("32", "64", "128", "256"),
}
"""Numbers by rank: the smallest of an item becomes the first; an item that has more values than these loses some."""
LENGTHS = {
    "needle": ("400", "512", "640"),
    "efficiency": ("128", "256", "512"),
    "pg19": ("256",),
    "ruler": ("384", "512", "640"),
    "ruler/cwe": ("1024",),
    "ruler/vt": ("1024",),
}
"""Lengths of contexts by rank, for each task or benchmark; the fewest tokens that its prompts can have decide."""
BESIDE = {
    "booksum": ("task.context_length=256",),
    "scbench": ("task.truncation=left", "task.max_prompt_tokens=320"),
}
"""What makes prompts of a benchmark short whose items do not say how long they are."""
MOST = {"policy.window": 32, "policy.recent": 32, "policy.sink": 4}
"""Protected tokens and rows that vote: no more than these."""
ENDS = {"task.depth": 3, "budget": 3}
"""Shares: so many of them, the first and the last among them."""
PROMPTS = ("task=ruler/niah_single_1", "task.context_length=384")
"""In the place of prompts that are not there: a needle in noise, which needs no data."""
TEXTS = ("task=pg19", "task.context_length=192", "schedule.prefill_block=null", "schedule.decode_every=1")
"""In the place of texts that are not there, books."""


def smoke(own: Sequence[Override], words: Sequence[Override]) -> list[Override]:
    """What makes a run of these settings small, without what `words` of the command line say themselves."""
    named = {one.key for one in words}
    tasks = with_members([one for one in (words if "task" in named else own) if one.key == "task"])
    names = [value.text for one in tasks for value in one.values]
    known = [known for name in names for known in _lengths(name)]
    lengths = min(known, key=len, default=())
    beside = (BESIDE.get(name.partition("/")[0], ()) for name in names)
    small = [*ALWAYS, *chain(*beside), *(text for one in own if (text := _smaller(one, lengths)))]
    return [one for one in parse(small) if one.key not in named]


def stand_ins(cells: Iterable[Cell]) -> list[Override]:
    """Settings that take the place of the tasks of these cells, whose data is not there."""
    texts = all(isinstance(cell.task, Likelihood) for cell in cells)
    return parse(TEXTS if texts else PROMPTS)


def _lengths(task: str) -> Iterator[Sequence[str]]:
    """Those of a task, or of its benchmark."""
    found = LENGTHS.get(task) or LENGTHS.get(task.partition("/")[0])
    if found is not None:
        yield found


def _smaller(one: Override, lengths: Sequence[str]) -> str | None:
    """The setting with smaller values; None where it stays as it is."""
    if one.key == "task.context_length" and lengths:
        return _written(one.key, lengths[: len(one.values)])
    values = [value.text for value in one.values]
    counts = all(value.isdecimal() for value in values)
    if one.key in SIZES and counts:
        smaller = zip(sorted(values, key=int), SIZES[one.key], strict=False)
        return _written(one.key, (min(pair, key=int) for pair in smaller))
    if one.key in ENDS:
        return _written(one.key, _spread(values, ENDS[one.key]))
    if one.key in MOST and counts:
        return _written(one.key, (str(min(int(value), MOST[one.key])) for value in values))
    return None


def _spread(values: Sequence[str], most: int) -> list[str]:
    """At most so many, evenly spread."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


def _written(key: str, values: Iterable[str]) -> str:
    return f"{key}={','.join(dict.fromkeys(values))}"
