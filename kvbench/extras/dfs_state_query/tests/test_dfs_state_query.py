"""DFS state queries against the generator, prompt and evaluation of its authors (`scripts/golden_tasks.py`)."""

import json
from typing import Any

import pytest

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.extras.dfs_state_query.dfs_state_query import is_right, parsed, state
from kvbench.tasks.task import Sample
from scripts.golden_tasks import NODE, STACK, VISITED, sha256
from tests.tasks.versions import GOLDEN

OFFICIAL = json.loads((GOLDEN / "prompts" / "dfs_state_query.json").read_text("utf-8"))
RIGHT = {"current_node": NODE, "stack": STACK, "visited_nodes": VISITED}


def samples(*indices: int, **fields: Any) -> list[Sample]:
    task: Any = task_of("dfs_state_query", None, **fields)
    return list(task.generate(len, indices or range(task.samples)))


@pytest.mark.parametrize(("seed", "number", "least", "most", "first", "last", "digest"), OFFICIAL["queries"])
def test_queries_are_those_of_the_official_generator(
    seed: int, number: int, least: int, most: int, first: int, last: int, digest: str
) -> None:
    bounds = {"min_nodes": least, "max_nodes": most, "min_steps": first, "max_steps": last}
    asked = samples(seed=seed, queries=number, samples=1000, **bounds)
    assert len(asked) == number and [sample.id for sample in asked] == [*range(number)]
    assert sha256([sample.prompt + sample.references[0] for sample in asked]) == digest
    assert all(sample.context.endswith("]]\n") for sample in asked)
    steps = range(first, last + 1)
    assert all(f"After executing {step} DFS" in sample.question for step, sample in zip(steps, asked, strict=False))


@pytest.mark.parametrize(("answer", "right"), OFFICIAL["answers"])
def test_an_answer_is_right_where_the_evaluation_says_so(answer: str, right: bool) -> None:
    assert is_right(parsed(answer), RIGHT) == right


@pytest.mark.parametrize("answer", ["5", "[1]", "null", '{"current_node": 1, "stack": [0, 1], "visited_nodes": 3}'])
def test_an_answer_that_the_evaluation_cannot_rate_is_wrong(answer: str) -> None:
    assert not is_right(parsed(answer), RIGHT)
    assert not is_right({**RIGHT, "visited_nodes": [[0], [1]]}, RIGHT)


def test_a_search_goes_to_the_smallest_neighbor_and_back() -> None:
    edges = [(0, 2), (1, 2), (1, 3), (0, 4)]
    nodes = [state(edges, steps)["current_node"] for steps in range(10)]
    assert nodes == [0, 2, 1, 3, 1, 2, 0, 4, 0, None]
    assert state(edges, 3) == {"current_node": 3, "stack": [0, 2, 1, 3], "visited_nodes": [0, 1, 2, 3]}


def test_a_sample_does_not_depend_on_the_others() -> None:
    assert samples(41, 3)[0] == samples(3)[0] and samples(samples=5) == samples(samples=9)[:5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_nodes": 4}, r"task\.min_nodes=4 of dfs_state_query: allowed: more than 4"),
        ({"max_nodes": 9}, r"task\.max_nodes=9 of dfs_state_query: allowed: task\.min_nodes=10 or more"),
        ({"max_steps": 60}, r"a search of 30 nodes is over after 59: use fewer, or more task\.max_nodes"),
        ({"min_steps": 0}, r"task\.min_steps=0"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        samples(**settings)
