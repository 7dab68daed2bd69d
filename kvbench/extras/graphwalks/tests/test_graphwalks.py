"""GraphWalks: graphs as the published rows show them, operations against networkx, and the score."""

from typing import Any

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.extras.graphwalks.graphwalks import at_depth, f1, final_nodes, name, parents
from kvbench.tasks.task import Sample

EDGES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20)


def sample_of(task: str, index: int = 0, **fields: Any) -> tuple[Any, Sample]:
    graphwalks: Any = task_of(f"graphwalks/{task}", None, **fields)
    (sample,) = graphwalks.generate(len, [index])
    return graphwalks, sample


def edges_of(sample: Sample) -> list[tuple[str, str]]:
    lines = sample.context.rpartition("The graph has the following edges:\n")[2].split("\n")
    return [(one, other) for one, other in (line.split(" -> ") for line in lines)]


@pytest.mark.parametrize(("node", "digits"), [(0, "cfcd208495"), (1, "c4ca4238a0"), (10, "d3d9446802")])
def test_nodes_have_the_names_of_the_published_rows(node: int, digits: str) -> None:
    assert name(node) == digits


@given(EDGES, st.integers(0, 6), st.integers(1, 4))
def test_operations_are_those_of_networkx(edges: list[tuple[int, int]], node: int, depth: int) -> None:
    graph = networkx.DiGraph(edges)
    graph.add_node(node)
    assert {*at_depth(edges, node, depth)} == networkx.descendants_at_distance(graph, node, depth)
    assert sorted(parents(edges, node)) == sorted({*graph.predecessors(node)} - {node})


@pytest.mark.parametrize("task", ["bfs", "parents"])
def test_a_prompt_is_as_long_as_fits_and_its_reference_is_right(task: str) -> None:
    graphwalks, sample = sample_of(task, index=3, context_length=8000, degree=3, max_new_tokens=100)
    edges = edges_of(sample)
    # characters are tokens here; a node more has three edges of 25
    assert 8000 - 3 * 25 < len(sample.prompt) + 100 <= 8000
    assert [one for one, _ in edges] == [name(number) for number in range(len(edges) // 3) for _ in range(3)]
    asked = sample.question.split(" node ")[1][:10]
    graph = networkx.DiGraph(edges)
    right = {*graph.predecessors(asked)} if task == "parents" else networkx.descendants_at_distance(graph, asked, 2)
    assert final_nodes(*sample.references) == right - {asked}
    assert graphwalks.score(*sample.references, sample) == 1.0
    assert sample_of(task, index=3, context_length=8000, degree=3, max_new_tokens=100)[1] == sample
    assert sample_of(task, index=4, context_length=8000, degree=3, max_new_tokens=100)[1].context != sample.context


@pytest.mark.parametrize(
    ("response", "nodes"),
    [
        ("Final Answer: [a, b]", {"a", "b"}),
        ("So a.\nFinal Answer:[a,b ,a]", {"a", "b"}),
        ("Final Answer: []", set()),
        ("the Final Answer: [ a ] it is", {"a"}),
        ("Final Answer: [a]\n", None),
        ("Final Answer: [a]\nDone", None),
        ("Final Answer: a", None),
        ("[a, b]", None),
    ],
)
def test_nodes_stand_in_the_last_line(response: str, nodes: set[str] | None) -> None:
    assert final_nodes(response) == nodes


def test_the_score_is_f1_or_whether_the_sets_are_equal() -> None:
    assert [f1("ab", "ab"), f1("ab", "bc"), f1("abcd", "a"), f1("", "a"), f1("a", ""), f1("", "")] == [
        *(1.0, 0.5, 0.4, 0.0, 0.0, 1.0)
    ]
    sample = Sample(0, "graphwalks/bfs", "", "", "", ("Final Answer: [a, b]",), 9)
    for exact, metric, scores in (
        (False, "graphwalks_f1", [1.0, 2 / 3, 0.0]),
        (True, "graphwalks_exact", [1.0, 0.0, 0.0]),
    ):
        graphwalks: Any = task_of("graphwalks/bfs", None, exact=exact)
        answers = ("Final Answer: [b, a]", "Final Answer: [a]", "a, b")
        assert graphwalks.metric == metric and [graphwalks.score(answer, sample) for answer in answers] == scores


def test_a_length_without_room_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"task\.context_length=1000 cannot hold graphwalks/bfs: one node .* have 1917"
    ):
        sample_of("bfs", context_length=1000)
