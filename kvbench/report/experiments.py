"""One line, one experiment: which cells may share a line, bar or curve, and the words that tell the others apart.

Cells are one experiment along an axis if their descriptions differ in nothing but the settings of that axis. Tables,
plots, pages, boards, comparisons and histories ask here, so that a line never joins what was measured in different
ways.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from kvbench.records.rows import Describe
from kvbench.report.selection import flat
from kvbench.report.settings_files import short
from kvbench.support.grouped import grouped

UNKNOWN = "no description"
"""The words of a cell without a description, on a line with others that have one."""
CODE = "code"
"""The axis of a history: what is no setting but the code of a task or a plugin."""
ASKED = ("model", "task", "seed")
"""The parts of a description that say what was asked; the others say by which method it was answered."""
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "context_length": ("task.context_length", "task.data_sha256", "task.data_altered"),  # a length has its own files
    "budget": ("budget", "score.budget"),  # a score that blends by the budget knows it
    "score": ("score", "plugins"),
    "policy": ("policy", "plugins"),
    "layout": ("policy.layout",),
    "variant": ("policy.variant",),
    "task_version": ("task.version",),
    "seed": ("seed", "task.seed"),
    "metric": ("task.scorer",),
    CODE: ("plugins", "task.version"),
}
"""The settings that a column of rows is made from, where they have other names."""
_COLUMNS = {"policy": ("variant", "layout"), "task": ("task_version",)}
"""Columns of rows that follow another."""
_DATA = ("task.data_sha256", "task.data_altered")
_LEAST = 12


class Experiments:
    """The experiments of cells, told apart by everything but the settings of some axes.

    axes: columns of rows, settings with dots, or `CODE`. parts: of descriptions, such as `task`; empty: all.
    """

    def __init__(self, axes: Iterable[str], describe: Describe, parts: Sequence[str] = ()) -> None:
        axes = tuple(axes)
        self._axes = tuple(name for axis in axes for name in _SETTINGS.get(axis, (short().get(axis, axis),)))
        self._parts = parts
        self._tells_apart = cache(self._is_beside_axes)
        self.columns = {name for axis in axes for name in (axis, *_COLUMNS.get(axis, ()))}
        """Columns of rows that may differ along the axes."""
        self.settings = cache(lambda cell: self._settings(describe(cell)))
        self.of = cache(lambda cell: repr(sorted((self.settings(cell) or {}).items())))

    def _settings(self, description: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return all settings beside the axes, a seed of cell and task once; None without a description."""
        if description is None:
            return None
        settings = flat(description)
        if settings.get("task.seed") == settings.get("seed"):
            settings.pop("task.seed", None)
        return {name: value for name, value in settings.items() if self._tells_apart(name)}

    def _is_beside_axes(self, name: str) -> bool:
        """Return whether a setting is none of the axes, and one of the parts."""
        is_of_axis = any(name == axis or name.startswith(f"{axis}.") for axis in self._axes)
        return not is_of_axis and (not self._parts or name.partition(".")[0] in self._parts)

    def differ(self, cells: Iterable[str]) -> bool:
        """Return whether these cells are more than one experiment."""
        return len({self.of(cell) for cell in cells}) > 1

    def partners(self, cell: str, others: Iterable[str]) -> list[str]:
        """Return the cells that are one experiment with a cell; else those that nothing tells from it (`unlike`), as a
        server says little and rows without a description nothing.
        """
        others = list(others)
        if same := [other for other in others if self.of(other) == self.of(cell)]:
            return same
        return [other for other in others if not unlike(self.settings(cell), self.settings(other))]

    def told_apart(self, names: Mapping[str, Hashable]) -> dict[str, str | None]:
        """Return the `words` of each cell among cells of its name. names: of cells, by cell."""
        members = grouped(names, names.__getitem__).values()
        return {cell: text for cells in members for cell, text in self.words(cells).items()}

    def differing(self, cells: Iterable[str]) -> list[str]:
        """Return the names of the settings that are not the same in all of these cells that have a description."""
        known = [settings for cell in cells if (settings := self.settings(cell)) is not None]
        names = sorted({name for settings in known for name in settings})
        return [name for name in names if len({repr(each.get(name)) for each in known}) > 1]

    def words(self, cells: Sequence[str]) -> dict[str, str | None]:
        """Return the settings that tell these cells apart, as `task.max_new_tokens=24`; None where there are none.

        Values are cut to twelve characters where that keeps them apart.
        """
        known = {cell: settings for cell in cells if (settings := self.settings(cell)) is not None}
        differing = self.differing(cells)
        texts = {name: _texts([each[name] for each in known.values() if name in each]) for name in differing}

        def written(cell: str) -> str | None:
            if cell not in known:
                return UNKNOWN if known else None
            settings = known[cell]
            parts = (f"{name}={texts[name][repr(settings[name])]}" for name in differing if name in settings)
            return " ".join(parts) or None

        return {cell: written(cell) for cell in cells}


def unlike(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> list[str]:
    """Return the settings that differ between two cells, of the settings that both describe.

    Of a task that both describe that is all but what its files are: what a description leaves out has its first value.
    """
    a, b = a or {}, b or {}
    names = a.keys() & b.keys()
    tasks = [{name for name in settings if name.startswith("task.") and name not in _DATA} for settings in (a, b)]
    if all(tasks):
        names |= set.union(*tasks)
    return sorted(name for name in names if repr(a.get(name)) != repr(b.get(name)))


def _texts(values: Sequence[Any]) -> dict[str, str]:
    """Return the text of each value by its `repr`."""
    texts = {repr(value): str(value) for value in values}
    cut = {key: text[:_LEAST] for key, text in texts.items()}
    return cut if len({*cut.values()}) == len(texts) else texts
