"""Take away each extra of a tree that is a plugin too, and print what is then found otherwise. TREE, SITES: folders."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

from kvbench.support import paths
from kvbench.support.named import named
from kvbench.support.plugins import OURS, GroupItem, faults, groups, held_groups, items, own_sources

CODE = ("command", "conform", "convert", "hint", "kernels", "model_file", "plan", "plot", "report", "warning")
"""Groups whose members are read as `Named`."""


def every() -> Iterator[GroupItem]:
    for group in groups():
        yield from items(group).values()


def found() -> dict[str, object]:
    """The names that a command line sees, by group."""
    members = {group: sorted(items(group)) for group in groups()}
    code = {f"code of {group}": sorted(named(group)) for group in CODE}
    return {**members, **code, "held": held_groups()}


@contextmanager
def outside(extra: Path, site: Path) -> Iterator[None]:
    """The extra is in `site` alone."""
    away = site / "away"
    extra.rename(away)
    sys.path.insert(0, str(site))
    try:
        forget()
        yield
    finally:
        sys.path.remove(str(site))
        away.rename(extra)
        forget()


def forget() -> None:
    for cached in (paths.extras, own_sources, held_groups):
        cached.cache_clear()


def differences(extra: Path, site: Path, inside: dict[str, object], ours: list[GroupItem]) -> Iterator[str]:
    """What is found otherwise once an extra is away. inside, ours: `found` and `every` while all extras are there."""
    brought = {(item.group, item.name) for item in ours if extra in item.path.parents}
    with outside(extra, site):
        yield from faults()
        now = found()
        yield from (f"{key}: {now.get(key)}, not {inside[key]}" for key in inside if now.get(key) != inside[key])
        theirs = {(item.group, item.name) for item in every() if item.source.name != OURS}
        if theirs != brought:
            yield f"brings {sorted(theirs)}, not {sorted(brought)}"
        if extra.name == "servers":
            asked = import_module("kvb_servers.asked_code").asked_code(SimpleNamespace(name="any"))
            if not asked.parts or {*asked.parts} != {"kvb_servers", "prompts"}:
                yield f"code of {asked.parts}"


if __name__ == "__main__":
    tree, sites = map(Path, sys.argv[1:])
    inside, ours = found(), [*every()]
    for site in sorted(sites.iterdir()):
        for line in differences(tree / site.name, site, inside, ours):
            print(f"{site.name}: {line}")
