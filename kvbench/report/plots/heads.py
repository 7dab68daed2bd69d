"""Kept sets for a picture: which cells have some, one panel a cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvbench.records import KeptSets, read_kept
from kvbench.report.plots.canvas import n_of, titles
from kvbench.report.plots.request import Request
from kvbench.report.plots.tradeoff import cells_of
from kvbench.report.tables.summary import Summary
from kvbench.report.tables.where import NothingSelected
from kvbench.support.errors import MissingFile, UserError


@dataclass(frozen=True)
class Panel:
    """The kept sets of one cell, ordered by sample, all of one shape."""

    cell: Summary
    title: str
    sets: tuple[KeptSets, ...]


def cut_panels(asked: Request, samples: Sequence[int] | None = None) -> tuple[str, list[Panel]]:
    """What the panels have in common, and one for every selected cell that evicts and has kept sets.

    Raises as `Request.cells` and `kvbench.records.read_kept` do, FileNotFoundError where the folder has no kept sets,
    NothingSelected where no set is left, ValueError for a cell whose sets differ in layers or heads.
    """
    blocks = asked.blocks()
    cells = {cell.cell: cell for cell in cells_of(blocks) if cell.policy != "full"}
    known: dict[str, list[KeptSets]] = {}
    if not list((asked.results / "kept").glob("*.jsonl")):
        fix = "record them with `kvbench run ... results.kept=lengths|positions`"
        raise MissingFile(f"{str(asked.results)!r} has no kept/*.jsonl; {fix}")
    for one in read_kept(asked.results, asked.warn).values():
        if one.cell in cells and (samples is None or one.sample in samples):
            known.setdefault(one.cell, []).append(one)
    found = [cell for cell in cells if cell in known]
    if not found:
        raise NothingSelected(f"none of {len(cells)} selected cells has a kept set")
    for cell in found:
        if len({tuple(map(len, one.lengths)) for one in known[cell]}) > 1:
            raise UserError(
                f"cell {cell} has kept sets of different numbers of heads; keep rows of one model in a folder"
            )
    said, own = titles([_title(cells[cell]) for cell in found])
    sets = [tuple(sorted(known[cell], key=lambda one: one.sample)) for cell in found]
    return said, [Panel(cells[cell], title, of) for cell, title, of in zip(found, own, sets, strict=True)]


def _title(cell: Summary) -> Mapping[str, object]:
    return {name: getattr(cell, name) for name in ("model", "task", "context_length", "policy", "score", "budget")}


def counted(panels: Sequence[Panel]) -> str:
    """How many samples the panels are over."""
    counts = {len(panel.sets) for panel in panels}
    if counts == {1}:
        return f"sample {panels[0].sets[0].sample}" if len({p.sets[0].sample for p in panels}) == 1 else "one sample"
    return f"means of {n_of(counts)}"
