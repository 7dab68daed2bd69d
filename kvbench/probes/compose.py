"""From the words of `kvbench probe` to a probe and the cells that it judges."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from kvbench.config.cells import Cells
from kvbench.config.compose import Tree, class_of, combinations, file_of, options
from kvbench.config.overrides import Override, Value, parse
from kvbench.config.settings import build
from kvbench.config.sweep import Tell, checked
from kvbench.probes.run import Probing, probing
from kvbench.records import ResultsFolder
from kvbench.support.errors import UserError
from kvbench.support.text import closest

PREFIX = "probe."


def asked(
    name: str, words: Sequence[str], folder: Path | None, default: str, tell: Tell
) -> tuple[Probing, ResultsFolder]:
    """The probe, its cells, and where its numbers go.

    Raises ValueError for words that cannot be read, settings that are none, and cells that the probe cannot judge.
    """
    tree = file_of("probe", name)
    usual = tree.pop("usual", [])
    named = parse(words)
    own = [one for one in named if one.key.startswith(PREFIX)]
    settings = [one for one in named if not one.key.startswith(PREFIX)]
    where = next((one for one in settings if one.key == "results.dir"), None)
    if where is not None and folder is not None:
        raise UserError(f"{where.text} and --results {folder} name the same folder: give one of the two")
    probe = build("probe", _with(tree, own))
    before = unless_named(parse(usual), settings)
    if where is None:
        path = str(folder or default)
        before.append(Override(f"results.dir={path}", "results.dir", (Value(path, path),)))
    results, cells = checked([*before, *settings], tell)
    return probing(probe, cells), ResultsFolder(results.dir)


def unless_named(usual: Sequence[Override], settings: Sequence[Override]) -> list[Override]:
    """Usual settings, without those that the command line names and those of a part that it names."""
    named = {one.key for one in settings}
    return [one for one in usual if one.key not in named and one.key.partition(".")[0] not in named]


def _with(tree: Tree, own: Sequence[Override]) -> Tree:
    """The file's settings with those of the command line; a list may be written with or without brackets."""
    legal = sorted(key for key in tree if key not in ("_target_", "name"))
    hints = get_type_hints(class_of("probe", tree))
    for one in own:
        key = one.key.removeprefix(PREFIX)
        if key not in legal:
            raise UserError(f"unknown setting {one.key}: {closest(one.key, [PREFIX + name for name in legal])}")
        values = [value.read for value in one.values]
        if get_origin(hints[key]) is tuple:
            tree[key] = [item for value in values for item in (value if isinstance(value, list) else [value])]
        elif len(values) > 1:
            raise UserError(f"{one.text} lists {len(values)} values: a probe has one")
        else:
            tree[key] = values[0]
    if isinstance(tree.get("against"), str):
        tree["against"] = score_of(tree["against"])
    return tree


def score_of(name: str) -> Any:
    """The score of that name as its file describes it. Raises ValueError for a name of none."""
    if name not in options("score"):
        raise UserError(f"unknown probe.against {name}: {closest(name, options('score'))}, or null for the true error")
    return Cells().cell(combinations(parse(["policy=plain", f"score={name}"]))[0]).score
