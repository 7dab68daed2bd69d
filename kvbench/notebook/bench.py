"""From an idea to a figure in Python: a model, methods on it, and their rows as tables, figures and verdicts.

    bench = kvbench.Bench(model, tokenizer)
    result = bench.compare(["snapkv", MyScore()], budgets=[0.1, "600KiB"], data=prompts)

It is `kvbench run`, `report` and `compare` on values: the same cells, rows and folder, the same statistics and figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure

from kvbench.config.entries import options
from kvbench.config.overrides import parse
from kvbench.eviction.policy import Policy
from kvbench.models.loading.spec import ModelSpec
from kvbench.notebook.extended import Extended
from kvbench.notebook.methods import Method, check_settings, listed, words_of_budgets, words_of_method
from kvbench.notebook.model_in_memory import folder_of, spec_of
from kvbench.notebook.prompts import Prompts
from kvbench.notebook.report import NotebookReport
from kvbench.notebook.sweep import sweep_and_rows
from kvbench.notebook.words import words_of
from kvbench.records import KeptSets
from kvbench.report.beside import lines_beside
from kvbench.report.compare.compare import ALPHA, RELEVANT, compare
from kvbench.report.compare.compare import report_of as report_of_comparison
from kvbench.report.compare.paired_rows import Side, side
from kvbench.report.plots.plot import figure
from kvbench.report.selection import Where
from kvbench.report.tables import table
from kvbench.run.stale import Stale
from kvbench.support.errors import UserError
from kvbench.support.named import code_of
from kvbench.tasks.task import Task
from kvbench.work.planned import cells_of


class Bench(Extended):
    """A model on which methods of eviction are compared.

    model: a transformers model, with its tokenizer; or the name of a model of kvbench (`reference`), a folder, or a
    name of the hub. A model in memory stays as it is; its cells are named by the hash of its tensors, so that one that
    was trained further has rows of its own. Rows are shared with the command line where the model is given by name.

    Raises UserError for a model object without a tokenizer, and one that is quantised or on several devices.
    """

    group = "bench"

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        by_name = isinstance(model, (str, Path, ModelSpec))
        if by_name and tokenizer is not None:
            raise UserError(f"tokenizer={type(tokenizer).__name__}(...): a model that is given by name has its own")
        if not by_name and tokenizer is None:
            raise UserError(f"model={type(model).__name__}(...) needs its tokenizer: kvbench.Bench(model, tokenizer)")
        self._given, self._folder = model, None if by_name else folder_of(model, tokenizer)
        self._temporary = TemporaryDirectory(prefix="kvbench-")

    @property
    def model(self) -> str | ModelSpec:
        """The model as `kvbench.run(model=...)` takes it. One in memory is hashed each time."""
        if self._folder is not None:
            return spec_of(self._folder)
        if isinstance(self._given, ModelSpec):
            return self._given
        name = str(self._given)
        return name if name in options("model") else ModelSpec("hf", path=name)

    def compare(
        self,
        methods: Method | list[Method],
        budgets: Any = 0.1,
        data: Prompts | None = None,
        *,
        results: str | Path | None = None,
        policy: str | Policy = "snapkv",
        retry_errors: bool = False,
        stale: Stale = "stop",
        **settings: Any,
    ) -> "BenchResult":
        """Run what is missing of every method with every budget, each prompt read once for all, beside the full cache.

        methods: names of policies or scores, objects, or pairs (policy, score). policy: of a score alone. budgets:
        shares, numbers of KV pairs or bytes. data: the name of a task, prompts with answers, or a frame of them; None:
        the task of `kvbench run`. results: the folder of the rows; None: a temporary one, which is removed with this
        object and all of its results. retry_errors, stale: as of `kvbench.run`. Other settings have the names of the
        command line, `**{"task.samples": 20}`.

        Raises UserError and MissingFile, in one line, for what cannot be done.
        """
        check_settings(settings)
        base = self.words(results, **{"results.kept": "positions", **settings})
        base += words_of_budgets(budgets)
        chosen = [words_of_method(f"methods[{i}]", method, policy) for i, method in enumerate(listed(methods))]
        sweep, frame = sweep_and_rows(base, data, chosen, retry_errors, stale)
        common = sweep.arguments[: len(sweep.arguments) - sum(map(len, chosen))]
        return BenchResult(frame, common, policy, self._temporary, sweep.report)

    def words(self, results: str | Path | None = None, **settings: Any) -> list[str]:
        """Return the words of a command line on this model. results, settings: as of `compare`."""
        folder = Path(self._temporary.name) / "results" if results is None else results
        return words_of({"model": self.model, "results.dir": folder, **settings})

    def __repr__(self) -> str:
        by_name = isinstance(self._given, (str, Path))
        return f"Bench({str(self._given)!r})" if by_name else f"Bench({type(self._given).__name__}(...))"


@dataclass(frozen=True, repr=False, eq=False)
class BenchResult(Extended):
    """The rows of a comparison, and what the command line makes of rows.

    frame: one row per cell and sample; `frame.attrs["results"]` is its folder.
    """

    group = "bench_result"

    frame: Any
    _arguments: Sequence[str] = field(default=())
    _policy: str | Policy = "snapkv"
    _temporary: Any = None
    _report: str = Task.report

    def table(self, rows: str | None = None, cols: str | None = None, against: str | None = None) -> NotebookReport:
        """Return the table that `kvbench run` prints. rows, cols: keys of its lines and columns, with commas between.
        against: the policy, or the selection, from which cells that differ beyond chance are marked.
        """
        if self._report != Task.report:
            return NotebookReport(code_of("report", self._report)(self.frame, _ignore))
        return NotebookReport(table.report_of(self.frame, table.View(rows, cols, against), _ignore))

    def tradeoff(self, **settings: str) -> Figure:
        """Accuracy against what the cache costs: `x="bytes"`, `intervals="no"`, or a selection of rows."""
        return self.plot("tradeoff", **settings)

    def plot(self, kind: str, **settings: str) -> Figure:
        """Return a figure of `kvbench report plot`, of a kind that `kvbench list plots` names."""
        return figure(kind, self.frame, settings, _ignore)

    def kept(self) -> Mapping[tuple[str, int], KeptSets]:
        """Return the kept positions by cell and sample: `kept()[cell, sample].positions(layer, head)`."""
        rows = set(zip(self.frame["cell"], self.frame["sample"], strict=True))
        return {key: sets for key, sets in lines_beside(self.frame, KeptSets, _ignore).items() if key in rows}

    def compare(self, a: Method, b: Method, alpha: float = ALPHA, relevant: float = RELEVANT) -> NotebookReport:
        """Return the paired difference b - a with interval, tests and verdict, as `kvbench compare`.

        a, b: methods as they were given, or selections such as "policy=snapkv,budget=0.1". alpha, relevant: as in
        `kvbench.report.compare.compare.compare`.
        """
        both = self._side("a", a), self._side("b", b)
        return NotebookReport(report_of_comparison(compare(*both, alpha=alpha, relevant=relevant)))

    def _side(self, argument: str, method: Method) -> Side:
        if isinstance(method, str) and "=" in method:
            return side(method, self.frame, method, _ignore)
        words = words_of_method(argument, method, self._policy)
        ids = {cell.id for cell in cells_of(parse([*self._arguments, *words]), set())[1]} & set(self.frame["cell"])
        rows = self.frame[self.frame["cell"].isin(ids)]
        if rows.empty:
            methods = sorted({_name(*pair) for pair in zip(self.frame["policy"], self.frame["score"], strict=True)})
            raise UserError(f"{argument}={method!r} is not in this result, which has {', '.join(methods)}")
        where: Where = {"cell": sorted(ids)}
        return side(_name(rows["policy"].iloc[0], rows["score"].iloc[0]), self.frame, where, _ignore)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _name(policy: str, score: Any) -> str:
    return f"{policy} {score}" if isinstance(score, str) else policy  # a missing text of a frame may be NaN


def _ignore(text: str) -> None:
    """Warnings of reports about old, lost or damaged rows: these were just made or checked."""
