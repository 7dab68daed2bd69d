"""An item of a paper whose numbers are times: the report of its rows stands below the published numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvbench.papers.cells import is_smoke
from kvbench.papers.item import Item
from kvbench.papers.page import Page, page
from kvbench.papers.sweep import ItemSweep, protocol
from kvbench.records import Row
from kvbench.report.formats.table import Report
from kvbench.support.errors import UserError
from kvbench.support.named import code_of
from kvbench.tasks.task import Task
from kvbench.work.planned import Sweep

OTHER_TIMES = "Times differ between machines, so no difference to the paper's is shown."


@dataclass(frozen=True)
class TimedItem(Item):
    """An item of tasks that measure times."""

    made_by: ClassVar[str] = "kvbench.extras.efficiency.item:TimedSweep"


class TimedSweep(ItemSweep):
    """Runs that measure times."""

    def page(self, sweep: Sweep, rows: Sequence[Row], remarks: Sequence[str]) -> tuple[Page, Report | None]:
        entries = self.cells.with_data
        remarks = [*remarks, protocol(entries, "repetitions"), OTHER_TIMES]
        shown = page(self.item, self.printed, remarks=remarks, smoke=is_smoke(entries))
        if sweep.report == Task.report:
            raise UserError(f"paper item {self.item.name} takes tasks that measure times")
        return shown, code_of("report", sweep.report)(sweep.results.path, self.warn, {"cell": [*sweep.samples]})
