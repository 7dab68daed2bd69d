"""The cells of a sweep from composed trees: what several of them share is resolved, checked and built once.

Trees of one sweep share the branches in which they agree, see `compose.combinations`. A part is built anew where its
branch is another one, or another value stands where an interpolation of the branch leads.
"""

import re
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf

from kvbench.cache.quantized import Store, packing_of
from kvbench.config.compose import Tree
from kvbench.config.settings import Results, as_number, as_schedule, build, label, resolved, results_of, validated
from kvbench.eviction.budget import parse_budget
from kvbench.run.plan import Cell
from kvbench.support.plugins import items

ROOT = re.compile(r"\$\{([A-Za-z_]\w*)")
"""The first name of an interpolation."""
RELATIVE = "${."
"""How one begins that may lead anywhere."""


class Cells:
    """Builds the cells of trees, and remembers the parts of those it has built."""

    def __init__(self) -> None:
        self._parts: dict[tuple[Any, ...], Any] = {}
        self._trees: list[Tree] = []  # keeps what parts are known by alive
        self._names: dict[tuple[Any, ...], frozenset[str]] = {}

    def cell(self, tree: Tree) -> Cell:
        """The cell of a tree. Raises ValueError, in one line, for the first value that is not legal."""
        whole = _Once(tree)
        seed = self._part(whole, ("seed",), lambda new: validated(int, "seed", new["seed"]))  # others take it over
        policy = self._part(whole, ("policy",), lambda new: build("policy", new["policy"]))
        score = self._part(whole, ("score",), lambda new: build("score", new["score"]))
        cuts, scores = "budget" in policy.takes, "score" in policy.takes
        store: Store = self._part(whole, ("store",), lambda new: validated(Store, "store", new["store"]))
        packed = f" store={store}" if packing_of(store) else ""
        return Cell(
            model=self._part(whole, ("model",), lambda new: build("model", new["model"])),
            task=self._part(whole, ("task",), lambda new: build("task", new["task"])),
            policy=policy,
            score=score,
            budget=self._part(
                whole, ("budget",), lambda new: parse_budget(as_number(new["budget"]) if cuts else "1.0"), cuts
            ),
            schedule=self._part(whole, ("schedule",), lambda new: as_schedule(new["schedule"], policy), cuts),
            seed=seed,
            policy_label=self._label(whole, "policy", policy) + packed,
            score_label=self._label(whole, "score", score) if scores else None,
            store=store,
        )

    def results(self, tree: Tree) -> Results:
        """Where rows of a tree go."""
        return self._part(_Once(tree), ("results",), lambda new: results_of(new["results"]))

    def _label(self, whole: "_Once", group: str, built: Any) -> str:
        """What rows call a policy or score: it depends on its file too, whose interpolations lead elsewhere."""
        known = ("file", group, built.name)
        if known not in self._names:
            text = items(group)[built.name].path.read_text("utf-8")
            self._names[known] = frozenset(whole.tree) if RELATIVE in text else frozenset(ROOT.findall(text))
        roots = (group, *sorted(self._names[known] & set(whole.tree)))
        return self._part(whole, roots, lambda new: label(group, built, new), "label")

    def _part(self, whole: "_Once", roots: tuple[str, ...], make: Callable[[Tree], Any], *also: Any) -> Any:
        """What `make` makes of the resolved tree, which depends on these roots and on `also`."""
        key = (roots, also, *(_identity(whole.tree[name]) for name in sorted(self._reached(whole.tree, roots))))
        if key not in self._parts:
            plain = all(self._is_plain(whole.tree, name) for name in roots)
            self._parts[key] = make(whole.tree if plain else whole.resolved())
            self._trees.append(whole.tree)
        return self._parts[key]

    def _reached(self, tree: Tree, roots: tuple[str, ...]) -> set[str]:
        """These roots and all that their interpolations lead to."""
        found, left = set[str](), list(roots)
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left.extend(self._leads_to(tree, name))
        return found

    def _is_plain(self, tree: Tree, name: str) -> bool:
        """Whether a root is a value as it stands, so that nothing has to be resolved for it."""
        value = tree[name]
        return not isinstance(value, (dict, list)) and value != "???" and not self._leads_to(tree, name)

    def _leads_to(self, tree: Tree, name: str) -> frozenset[str]:
        value = tree[name]
        if not isinstance(value, (dict, list, str)):
            return frozenset()
        known = _identity(value)
        if known not in self._names:
            text = str(value)
            self._names[known] = frozenset(tree) if RELATIVE in text else frozenset(ROOT.findall(text)) & set(tree)
            self._trees.append(tree)
        return self._names[known]


class _Once:
    """A tree, resolved the first time that somebody asks."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._resolved: Tree | None = None

    def resolved(self) -> Tree:
        if self._resolved is None:
            self._resolved = resolved(OmegaConf.create(self.tree))
        return self._resolved


def _identity(value: Any) -> tuple[Any, ...]:
    """What tells a branch or a value from others: branches by what they are, not by what they hold."""
    return (id(value),) if isinstance(value, (dict, list)) else (type(value), value)
