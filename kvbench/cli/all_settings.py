"""Every setting of a run: its value, as the words of a line give it, and what it means. `kvbench list settings`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from kvbench.cli.setting_help import explained, help_of_part, notes_of
from kvbench.cli.terminal import print_columns, say, screen
from kvbench.config.compose import RUN
from kvbench.config.overrides import GROUPS
from kvbench.support.errors import UserError
from kvbench.support.noted import noted
from kvbench.support.plugins import items
from kvbench.support.text import closest
from kvbench.work.planned import one_tree


@dataclass(frozen=True)
class SettingLine:
    """A setting. value: as it is written on a command line; blank for one with parts, whose lines follow."""

    key: str
    value: str
    says: str


def lines_of(words: Sequence[str]) -> list[SettingLine]:
    """List the settings that a line leaves or gives. Of `words` those without = narrow it, such as `policy`.

    Raises UserError for a word that no setting begins with, and for settings that a run refuses.
    """
    roots = [word for word in words if "=" not in word]
    tree = one_tree([word for word in words if "=" in word])
    lines = [SettingLine(*parts) for parts in explained(tree, _texts(tree))]
    known = {line.key.partition(".")[0] for line in lines}
    for root in roots:
        if root not in known:
            raise UserError(f"no setting begins with {root}: {closest(root, known)}")
    return [line for line in lines if not roots or line.key.partition(".")[0] in roots]


def _texts(tree: dict[str, Any]) -> dict[str, str]:
    """Return the meanings of settings by key: as their class says it, or their file where that says more."""
    texts = dict(noted(RUN))
    for group in GROUPS:
        texts |= {f"{group}.{name}": text for name, text in help_of_part(group, tree[group]).items()}
        if (name := tree[group]["name"]) in items(group):  # a score of your own has no file there
            texts |= notes_of(items(group)[name])
    return texts


def print_all(words: Sequence[str]) -> None:
    """Print the settings of a line in columns, and before them, where nothing narrows them, the names of all groups."""
    lines = lines_of(words)
    if all("=" in word for word in words):
        _print_groups()
    for _, part in groupby(lines, lambda line: line.key.rpartition(".")[0].partition(".")[0]):
        print_columns([(f"  {line.key}{'=' if line.value else ':'}{line.value}", line.says) for line in part])


def _print_groups() -> None:
    print("== Groups (group=name; kvbench list says what each is) ==")
    for group in GROUPS:
        names = sorted(f"{group}/{name}".rpartition("/") for name in items(group))
        for folder, members in groupby(names, lambda name: name[0]):
            say(screen(), f"{folder}: {', '.join(name for *_, name in members)}")
    print("\n== All settings, with their values (key=value) ==")
