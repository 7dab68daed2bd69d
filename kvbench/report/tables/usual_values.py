"""The usual value of a swept setting, which labels leave out: beside `faded half_life=32` a plain `faded` has it."""

from collections.abc import Iterable, Mapping

from kvbench.records.rows import Describe
from kvbench.report.selection import as_typed, setting
from kvbench.report.tables.observation_note import SETTINGS, windows
from kvbench.support.text import printable


def unsaid_settings(methods: Iterable[tuple[str, str | None, str | None]], describe: Describe) -> str:
    """Return the sentence of a header about settings that labels leave out: of `windows`, then of `usual_values`.

    methods: each cell with the labels of its policy and its score.
    """
    cells = {cell: (policy, score) for cell, policy, score in methods}
    policies, scores = ({cell: labels[place] for cell, labels in cells.items()} for place in (0, 1))
    usual = *usual_values("policy", policies, describe), *usual_values("score", scores, describe)
    return "; ".join(filter(None, (windows(policies, describe), *map(printable, usual))))


def usual_values(group: str, labels: Mapping[str, str | None], describe: Describe) -> list[str]:
    """Return `faded has half_life=64` for each label without a setting that another label of the same name has.

    group: `policy` or `score`. labels: of each cell. What `kvbench.report.tables.observation_note.windows` says of all
    policies is left out, and what no description has.
    """
    words = {label: label.split(" ") for label in labels.values() if label is not None}
    keys = {label: [word.partition("=")[0] for word in rest if "=" in word] for label, (_, *rest) in words.items()}
    texts: dict[str, None] = {}
    for cell, label in labels.items():
        if label is None:
            continue
        alike = (key for other, named in keys.items() if words[other][0] == words[label][0] for key in named)
        unsaid = [key for key in dict.fromkeys(alike) if key not in keys[label]]
        values = {key: setting(describe(cell), f"{group}.{key}") for key in unsaid if not _is_said(group, key)}
        if text := ", ".join(f"{key}={as_typed(value)}" for key, value in values.items() if value is not None):
            texts[f"{label} has {text}"] = None
    return list(texts)


def _is_said(group: str, key: str) -> bool:
    return group == "policy" and key.partition(".")[0] in SETTINGS
