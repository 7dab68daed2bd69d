"""The state of a depth-first search after k steps, which tests what an answer remembers of itself.

https://github.com/WeianMao/triattention at c3744ee, triattention/benchmarks/dfs

    Nodes: [0, 1, 2, 3]
    Edges: [[0, 2], [1, 2], [1, 3]]
    after 3 steps: {"current_node": 3, "stack": [0, 2, 1, 3], "visited_nodes": [0, 1, 2, 3]}

Graphs follow generate_dfs_state_dataset.py: trees and small worlds of networkx, as many queries for each
number of steps. prompt_utils.py has the prompt. `is_fully_correct` of eval_dfs_state_query_raw.py rates an answer.
"""

import json
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from kvbench.support.errors import UserError
from kvbench.tasks.task import Sample, Task, TokenCounter, require_positive, require_samples

GRAPH = """Given the following undirected graph:
    Nodes: {nodes}
    Edges: {edges}
"""
QUERY = """
    Starting from node 0, perform a Depth-First Search (DFS).

    IMPORTANT STEP DEFINITION:
    - Step 0: Before any movement, we are at the start node 0.
    - Step 1: The first step means we have already moved from the start node to its first chosen neighbor.
    So after N steps, you should simulate N actual DFS actions (moves or backtracks), not counting the initial position.

    DFS Rules:
    1. Always visit unvisited neighbors first (choose the smallest numbered neighbor)
    2. If all neighbors are visited, backtrack to the parent node
    3. The stack always stores the entire path from the start node to the current node

    Question: After executing {steps} DFS steps (starting from step 1 as the first move):
    1. What is the current node?
    2. What is the current DFS stack state (path from start to current node)?
    3. What are all the visited nodes?

    Please solve this step-by-step:
    1. First, analyze the graph structure and list neighbors for each node (sorted ascending)
    2. Then simulate the DFS action for EACH step from step 1 to step {steps}
    3. At each step clearly update: current node, stack, visited set
    4. Finally, provide the result AFTER completing step {steps}

    Format your response as follows:
    - Start with "Analysis:" and explain your reasoning step-by-step
    - End with "Answer:" followed by a JSON object (no extra text after JSON)

    Answer JSON format:
    {{
    "current_node": <node_number>,
    "stack": [<path_nodes_list>],
    "visited_nodes": [<visited_nodes_list_sorted>]
    }}"""
TRIES = 200
"""Graphs that are drawn for each query at most, until one takes that many steps."""
NEIGHBORS, REWIRED = 4, 0.1
"""Of a small world: neighbors of each node, and the share of edges that are moved."""
OBJECTS = (r"```json\s*(\{.*?\})\s*```", r"```\s*(\{.*?\})\s*```", r'(\{[^{}]*"current_node"[^{}]*\})', r"(\{.*\})")
"""Where an answer may hold its object, if it is not one itself."""


class Query(NamedTuple):
    """A graph, given by its number of nodes and its edges, and the steps after which it is asked for."""

    nodes: int
    edges: tuple[tuple[int, int], ...]
    steps: int


@dataclass(frozen=True, kw_only=True)
class DFSStateQuery(Task):
    """Queries about random graphs. The same number of them for each number of steps from `min_steps` to `max_steps`.

    - Protocol: `generate_dfs_state_query.sh` and `prompt_utils.py`: trees and small worlds of `task.min_nodes` to
      `task.max_nodes` nodes, `task.queries` of them drawn in sequence with `seed`. The defaults with `seed=42` are its
      `dfs_state_query_300.json`, graph for graph; other `task.queries` are other graphs.
    - Split: after the graph.
    - Source: generated; graphs as networkx draws them.
    - Metric: `is_fully_correct` of `eval_dfs_state_query_raw.py`: 1 if the JSON object of the answer names the right
      node, the right stack and the right visited nodes, else 0. Sample i of the defaults asks for i mod 30 + 1 steps;
      published means are by bins of steps.
    - Traps: the answer simulates the search, so that methods which evict while they answer are the ones tested: use
      `schedule.decode_every`. Three of the 300 searches are over: their node is null and their stack is empty.
    - Differences: samples go through the numbers of steps first. An answer whose object is no object, or has lists that
      are no lists, scores 0; there the evaluation ends with an error.
    """

    name: str
    queries: int = 300
    min_nodes: int = 10
    max_nodes: int = 30
    min_steps: int = 1
    max_steps: int = 30
    samples: int = 30
    seed: int = 42
    max_new_tokens: int = 32768
    version = "dfs_state_query.1"
    metric = "dfs_state_match"
    context_length = None  # graphs have their own lengths
    left_out = ("samples", "repeats")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "samples", "max_new_tokens", "queries", "min_steps")
        if self.min_nodes <= NEIGHBORS:
            raise UserError(f"task.min_nodes={self.min_nodes} of {self.name}: allowed: more than {NEIGHBORS}")
        for thing in ("nodes", "steps"):
            least, most = getattr(self, f"min_{thing}"), getattr(self, f"max_{thing}")
            if least > most:
                raise UserError(f"task.max_{thing}={most} of {self.name}: allowed: task.min_{thing}={least} or more")
        if self.max_steps >= 2 * self.max_nodes:
            raise UserError(
                f"task.max_steps={self.max_steps} of {self.name}: a search of {self.max_nodes} nodes is over after "
                f"{2 * self.max_nodes - 1}: use fewer, or more task.max_nodes"
            )
        object.__setattr__(self, "samples", min(self.samples, self.queries))

    def score(self, prediction: str, sample: Sample) -> float:
        (reference,) = sample.references
        return float(is_right(parsed(prediction), json.loads(reference)))

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample]:
        require_samples(self, indices, self.queries)
        queries = drawn(
            self.seed, self.queries, self.min_nodes, self.max_nodes, range(self.min_steps, self.max_steps + 1)
        )
        for index in sorted(indices):
            nodes, edges, steps = queries[index]
            graph = GRAPH.format(nodes=list(range(nodes)), edges=[*map(list, edges)])
            answer = json.dumps(state(edges, steps))
            text = QUERY.format(steps=steps)
            yield Sample(index, self.name, graph, text, "", (answer,), self.max_new_tokens)


@lru_cache(maxsize=8)
def drawn(seed: int, number: int, least: int, most: int, steps: range) -> tuple[Query, ...]:
    """Return queries, one of each number of steps after the other. least, most: nodes of a graph.

    Raises UserError if graphs so small are over before.
    """
    draw, order = random.Random(seed), [*steps]
    draw.shuffle(order)
    at_least, more = divmod(number, len(order))
    queries = list[tuple[int, Query]]()
    for step in steps:
        wanted = at_least + (step in order[:more])
        found = 0
        for _ in range(TRIES * wanted):
            nodes, is_tree = draw.randint(least, most), draw.choice((True, False))
            edges = _edges(nodes, is_tree, draw)
            if steps_of(edges) >= step:
                queries.append((found, Query(nodes, edges, step)))
                found += 1
            if found == wanted:
                break
        if found < wanted:
            raise UserError(
                f"task.max_steps={steps[-1]}: {TRIES * wanted} graphs of {least} to {most} nodes had {found} with "
                f"{step} steps, {wanted} are asked for: use fewer, or more task.max_nodes"
            )
    return tuple(query for _, query in sorted(queries, key=lambda placed: placed[0]))


def _edges(nodes: int, is_tree: bool, draw: random.Random) -> tuple[tuple[int, int], ...]:
    """Edges of a random tree or small world, in the order of networkx."""
    import networkx

    if is_tree:
        graph = networkx.random_labeled_tree(nodes, seed=draw)
    else:
        graph = networkx.connected_watts_strogatz_graph(nodes, NEIGHBORS, REWIRED, seed=draw)
    return tuple(graph.edges())


def steps_of(edges: Sequence[tuple[int, int]]) -> int:
    """Return steps of a whole search, the last of which leaves the start: each node is entered and left once."""
    return 2 * len({node for edge in edges for node in edge}) - 1


def state(edges: Sequence[tuple[int, int]], steps: int) -> dict[str, Any]:
    """Node, stack and visited nodes after so many steps of a search from node 0."""
    neighbors: dict[int, set[int]] = {}
    for one, other in edges:
        neighbors.setdefault(one, set()).add(other)
        neighbors.setdefault(other, set()).add(one)
    stack, visited = [0], {0}
    for _ in range(steps):
        if unvisited := neighbors[stack[-1]] - visited:
            stack.append(min(unvisited))
            visited.add(stack[-1])
        else:
            stack.pop()
    return {"current_node": stack[-1] if stack else None, "stack": stack, "visited_nodes": sorted(visited)}


def parsed(answer: str) -> Any:
    """Return the JSON of an answer: all of it, a block of code, the first object with a current node, or the widest
    braces.
    """
    found = (match[1] for pattern in OBJECTS if (match := re.search(pattern, answer, re.DOTALL)))
    for text in (answer, *found):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            continue
    return None


def is_right(answer: Any, reference: Mapping[str, Any]) -> bool:
    """Return whether node and stack are equal, and the visited nodes as sets."""
    if not isinstance(answer, Mapping):
        return False
    visited = answer.get("visited_nodes", [])
    if not isinstance(visited, list) or any(isinstance(node, list | dict) for node in visited):
        return False
    return (
        answer.get("current_node") == reference["current_node"]
        and answer.get("stack", []) == reference["stack"]
        and set(visited) == set(reference["visited_nodes"])
    )
