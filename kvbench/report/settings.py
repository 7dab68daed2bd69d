"""What tells two cells apart that look alike in a table: the settings in which their descriptions differ."""

from collections.abc import Mapping, Sequence
from typing import Any


def flat(description: Mapping[str, Any] | None) -> dict[str, Any]:
    """A nested description by dotted names: {"policy": {"window": 16}} -> {"policy.window": 16}."""
    leaves: dict[str, Any] = {}
    for key, value in (description or {}).items():
        if isinstance(value, Mapping):
            leaves.update({f"{key}.{name}": leaf for name, leaf in flat(value).items()})
        else:
            leaves[str(key)] = value
    return leaves


def differences(descriptions: Sequence[Mapping[str, Any] | None]) -> set[str]:
    """Dotted names of the settings that are not the same in all descriptions."""
    leaves = [flat(description) for description in descriptions]
    names = {name for settings in leaves for name in settings}
    return {name for name in names if len({repr(settings.get(name)) for settings in leaves}) > 1}
