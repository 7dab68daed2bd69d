"""One line, one experiment: whatever settings cells have, no report joins two that differ beside its axis."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.extras.board.ranking import told_apart
from kvbench.extras.board.submissions import LABELS, read_submissions
from kvbench.extras.view.history import names
from kvbench.extras.view.page import cells_data
from kvbench.records import Recorder, ResultsFolder, Row
from kvbench.records.manifest import write_manifest
from kvbench.report.charts import names_of
from kvbench.report.compare.beyond_chance import survivors
from kvbench.report.compare.paired_rows import SETTING, Side, pair
from kvbench.report.tables.footprint import footprints
from kvbench.report.tables.pivot import arrange
from kvbench.report.tables.summary import summaries
from kvbench.run.cell import Cell
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.work.planned import plan_sweep

WORDS = (
    *("model.dtype=bfloat16", "model.attention=eager", "model.kernels=triton", "model.max_length=4096"),
    *("policy=snapkv", "policy=tova", "policy.window=16", "policy.layout=query_heads", "policy.apply=d2o"),
    *("score=caote", "protocol=common", "store=int4", "reader=quest", "schedule.decode_every=16"),
    *("schedule.evict_after=context", "schedule.prefill_block=128", "seed=1", "task=ruler/vt"),
    *("task.max_new_tokens=24", "task.context_length=512", "task.era=2024", "task.num_keys=2", "task.temperature=0.5"),
)
"""Of all groups of settings; what does not go together is left out."""
DEFAULT = ("policy=snapkv", "score=attn")
METHOD = ("policy", "score", "budget", "schedule", "reader", "store")
"""Axes along which cells that were asked the same may differ."""


@cache
def cells_of(words: frozenset[str], budget: str) -> tuple[Cell, ...]:
    """The full cache and a policy; none if the words do not go together."""
    keys = {word.partition("=")[0] for word in words}
    usual = [word for word in DEFAULT if word.partition("=")[0] not in keys]
    try:
        sweep = plan_sweep(
            [*usual, *sorted(words), f"budget={budget}", "task.samples=4"], lambda text: None, quiet=True
        )
    except UserError:
        return ()
    return sweep.plan.cells


def rows_of(cell: Cell) -> list[Row]:
    """Four answers: right by the full cache, every other one by a policy."""
    is_full = cell.eviction.policy_label == "full"
    share = 1.0 if is_full else float(str(cell.budget))
    columns = {
        "cell": cell.id,
        "model": cell.model.label,
        "task": cell.task.name,
        "task_version": cell.task.version,
        "context_length": getattr(cell.task, "context_length", None),
        "policy": cell.eviction.policy_label,
        "score": cell.eviction.score_label,
        "budget": str(cell.budget),
        "variant": cell.method.columns["variant"],
        "layout": cell.policy.layout,
        "schedule": str(cell.schedule),
        "seed": cell.seed,
        "metric": cell.task.metric,
        "code": "c0de00000000",
    }
    sizes = {"prompt_tokens": 1000, "kept_tokens": 1000 * share, "kept_fraction": share, "new_tokens": 10}
    sizes |= {"cache_bytes": int(10**6 * share), "full_cache_bytes": 10**6, "peak_bytes": 10**6}
    values = [1.0 if is_full else float(sample % 2) for sample in range(4)]
    return [
        Row(sample=sample, value=value, prompt_sha256=f"{sample:064x}", **columns, **sizes)  # type: ignore[arg-type]
        for sample, value in enumerate(values)
    ]


def rest(description: Mapping[str, Any], *axes: str) -> str:
    """All that a cell is beside these settings."""
    leaves = {"plugins": {}} | {
        name: value
        for group, part in description.items()
        for name, value in (
            {f"{group}.{k}": v for k, v in part.items()} if isinstance(part, dict) else {group: part}
        ).items()
    }
    return repr(sorted((k, v) for k, v in leaves.items() if k not in axes and k.partition(".")[0] not in axes))


BUDGET = ("budget", "score.budget")


class Two:
    """Two commands in one folder, or each in its own, and what their cells are."""

    def __init__(self, commands: Iterable[Collection[Cell]]) -> None:
        self.commands = [list(cells) for cells in commands]
        self.cells = {cell.id: cell for cells in self.commands for cell in cells}
        self.rows = [row for cell in self.cells.values() for row in rows_of(cell)]
        self.describe: Callable[[str], dict[str, Any]] = lambda cell: self.cells[cell].description

    def write(self, folder: Path, cells: Iterable[Cell]) -> str:
        cells = {cell.id: cell for cell in cells}.values()
        with Recorder(folder) as recorder:
            for cell in cells:
                recorder.append(rows_of(cell))
        for cell in cells:
            ResultsFolder(folder).write_cell(cell.id, cell.description)
        write_manifest(ResultsFolder(folder), None)
        return str(folder)

    def are_one(self, cells: Iterable[str], *axes: str) -> bool:
        """Whether cells differ along no other axes."""
        return len({rest(self.describe(cell), *axes) for cell in cells}) == 1

    def side(self, name: str, *, full: bool, command: int | None = None) -> Side:
        ids = self.cells if command is None else {cell.id for cell in self.commands[command]}
        rows = [row for row in self.rows if (row.policy == "full") == full and row.cell in ids]
        return Side(name, rows, name, self.describe)


@st.composite
def two(draw: st.DrawFn) -> Two:
    words = st.frozensets(st.sampled_from(WORDS), max_size=2)
    first, second = draw(words), draw(words)
    return Two([cells_of(first, "0.1"), cells_of(second, draw(st.sampled_from(("0.1", "0.2"))))])


@settings(deadline=None, max_examples=25, report_multiple_bugs=False, suppress_health_check=[HealthCheck.too_slow])
@given(two())
def test_no_report_joins_what_differs_beside_its_axis(made: Two) -> None:
    if not all(made.commands):
        return
    lines, described = summaries(made.rows), made.describe
    for block in (block for cols in (["budget"], ["seed"]) for block in arrange(lines, cols=cols, describe=described)):
        axes = BUDGET if block.column_keys == ("budget",) else ("seed", "task.seed")
        assert all(made.are_one((cell.cell for cell in line.cells.values()), *axes) for line in block.lines)
    of_page = ("policy", "score", "variant", "layout", "schedule", "seed", "setting", "model", "task", "context_length")
    curves = grouped(cells_data(lines, described), lambda cell: tuple(cell[name] for name in of_page))
    assert all(made.are_one((cell["cell"] for cell in curve), *BUDGET) for curve in curves.values())
    named = names_of([lines], described)
    assert len({*named.values()}) == len(made.cells)
    marks = survivors(made.rows, lambda row: row.policy == "full", describe=described)
    assert all(made.are_one((cell, mark.baseline), *METHOD) for cell, mark in marks.items())
    assert {*marks} == {row.cell for row in made.rows if row.policy != "full"}
    for strict in (False, True):
        _check_pairs(made, strict)
    with TemporaryDirectory() as folder:
        both = made.write(Path(folder) / "both", made.cells.values())
        apart = [made.write(Path(folder) / f"{i}", cells) for i, cells in enumerate(made.commands)]
        _check_footprints(made, both)
        _check_board(made, both)
        of_history = grouped(made.cells, names(apart).__getitem__)
        assert all(made.are_one(cells, "plugins", "task.version") for cells in of_history.values())


def _check_pairs(made: Two, strict: bool) -> None:
    """Of the full cache and the policies, and of the two commands."""
    sides = [(made.side("full", full=True), made.side("policies", full=False))] * (not strict)
    sides += [(made.side("first", full=False, command=0), made.side("second", full=False, command=1))]
    for a, b in sides:
        try:
            pairing = pair(a, b, strict)
        except UserError as error:
            assert "ambiguous" in str(error) or "nothing to pair" in str(error) or "judged by" in str(error)
            continue
        differing = set()
        for match in pairing.matches:
            of_sides = [{pair_of_rows[i].cell for pair_of_rows in match.both} for i in (0, 1)]
            assert all(made.are_one(cells) for cells in of_sides if cells)
            if match.both:
                cells = [cell for of_side in of_sides for cell in of_side]
                assert not strict or made.are_one(
                    cells, *(part for part in made.describe(cells[0]) if part != "task"), "reader", "store", "plugins"
                )
                differing.add(rest_of_pair(made, cells, pairing.compared))
        assert len(differing) < 2 or any(SETTING in match.key for match in pairing.matches)


def rest_of_pair(made: Two, cells: Sequence[str], compared: Iterable[str]) -> str:
    """What differs between two cells beside what is compared, of what both describe."""
    a, b = (made.describe(cell) for cell in cells)
    flat_a, flat_b = (
        {(g, k): v for g, p in each.items() for k, v in (p.items() if isinstance(p, dict) else [("", p)])}
        for each in (a, b)
    )
    names = flat_a.keys() & flat_b.keys()
    skipped = {"policy"} if "policy" in compared else set()
    skipped |= {"score"} if "score" in compared else set()
    skipped |= {name for name in ("budget", "schedule", "seed", "model", "task") if name in compared}
    return repr(sorted((n, flat_a[n], flat_b[n]) for n in names if flat_a[n] != flat_b[n] and n[0] not in skipped))


def _check_footprints(made: Two, folder: str) -> None:
    made_lines = footprints(folder, lambda text: None, least=0.1)
    labels = {
        tuple(getattr(line, name) for name in (*LABELS, "model", "task", "context_length", "setting"))
        for line in made_lines
    }
    methods = {rest(made.describe(row.cell), *BUDGET) for row in made.rows if row.policy != "full"}
    assert len(labels) == len(made_lines) == len(methods)


def _check_board(made: Two, folder: str) -> None:
    rows, describe, *_ = read_submissions([folder], lambda text: None)
    rows = told_apart(rows, describe)
    for columns, axes in (
        (["model"], ("task", "seed", *METHOD)),
        (["model", "place"], METHOD),
        (["model", "place", *LABELS, "setting"], BUDGET),
    ):
        for _, members in rows.groupby(columns, dropna=False, observed=True):
            assert made.are_one({*members.cell}, *axes)
