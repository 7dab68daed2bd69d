"""The words of a command line, read by Hydra's grammar: which setting, which values. Nothing is composed here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from kvbench.support.errors import UserError

GROUPS = ("model", "task", "policy", "score", "launcher", "logger")
MOST_VALUES = 100_000
"""Values that a range may list."""
FIXED = (*(f"{group}.name" for group in GROUPS), "policy.takes", "score.host.name")
"""What a file of `conf` says about itself: another value would make its rows lie."""


@dataclass(frozen=True)
class Value:
    """One value of a setting: as the grammar writes it, and as it reads it."""

    text: str
    read: Any


@dataclass(frozen=True)
class Asked:
    """One setting of the command line, as it was written, and the values it lists."""

    text: str
    key: str
    values: tuple[Value, ...]

    @property
    def is_group(self) -> bool:
        """Whether it chooses a file of `conf` rather than a value."""
        return self.key in GROUPS

    @property
    def is_hydra(self) -> bool:
        """Whether it configures Hydra itself."""
        return not self.values

    @property
    def canonical(self) -> str:
        """The same setting in words that every part of Hydra reads alike."""
        return self.text if self.is_hydra else f"{self.key}={','.join(value.text for value in self.values)}"


def parse(overrides: Sequence[str]) -> list[Asked]:
    """Read a command line; of a setting that is given twice the last one counts.

    Raises ValueError, in one line, for what the grammar does not know and for what cannot be set.
    """
    asked: dict[str, Asked] = {}
    for text in overrides:
        one = _asked(text)
        asked.pop(one.key, None)
        asked[one.key] = one
    return list(asked.values())


def text_fields(target: Any) -> set[str]:
    """Fields of a dataclass that are texts: what looks like a number there stays as it was written."""
    return {field.name for field in fields(target) if field.init and field.type in (str, str | None)}


def written(value: Any) -> str:
    """A value as it is written on a command line."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case dict():
            return "{" + ",".join(f"{key}:{written(one)}" for key, one in value.items()) + "}"
        case list() | tuple():
            return f"[{','.join(map(written, value))}]"
    return str(value)


def _asked(text: str) -> Asked:
    override = _read(text)
    key = override.get_key_element()
    if override.is_hydra_override():
        return Asked(text, key, ())
    if not key:
        raise UserError(f"cannot read {text!r}: it names no setting; write key=value")
    if key[0] in "+~":
        raise UserError(f"cannot read {text!r}: nothing can be added or deleted; write key=value, or key=null for none")
    if key in GROUPS:
        return Asked(text, key, tuple(Value(name, name) for name in (written(one.read) for one in _values(override))))
    values = _values(override)
    named = {key, *(part for value in values for part in _parts(key, value.read))}
    for part in sorted(named):
        if part.rpartition(".")[2] == "_target_" or part in FIXED:
            group = key.partition(".")[0]
            raise UserError(
                f"{part} is fixed by its file: choose another file with {group}=NAME (kvbench list shows them)"
            )
    return Asked(text, key, values)


def _parts(key: str, value: Any) -> Iterator[str]:
    """The settings inside a value that is a dict, by their whole names."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{key}.{name}"
            yield from _parts(f"{key}.{name}", inner)


def _read(text: str) -> Override:
    try:
        (override,) = OverridesParser.create().parse_overrides([text])
    except HydraException as error:
        key, _, value = text.partition("=")
        hint = f"; a value with = ( or , is quoted: '{key}=\"{value}\"'" if set("=(,") & set(value) else ""
        reason = str(error).split("\n")[0]
        raise UserError(f"cannot read {text!r}: {reason}; write key=value, or key=a,b for a list{hint}") from None
    return override


def _values(override: Override) -> tuple[Value, ...]:
    text = str(override.input_line)
    if not override.is_sweep_override():
        return (Value(text.partition("=")[2].strip(), override.value()),)
    try:
        if override.is_range_sweep():
            numbers = [_cut(number) for number in islice(override.sweep_iterator(), MOST_VALUES + 1)]
            if len(numbers) > MOST_VALUES:
                raise UserError(f"{text} lists more than {MOST_VALUES} values: choose a larger step, range(1,100,10)")
            stop = getattr(override.value(), "stop", None)  # excluded, and met by noise alone
            return tuple(Value(str(number), number) for number in numbers if number != stop)
        words = list(override.sweep_string_iterator())
    except HydraException as error:
        raise UserError(f"cannot expand {text!r}: {str(error).splitlines()[0]}; list the values: key=a,b") from None
    return tuple(Value(word, _read(f"{override.get_key_element()}={word}").value()) for word in words)


def _cut(number: Any) -> Any:
    """A step of a range without the noise of adding: 0.3, not 0.30000000000000004."""
    return float(f"{number:.12g}") if isinstance(number, float) else number
