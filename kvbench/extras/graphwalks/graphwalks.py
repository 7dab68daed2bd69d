"""Walks through a directed graph given as a list of edges, in any length. https://hf.co/datasets/openai/graphwalks

    The graph has the following edges:
    cfcd208495 -> c4ca4238a0
    cfcd208495 -> c81e728d9d
    c4ca4238a0 -> c81e728d9d
    ...
    Operation:
    Find the parents of node c81e728d9d.                Final Answer: [cfcd208495, c4ca4238a0]

The generator is not public. Its rows show what is drawn here: node n has the first ten digits of the MD5 of n as its
name, every node has as many edges, each to any node, and edges stand in the order of their first node.
"""

import hashlib
import random
import re
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvbench.support.errors import UserError
from kvbench.tasks.task import Sample, Task, TokenCounter, require_positive

INTRODUCTION = """You will be given a graph as a list of directed edges. All nodes are at least degree 1. You will \
also get a description of an operation to perform on the graph.
Your job is to execute the operation on the graph and return the set of nodes that the operation results in. If asked \
for a breadth-first search (BFS), only return the nodes whose distance from the starting node is exactly that depth, \
do not return nodes that are reached earlier, nor the starting node. If asked for the parents of a node, only return \
the nodes that have an edge leading to the given node, do not return the given node itself.

Here is an example:
<begin example>

The graph has the following edges:
uvwx -> alke
abcd -> uvwx
abcd -> efgh
efgh -> uvwx

Example 1:
Operation:
Perform a BFS from node abcd with depth 1.
Final Answer: [uvwx, efgh]

Example 2:
Operation:
Perform a BFS from node alke with depth 1.
Final Answer: []

Example 3:
Operation:
Find the parents of node uvwx.
Final Answer: [abcd, efgh]

Example 4:
Operation:
Find the parents of node abcd.
Final Answer: []

<end example>
Here is the graph to operate on:
The graph has the following edges:
"""
OPERATION = """

Operation:
{operation}

You should immediately return the set of nodes that the operation results in, with no additional text. Return your \
final answer as a list of nodes in the very last line of your response. For example, if the operation returns the set \
of nodes [node1, node2, node3], your response should be:
Final Answer: [node1, node2, node3]
If the operation returns the empty set, your response should be:
Final Answer: []
"""
DIGITS = 10
"""Of the name of a node."""
Edge = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class GraphWalks(Task):
    """A graph with as many nodes as `context_length` has room for, and one operation on it.

    - Protocol: the card of openai/graphwalks: an instruction with four worked operations, the edges, one operation, and
      the form of the answer. Graphs are drawn with `seed` and the number of the sample. `task.context_length` counts
      the prompt, the tokens of the model's chat template and the new tokens.
    - Split: after the last edge.
    - Source: generated here, as the authors' generator is not public; no row equals one of theirs. Their 1,150 rows are
      at openai/graphwalks.
    - Metric: F1 of the nodes in the last line, `Final Answer: [...]`, against the right ones; with `task.exact=true`,
      whether both sets are equal. An answer without this line scores 0.
    - Traps: the list shows every node in one place by its edges, and in any place as a target: bfs reads on from place
      to place, parents needs the whole list. An answer may be the empty set, for which an empty answer is right.
    - Differences: the sentence about the depth of a search is written here, after the correction of 2026-02-27, which
      rules out nodes that are reached earlier. The code on the card leaves `Final Answer: [` in the name of the first
      node and scores 1 where no node is right; here names stand between the brackets, and 1 is for equal sets.
    """

    name: str
    context_length: int = 2048
    degree: int = 2
    exact: bool = False
    samples: int = 50
    seed: int = 42
    max_new_tokens: int
    version = "graphwalks.1"
    left_out = ("samples", "repeats")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "samples", "max_new_tokens", "context_length", "degree")

    @property
    def metric(self) -> str:
        return "graphwalks_exact" if self.exact else "graphwalks_f1"

    @abstractmethod
    def operation(self, node: str) -> str:
        """Return the sentence that asks about a node."""

    @abstractmethod
    def result(self, edges: Sequence[Edge], node: int) -> Iterable[int]:
        """Return the right nodes."""

    def score(self, prediction: str, sample: Sample) -> float:
        given, right = final_nodes(prediction), final_nodes(*sample.references)
        assert right is not None
        if given is None:
            return 0.0
        return float(given == right) if self.exact else f1(given, right)

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample]:
        if any(index < 0 for index in indices):
            raise UserError(f"sample indices start at 0, got {min(indices)}")
        for index in sorted(indices):
            yield self._largest(count_tokens, index)

    def _largest(self, tokens: TokenCounter, index: int) -> Sample:
        """Return the sample with as many nodes as fit."""
        template: int = getattr(tokens, "template", 0)

        def length(nodes: int) -> int:
            return tokens(self._sample(index, nodes).prompt) + self.max_new_tokens + template

        if (least := length(1)) > self.context_length:
            raise UserError(
                f"task.context_length={self.context_length} cannot hold {self.name}: one node with its edges, the "
                f"instruction and the answer have {least} tokens: use more, or fewer task.max_new_tokens"
            )
        nodes = 1
        while length(2 * nodes) <= self.context_length:
            nodes *= 2
        sizes = range(nodes, 2 * nodes)
        return self._sample(index, nodes + bisect_right(sizes, self.context_length, key=length) - 1)

    def _sample(self, index: int, nodes: int) -> Sample:
        draw = random.Random(f"graph {self.seed} {index}")
        asked = int(draw.random() * nodes)
        edges = [(node, int(draw.random() * nodes)) for node in range(nodes) for _ in range(self.degree)]
        lines = "\n".join(f"{name(one)} -> {name(other)}" for one, other in edges)
        question = OPERATION.format(operation=self.operation(name(asked)))
        answer = f"Final Answer: [{', '.join(map(name, self.result(edges, asked)))}]"
        return Sample(index, self.name, INTRODUCTION + lines, question, "", (answer,), self.max_new_tokens)


@dataclass(frozen=True, kw_only=True)
class Bfs(GraphWalks):
    """Asks for the nodes at a distance of `depth` edges."""

    depth: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "depth")

    def operation(self, node: str) -> str:
        return f"Perform a BFS from node {node} with depth {self.depth}."

    def result(self, edges: Sequence[Edge], node: int) -> list[int]:
        return at_depth(edges, node, self.depth)


@dataclass(frozen=True, kw_only=True)
class Parents(GraphWalks):
    """Asks for the nodes with an edge to a node."""

    def operation(self, node: str) -> str:
        return f"Find the parents of node {node}."

    def result(self, edges: Sequence[Edge], node: int) -> list[int]:
        return parents(edges, node)


def name(node: int) -> str:
    """Return the name of a node: the first digits of the MD5 of its number."""
    return hashlib.md5(str(node).encode(), usedforsecurity=False).hexdigest()[:DIGITS]


def at_depth(edges: Sequence[Edge], start: int, depth: int) -> list[int]:
    """Nodes whose shortest way from `start` has `depth` edges, in the order in which they are found."""
    targets: dict[int, list[int]] = {}
    for one, other in edges:
        targets.setdefault(one, []).append(other)
    found, frontier = {start}, [start]
    for _ in range(depth):
        reached = dict.fromkeys(other for node in frontier for other in targets.get(node, ()))
        frontier = [node for node in reached if node not in found]
        found.update(frontier)
    return frontier


def parents(edges: Sequence[Edge], node: int) -> list[int]:
    """Nodes with an edge to `node`, which is none of them itself."""
    return [*dict.fromkeys(one for one, other in edges if other == node != one)]


def final_nodes(response: str) -> set[str] | None:
    """Names in the list of the last line; None without such a list."""
    found = re.search(r"Final Answer: ?\[(.*)\]", response.split("\n")[-1])
    return found and {node.strip() for node in found[1].split(",") if node.strip()}


def f1(given: Collection[str], right: Collection[str]) -> float:
    """Return the F1 of two sets in 0..1; 1 if both are empty."""
    return 2 * len({*given} & {*right}) / (len(given) + len(right)) if given or right else 1.0
