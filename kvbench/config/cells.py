"""The cells of a sweep from composed trees: what several of them share is checked and built once."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from kvbench.config.compose import ARGUMENTS, MISSING, Tree, combinations, load_entry, resolved
from kvbench.config.overrides import Override, format_value, parse
from kvbench.config.protocol import protocols
from kvbench.config.settings import build, label, validated
from kvbench.eviction.budget import Budget, ByteBudget, TokenBudget, parse_budget, parse_bytes
from kvbench.eviction.schedule import Schedule
from kvbench.records import KeptDetail
from kvbench.records.labels import PAPER
from kvbench.run.plan import Cell
from kvbench.support.annotations import Help
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.facts import check
from kvbench.support.plugins import groups, held_groups
from kvbench.tasks.files import NoData, command, folder

if TYPE_CHECKING:
    from kvbench.eviction.policy import Layout, Policy
    from kvbench.models.decode.holder import Holder
    from kvbench.models.loading.spec import ModelSpec

OF_EVICTION = ("policy", "score", *held_groups(), "budget", "schedule", "protocol")
"""Settings of cells that evict here."""
Reference = Literal["full", "none"]
"""What a sweep holds its cells against: the full cache, or nothing."""


@dataclass(frozen=True)
class Data:
    """Where the files of tasks and models are."""

    root: Annotated[
        str | None,
        Help("the folder of longbench/, pg19/ ...; null: $KVBENCH_DATA, else $KVBENCH_HOME/data, else ./data"),
    ] = None
    verify: Annotated[
        bool, Help("false: read files that differ from kvbench's lock or from their download; rows say so")
    ] = True


@dataclass(frozen=True)
class Results:
    """Where rows go, and what is written beside them about what their cells kept.

    lease_seconds: a process without a heartbeat for so long has stopped, and others take over its work.
    """

    dir: Annotated[str, Help("the folder of the rows; the same command and folder resume")] = "results/runs"
    kept: Annotated[
        KeptDetail, Help("what is recorded of the kept KV pairs: lengths (of each head), positions, or none")
    ] = "none"
    lease_seconds: Annotated[
        float,
        Help(
            "a process without a heartbeat for so long counts as stopped; use one value for all processes of a folder"
        ),
    ] = 180

    def __post_init__(self) -> None:
        if not 1 <= self.lease_seconds <= 10**6:
            raise UserError(f"results.lease_seconds={self.lease_seconds}: allowed: 1 to 1000000 seconds, such as 180")


@dataclass(frozen=True)
class RunSettings:
    """Each can be set on a command line by its name; `conf/run.yaml` adds the groups."""

    budget: Annotated[
        Any,
        Help(
            "what is kept, protected tokens included: a fraction of the prompt (0.1), KV pairs per head (1024), bytes "
            "(600KiB), or all pairs from a score on (threshold:-4)"
        ),
    ] = 0.1
    protocol: Annotated[
        str,
        Help(
            "paper: as each policy's file says; common: window 16, recent 16, max pool 7 for all policies that have "
            "them"
        ),
    ] = "paper"
    reference: Annotated[
        Reference,
        Help(
            "full: also the cell that evicts nothing, to hold the others against; none: only the cells that are named"
        ),
    ] = "full"
    seed: Annotated[int, Help("of prompts and of random scores")] = 42
    schedule: Schedule = field(default_factory=Schedule)
    data: Data = field(default_factory=Data)
    results: Results = field(default_factory=Results)


class Cells:
    """Builds the cells of trees, and remembers their parts by the text of all that they are made of.

    Cells with equal parts share them, which makes their hashes cheap too. token_bytes: the bytes that a token takes in
    the layers that are evicted from, of a model and a layout; by default `kvbench.run.memory.token_bytes`.
    """

    def __init__(self, token_bytes: "Callable[[ModelSpec, Layout], int] | None" = None) -> None:
        self._parts: dict[tuple[Any, ...], Any] = {}
        self._token_bytes = token_bytes

    def cell(self, tree: Tree) -> Cell:
        """Return the cell of a tree. Raises UserError for the first value that is not allowed."""
        tree = resolved(tree)
        self._once(_check_data, tree["data"])
        self._once(validated, Reference, "reference", tree["reference"])
        seed = self._once(validated, int, "seed", tree["seed"])
        model, task = (self._once(build, group, tree[group]) for group in ("model", "task"))
        if own := own_part(tree):
            return self._once(build, own, tree[own]).cell(model, task, seed)
        policy = self._once(build, "policy", tree["policy"])
        score = self._once(build, "score", tree["score"])
        built = {group: self._once(build, group, tree[group]) for group in held_groups()}
        named = {group: holder for group, holder in built.items() if not holder.idle}
        holding = [holder for holder in (model.holder, *named.values()) if holder is not None]
        check(claim for holder in holding for claim in holder.claims())
        holder = next(iter(holding), None)
        evicts = "budget" in policy.accepts  # a policy that keeps everything never evicts again
        protocol = self._once(_protocol, tree["policy"], tree["protocol"])
        held = "".join(f" {self._label(group, tree)}" for group in named)
        budget: Budget | ByteBudget = self._once(_budget, tree["budget"] if evicts else "1.0")
        budget = self._counted(budget, model, policy, holder) if isinstance(budget, ByteBudget) else budget
        return Cell(
            model=model,
            task=task,
            policy=policy,
            score=score.of_budget(TokenBudget(budget.pairs) if isinstance(budget, TokenBudget) else budget),
            budget=budget,
            schedule=self._once(_schedule, tree["schedule"], evicts),
            seed=seed,
            policy_label=self._label("policy", tree, protocol) + held,
            score_label=self._label("score", tree) if "score" in policy.accepts else None,
            holder=holder,
            protocol=protocol,
        )

    def results(self, tree: Tree) -> Results:
        """Return where rows of a tree go. Raises UserError for what is no folder and no detail."""
        return self._once(_results, resolved(tree, "results"))

    def _counted(
        self, budget: ByteBudget, model: "ModelSpec", policy: "Policy", holder: "Holder | None"
    ) -> TokenBudget:
        """Return a budget in bytes as KV pairs of a model. Raises UserError for less than one, and for quantized
        pairs.
        """
        from kvbench.run.memory import token_bytes

        check((*budget.claims(), *(holder.claims() if holder else ()), *policy.claims()))
        return budget.tokens((self._token_bytes or token_bytes)(model, policy.layout))

    def _label(self, group: str, tree: Tree, protocol: str = PAPER) -> str:
        """Return the name of a policy or score and what differs from its file, or from the protocol that it then
        names.
        """
        file = self._once(load_entry, group, tree[group]["name"], tree[group]["_target_"])
        if protocol != PAPER:
            file = protocols()[protocol].over(file)
        left_open = {
            key: tree[group][key] for key, value in file.items() if value == MISSING or f"{group}.{key}" == ARGUMENTS
        }
        usual = resolved({**tree, group: file | left_open}, group)
        text = self._once(label, group, tree[group], usual, left_open)
        name = tree[group]["name"]
        return text if protocol == PAPER else f"{name}@{protocol}{text.removeprefix(name)}"

    def _once(self, make: Callable[..., Any], *arguments: Any) -> Any:
        key = (make, repr(arguments))
        if key not in self._parts:
            self._parts[key] = make(*arguments)
        return self._parts[key]


def with_reference(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Yield the cells, and before the first of each task the full cache: the cell that `policy=full` names.

    Cells without a full cache get none: the full cache of a server is another server, or another start.
    """
    cells = list(cells)
    if not any(cell.has_full_cache for cell in cells):
        yield from cells
        return
    (tree,) = combinations(parse(["policy=full"]))
    full, added = Cells().cell(tree), set[str]()
    for cell in cells:
        if cell.has_full_cache:
            parts = {"model": cell.model, "holder": cell.model.holder, "task": cell.task, "seed": cell.seed}
            reference = replace(full, **parts, schedule=cell.schedule.once)
            if (name := repr(reference)) not in added:
                added.add(name)
                yield reference
        yield cell


def _protocol(policy: Tree, protocol: str) -> str:
    """Return the protocol of a policy: `paper` where another one changes nothing that the policy's file says."""
    file = load_entry("policy", policy["name"], policy["_target_"])
    return protocol if protocols()[protocol].over(file) != file else PAPER


def own_part(tree: Tree) -> str | None:
    """Return the part that the file of a model brings beside the groups, such as how a server is asked; None for none.

    Such a part makes the cell, by its method `cell(model, task, seed)`: nothing is evicted here.
    """
    parts = (name for name, node in tree.items() if isinstance(node, dict) and "_target_" in node)
    return next((name for name in parts if name not in {*groups(), *held_groups()}), None)


def refuse_eviction(overrides: Iterable[Override], trees: Iterable[Tree]) -> None:
    """Raise UserError for settings of eviction where nothing is evicted here."""
    if own := next(filter(None, map(own_part, trees)), None):
        for override in overrides:
            if override.root in OF_EVICTION:
                raise UserError(
                    f"{override.text}: a model with settings {own}.* evicts by itself: name its method and budget by "
                    "them, and run other models in another command"
                )


def check_data(cells: Iterable[Cell]) -> None:
    """Raise MissingFile where a task of these cells lacks data: names all of them at once, and what can be done.

    A group such as `task=longbench` means all of its tasks: those that have data are named, not run instead.
    """
    tasks = {cell.task.name: cell.task for cell in cells}
    missing: dict[str, NoData] = {}
    for name, task in tasks.items():
        try:
            task.identity()
        except NoData as error:
            missing[name] = error
    if not missing:
        return
    if len(tasks) == 1:
        raise next(iter(missing.values()))
    families = {error.name.partition("/")[0]: error for error in reversed(missing.values())}
    able = [name for name in tasks if name not in missing]
    instead = f"; or run the {len(able)} that have data: task={','.join(able)}" if able else ""
    raise MissingFile(
        f"no data for {len(missing)} of {len(tasks)} tasks: {', '.join(missing)}; "
        f"{'; '.join(str(error) for error in reversed(families.values()))}{instead}"
    )


def check_unaltered(cells: Iterable[Cell], verify: bool, tell: Callable[[str], object]) -> None:
    """Raise MissingFile where a task reads files that differ from the lock or their download; without `verify`
    only tell.
    """
    for task in {cell.task.name: cell.task for cell in cells}.values():
        if differing := task.identity().get("data_altered"):
            root = getattr(task, "root", None)
            more = f" and {len(differing) - 1} more" if differing[1:] else ""
            family = differing[0].partition("/")[0]
            text = f"{folder(root) / differing[0]}{more} of {task.name} differs from what was locked or pulled"
            if verify:
                again = f"{command(root, family)} --replace fetches it again"
                raise MissingFile(f"{text}: {again}; data.verify=false reads it as it is")
            tell(f"warning: {text}: its rows say so, and count as another task's")


def _budget(value: Any) -> Budget | ByteBudget:
    is_number = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    budget = parse_bytes(value) or parse_budget(value if is_number else format_value(value))
    if (isinstance(budget, TokenBudget) and budget.pairs >= 2**63) or (
        isinstance(budget, ByteBudget) and budget.number >= 2**63
    ):
        raise UserError(
            f"budget={value}: allowed: a fraction of the prompt, or a number of KV pairs or bytes below 2^63"
        )
    return budget


def _check_data(node: Any) -> None:
    if not isinstance(node, dict) or set(node) != {"root", "verify"} or not isinstance(node["root"], str | None):
        raise UserError(f"data={format_value(node)}: allowed: data.root=FOLDER, such as data.root=/shared/data")
    validated(str | None, "data.root", node["root"])
    validated(bool, "data.verify", node["verify"])


def _schedule(node: Any, evicts: bool) -> Schedule:
    schedule = validated(Schedule, "schedule", node)
    return schedule if evicts else schedule.once


def _results(node: Any) -> Results:
    if not isinstance(node, dict):
        raise UserError(
            f"results={format_value(node)}: allowed: results.dir=FOLDER, results.kept=none|lengths|positions"
        )
    if not isinstance(node["dir"], str) or not node["dir"].strip():
        raise UserError(f"results.dir={format_value(node['dir'])}: allowed: a folder, such as results/runs")
    return validated(Results, "results", node)
