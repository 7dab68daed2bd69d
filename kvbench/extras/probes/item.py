"""An item of a paper that a probe measures."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pyarrow import Table

from kvbench.config.overrides import parse
from kvbench.extras.probes import DEFAULT, table
from kvbench.extras.probes.command import measure
from kvbench.extras.probes.numbers import probed
from kvbench.extras.probes.plot import draw_probed
from kvbench.extras.probes.run import Probing, probe_of
from kvbench.extras.probes.run import probing as probing_cells
from kvbench.papers.cells import is_smoke, unless_named
from kvbench.papers.item import At, Item
from kvbench.papers.numbers import Measured
from kvbench.papers.page import page
from kvbench.papers.request import PaperRequest, Runner
from kvbench.papers.sweep import ItemSweep, Result, protocol
from kvbench.records import ResultsFolder, check_writable
from kvbench.run.plan import Plan
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.quantity import count_noun


@dataclass(frozen=True)
class ProbeItem(Item):
    """An item that a probe measures: its numbers are a table below the published ones.

    by: what the means of the table are by. quantity: of the measured numbers, the one that the paper prints. layers:
    those that the paper prints; none are all.
    """

    probe: str = ""
    by: tuple[str, ...] = ()
    quantity: str | None = None
    layers: tuple[str, ...] = ()

    made_by: ClassVar[str] = "kvbench.extras.probes.item:ProbeSweep"
    own_settings: ClassVar[str] = "probe"


class ProbeSweep(ItemSweep):
    """Cells that a probe judges."""

    item: ProbeItem

    def __init__(self, item: ProbeItem, request: PaperRequest, runner: Runner) -> None:
        super().__init__(item, request, runner)
        self.measured_by = ("probe", item.probe)
        if request.launcher.name != "none":
            raise UserError(f"launcher={request.launcher.name}: {item.name} is measured by a probe, in this process")

    def _probing(self) -> tuple[Probing, ResultsFolder, Plan]:
        """Return the cells as the probe judges them, the folder of its numbers, and what is missing of them."""
        assert self.cells.results is not None
        own = parse([word for run in self.item.all_runs for word in run])
        words = [*unless_named(own, self.request.overrides), *self.request.overrides]
        probing = probing_cells(probe_of(self.item.probe, words), [entry.cell for entry in self.cells.with_data])
        named = self.request.smoke or any(word.key == "results.dir" for word in words)
        results = ResultsFolder(self.cells.results.dir if named else DEFAULT)
        return probing, results, probing.plan(results, self.request.retry_errors)

    def _remaining(self) -> Iterator[str]:
        _, results, todo = self._probing()
        yield f"{todo.rows - todo.rows_to_do} of {count_noun(todo.rows, 'measurement')} are in {results.path}"

    def run(self) -> Result:
        cells = self.cells
        if not cells.with_data:
            raise MissingFile("; ".join(cells.hints()))
        probing, results, todo = self._probing()
        check_writable(str(results.path))
        self.runner.screen.tell(
            f"{count_noun(len(probing.cells), 'cell')}, {count_noun(todo.rows_to_do, 'measurement')} to run"
        )
        if todo.rows_to_do:
            measure(probing, todo, results)
        numbers = probed(results.path, probing.samples)
        across = probing.probe.across
        across = across if across in (*self.item.by, "quantity") else "quantity"
        smoke = is_smoke(cells.with_data)
        remarks = [*(f"{hint}." for hint in cells.hints()), protocol(cells.with_data, "samples at most")]
        failed = any(numbers["error"].to_pylist())
        in_percent = any(number.unit == "percent" for number in self.printed)
        shown = page(self.item, self.printed, computed=self._places(probing, numbers), remarks=remarks, smoke=smoke)
        return Result(
            shown.report(table.report_of(numbers, self.item.by, across, in_percent)),
            "samples have failed" if failed else "",
            lambda picture: draw_probed(numbers, self.item.by, picture, "SMOKE" if smoke else "", in_percent),
        )

    def _places(self, probing: Probing, numbers: Table) -> dict[At, Measured]:
        """Return the means of the quantity that the paper prints, at their places in the layout."""
        item, computed = self.item, dict[At, Measured]()
        entries = {probing.name(probing.probe.judged(entry.cell)): entry for entry in self.cells.with_data}
        for mean in table.means_of(numbers, item.by) if item.quantity is not None else ():
            layer = str(mean.keys.get("layer"))
            if mean.keys["quantity"] == item.quantity and layer in (item.layers or (layer,)):
                entry = entries[mean.cell]
                at = tuple(layer if key == "layer" else value for key, value in zip(item.keys, entry.at, strict=True))
                computed[at] = Measured(
                    mean.mean, mean.n, failed=mean.blanks, low=mean.low, high=mean.high, differs=entry.differs
                )
        return computed
