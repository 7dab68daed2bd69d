"""What `kvbench doctor` finds out about plugins: what each adds, or what is wrong with it."""

from collections.abc import Iterator

from omegaconf import OmegaConf

from kvbench.cli.finding import Finding
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.config.settings import build
from kvbench.support.plugins import Item, groups, items, plugins, source_of


def installed_plugins() -> Iterator[Finding]:
    """A line for every plugin; one that is broken is missing, because no command goes on without it."""
    broken = False
    for point in plugins():
        assert point.dist is not None
        name = f"plugin {point.dist.name}"
        try:
            source = source_of(point)
            own = [item for group in groups() for item in items(group).values() if item.source == source]
            for item in own if not broken else ():
                _build(item)
        except ValueError as error:
            broken = True
            yield Finding("missing", name, str(error))
        else:
            yield Finding("ok", name, f"{source.version}: {', '.join(map(_named, own)) or 'adds nothing'}")


def _build(item: Item) -> None:
    """Raise ValueError for a file that does not instantiate by itself; what a setting is asked for may stay open."""
    (config,) = combinations(parse([f"{item.group}={item.name}"]))
    composed = OmegaConf.create(config)
    if not OmegaConf.missing_keys(composed[item.group]):
        build(item.group, OmegaConf.to_container(composed, resolve=True)[item.group])  # type: ignore[index]


def _named(item: Item) -> str:
    return f"{item.group} {item.name}"
