"""From the words of a command line to composed configurations, one for each combination of its lists.

Lists are expanded here rather than by Hydra's multirun, so that all cells of a command are planned together. Hydra
composes once per distinct model, task, policy and score; lists of plain settings are filled in as data.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kvbench import paths
from kvbench.cli.errors import closest

GROUPS = ("model", "task", "policy", "score")


@dataclass(frozen=True)
class Asked:
    """One setting of the command line, as it was written, and the texts it lists."""

    text: str
    key: str
    plain: bool
    values: tuple[str, ...]

    @property
    def is_group(self) -> bool:
        """Whether it chooses a file of `conf` rather than a value."""
        return self.plain and self.key in GROUPS


def options(group: str) -> list[str]:
    """Names of a group's files, e.g. `ruler/niah_single_1` for tasks."""
    folder = paths.conf() / group
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def parse(overrides: Sequence[str]) -> list[Asked]:
    """Read a command line by Hydra's grammar.

    Raises ValueError, in one line, for what the grammar does not know and for names that no group has.
    """
    asked = [_asked(text) for text in overrides]
    for one in asked:
        if one.is_group:
            for name in one.values:
                if name not in options(one.key):
                    raise ValueError(f"unknown {one.key} {name}: {closest(name, options(one.key))}")
    return asked


def combinations(asked: Sequence[Asked]) -> Iterator[DictConfig]:
    """Composed configurations of every combination, groups varying slowest."""
    groups = [one for one in asked if one.is_group]
    fixed = [one for one in asked if not one.is_group and len(one.values) == 1]
    varied = [one for one in asked if len(one.values) > 1 and not one.is_group]
    with initialize_config_dir(str(paths.conf().resolve()), version_base="1.3"):
        for names in product(*(one.values for one in groups)):
            chosen = [f"{one.key}={name}" for one, name in zip(groups, names, strict=True)]
            config = _compose(chosen, fixed)
            for values in product(*(one.values for one in varied)):
                yield _filled(config, dict(zip((one.key for one in varied), values, strict=True)))


def settings_of(config: DictConfig) -> list[str]:
    """Dotted names of everything that can be set."""
    return list(_flatten(OmegaConf.to_container(config)))


def _asked(text: str) -> Asked:
    try:
        (override,) = OverridesParser.create().parse_overrides([text])
    except HydraException as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"cannot read {text!r}: {reason}; write key=value, or key=a,b for a list") from None
    plain = not (override.is_add() or override.is_force_add() or override.is_delete())
    values = _values(override, text)
    if len(values) > 1 and not plain:
        raise ValueError(f"cannot expand {text!r}: only settings that exist can be lists")
    return Asked(text, override.get_key_element().lstrip("+~"), plain, values)


def _values(override: Override, text: str) -> tuple[str, ...]:
    if override.is_delete() or not override.is_sweep_override():
        return (text.split("=", 1)[1] if "=" in text else "",)
    try:
        return tuple(override.sweep_string_iterator())
    except HydraException as error:
        raise ValueError(f"cannot expand {text!r}: {str(error).splitlines()[0]}; list the values: key=a,b") from None


def _compose(chosen: list[str], settings: list[Asked]) -> DictConfig:
    overrides = chosen + [one.text for one in settings]
    try:
        return compose("run", overrides=overrides)
    except (HydraException, OmegaConfBaseException) as error:
        known = settings_of(compose("run", overrides=chosen))
        for one in settings:
            if one.plain and one.key not in known:
                raise ValueError(_unknown(one.key, known)) from None
        raise ValueError(f"{' '.join(overrides)}: {str(error).splitlines()[0]}") from None


def _filled(config: DictConfig, values: dict[str, str]) -> DictConfig:
    """A copy with some settings replaced; every one must exist."""
    copy = config.copy()
    known = settings_of(config)
    for key, text in values.items():
        if key not in known:
            raise ValueError(_unknown(key, known))
        (override,) = OverridesParser.create().parse_overrides([f"{key}={text}"])
        OmegaConf.update(copy, key, override.value())
    return copy


def _unknown(key: str, known: list[str]) -> str:
    """A misspelt last word is compared with its siblings first."""
    group = key.rpartition(".")[0]
    siblings = [one for one in known if one.rpartition(".")[0] == group and "_target_" not in one]
    return f"unknown setting {key}: {closest(key, siblings or [one for one in known if '_target_' not in one])}"


def _flatten(node: Any, prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
