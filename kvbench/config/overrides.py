r"""The words of a command line, read by Hydra's grammar: which setting, which values. Nothing is composed here.

One thing is added to the grammar: in double quotes \n is a line end, as in YAML; in single quotes it is two characters.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from kvbench.config.entries import flat
from kvbench.support.errors import UserError
from kvbench.support.plugins import held_groups, items

if TYPE_CHECKING:  # loaded by the first word that is read: help and lists read none
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override as HydraOverride

GROUPS = ("model", "task", "policy", "score", *held_groups(), "launcher", "logger")
"""The groups of a run, whose members are named on a command line."""
MOST_VALUES = 100_000
"""Values that a range may list."""
QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*["]""", re.DOTALL)
BARE = re.compile(r"""[^\s'"\\=]+|\{.*\}|\[.*\]""")
"""Texts that need no quotes on a command line; parts and lists may be given as texts."""
FIXED = (*(f"{group}.name" for group in GROUPS), "policy.accepts", "score.host.name")
"""Settings that only a file of `conf` may set: another value would make its rows lie."""


@dataclass(frozen=True)
class Value:
    """One value of a setting: as the grammar writes it, and as it reads it."""

    text: str
    read: Any


@dataclass(frozen=True)
class Override:
    """One setting of the command line, as it was written, and the values that it lists."""

    text: str
    key: str
    values: tuple[Value, ...]

    @property
    def is_group(self) -> bool:
        """Whether it chooses a file of `conf` rather than a value."""
        return self.key in GROUPS

    @property
    def root(self) -> str:
        """The first word of its key: `policy` of `policy.window`."""
        return self.key.partition(".")[0]

    @property
    def canonical(self) -> str:
        """The same setting, without blanks and quotes that mean nothing."""
        return f"{self.key}={','.join(value.text for value in self.values)}"


def parse(words: Sequence[str]) -> list[Override]:
    """Read a command line; of a setting that is given twice the last one counts.

    Raises UserError for what the grammar does not know and for what cannot be set.
    """
    overrides: dict[str, Override] = {}
    for word in words:
        override = _parse_word(word)
        overrides.pop(override.key, None)
        overrides[override.key] = override
    return [_as_score(override, "score" in overrides) for override in overrides.values()]


def _as_score(override: Override, named: bool) -> Override:
    """`score.path=FILE.py` as `score=FILE.py`. Raises UserError beside another score."""
    files = [str(value.read) for value in override.values]
    if override.key != "score.path" or not any(file.endswith(".py") for file in files):
        return override
    if named:
        raise UserError(f"{override.text} is itself a score; to compare it with others write score=attn,{files[0]}")
    return Override(override.text, "score", tuple(Value(file, file) for file in files))


def format_value(value: Any) -> str:
    r"""Return a value as it is written on a command line: a text with blanks in quotes, its line ends as \n."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case dict():
            return "{" + ",".join(f"{key}:{format_value(inner)}" for key, inner in value.items()) + "}"
        case list() | tuple():
            return f"[{','.join(map(format_value, value))}]"
        case str() if not BARE.fullmatch(value):
            from hydra.core.override_parser.types import Quote, QuotedString

            if "\\" in value:
                return QuotedString(value, Quote.single).with_quotes()
            return QuotedString(value, Quote.double).with_quotes().replace("\n", r"\n")
    return str(value)


def _with_line_ends(word: str) -> str:
    r"""Return a word with a line end for each \n in its double quotes."""

    def ends(quoted: re.Match[str]) -> str:
        if quoted[0].startswith("'"):
            return quoted[0]
        return re.sub(r"\\(.)", lambda pair: "\n" if pair[1] == "n" else pair[0], quoted[0], flags=re.DOTALL)

    return QUOTED.sub(ends, word)


def _parse_word(word: str) -> Override:
    override = _read(_with_line_ends(word))
    key = override.get_key_element()
    if not key:
        raise UserError(f"cannot read {word!r}: the name of the setting is missing; write key=value")
    if override.is_hydra_override():
        raise UserError(f"{word}: settings of Hydra itself change nothing: leave it out; launcher=slurm submits jobs")
    if key[0] in "+~":
        raise UserError(
            f"cannot read {word!r}: settings cannot be added or deleted; write key=value, or key=null for none"
        )
    values = _values(override)
    if key in GROUPS:
        names = (value.read if isinstance(value.read, str) else format_value(value.read) for value in values)
        return Override(word, key, tuple(Value(name, name) for name in names))
    for setting in sorted({*(inner for value in values for inner, _ in flat({key: value.read}))}):
        if setting.rpartition(".")[2] == "_target_" or setting in FIXED:
            raise UserError(
                f"{setting} is fixed by its file: choose another file with {key.partition('.')[0]}=NAME "
                "(kvbench list shows them)"
            )
    return Override(word, key, values)


@cache
def _parser() -> "OverridesParser":
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


@lru_cache(4096)  # a command asks for a word several times, and the runs of a paper item share most
def _read(word: str) -> "HydraOverride":
    """Return a word as the grammar reads it; each `value()` is a new object."""
    from hydra.errors import HydraException

    try:
        (override,) = _parser().parse_overrides([word])
    except HydraException as error:
        key, _, value = word.partition("=")
        if word.endswith(",") and not word.endswith("=,"):
            fix = f"a comma stands between two values: write {word.rstrip(',')}, or name another value after it"
            raise UserError(f"cannot read {word!r}: {fix}") from None
        if meant := [f"{group}={word}" for group in GROUPS if word in items(group)]:
            raise UserError(f"cannot read {word!r}: did you mean {' or '.join(meant)}?") from None
        is_lexer_error = "LexerNoViableAlt" in str(error)
        hint = _quoting(key, value) if value and (is_lexer_error or set("=(,") & set(value)) else ""
        reason = str(error).split("\n")[0] if "=" in word else "it has no ="
        reason = "it has a character that needs quotes" if is_lexer_error else reason
        raise UserError(f"cannot read {word!r}: {reason}; write key=value, or key=a,b for a list{hint}") from None
    return override


def _quoting(key: str, value: str) -> str:
    """Return the hint to quote a value that has none, as a shell takes it."""
    from hydra.core.override_parser.types import Quote, QuotedString

    text = value.strip("\"'") if value[0] in "\"'" else value
    quoted = shlex.quote(f"{key}={QuotedString(text, Quote.double).with_quotes()}")
    return f"; a value with letters beyond ASCII or marks such as = ( , ~ # ' is quoted: {quoted}"


def _values(override: "HydraOverride") -> tuple[Value, ...]:
    from hydra.errors import HydraException

    text = str(override.input_line)
    if not override.is_sweep_override():
        return (Value(text.partition("=")[2].strip(), override.value()),)
    try:
        if override.is_range_sweep():
            # without the rounding error of a sum of steps: 0.3, not 0.30000000000000004
            try:
                steps = islice(override.sweep_iterator(), MOST_VALUES + 1)
                numbers = [float(f"{step:.12g}") if isinstance(step, float) else step for step in steps]
            except (ValueError, ArithmeticError) as error:  # a step of 0, an end that is infinite
                raise UserError(f"cannot expand {text!r}: {error}; write range(START,STOP,STEP)") from None
            if len(numbers) > MOST_VALUES:
                raise UserError(f"{text} lists more than {MOST_VALUES} values: choose a larger step, range(1,100,10)")
            stop = getattr(override.value(), "stop", None)  # excluded, and reached by rounding errors only
            return tuple(Value(str(number), number) for number in numbers if number != stop)
        words = list(override.sweep_string_iterator())
    except HydraException as error:
        raise UserError(f"cannot expand {text!r}: {str(error).splitlines()[0]}; list the values: key=a,b") from None
    return tuple(Value(word, _read(f"{override.get_key_element()}={word}").value()) for word in words)
