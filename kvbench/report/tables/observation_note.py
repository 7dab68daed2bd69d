"""Window, newest tokens and pooling of the cells of a table or figure, and drawn answers: a sentence for its header."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvbench.records.labels import PAPER, protocol_of
from kvbench.records.rows import Describe
from kvbench.report.selection import task_settings
from kvbench.support.text import printable


def _part(size: Any) -> str | None:
    """Return a number of tokens as text; None for a policy that has none."""
    if isinstance(size, Mapping):
        return f"{100 * size['part']:g} % of the {size['of']}"
    return str(size) if isinstance(size, int) and size > 0 else None


SETTINGS: Mapping[str, Callable[[Any], str | None]] = {
    "window": lambda size: None if size == 1 else _part(size),
    "recent": _part,
    "pool": lambda pool: f"{pool['kind']} {pool['size']}" if isinstance(pool, Mapping) else None,
}
"""How each setting of a policy is written; None where a policy has none of it: h2o no pool, tova no window."""


def windows(labels: Mapping[str, str | None], describe: Describe) -> str:
    """`window 16, recent 16, pool max 7 where a policy has them`, or which policies have which.

    labels: of the policy of each cell, by which policies and the protocol are named, or None. Empty where no
    description is kept or no policy has any of the three; drawn answers are named.
    """
    descriptions = [describe(cell) for cell in labels]
    recorded = [(description or {}).get("policy") for description in descriptions]
    policies = [
        {**policy, "name": label} if label else policy
        for label, policy in zip(labels.values(), recorded, strict=True)
        if isinstance(policy, Mapping)
    ]
    shared, differing = [], []
    for setting, write in SETTINGS.items():
        names: dict[str, set[str]] = {}
        for policy in policies:
            text = write(policy.get(setting)) if "budget" in policy.get("accepts", ()) else None
            if text is not None:
                names.setdefault(text, set()).add(str(policy.get("name")))
        if len(names) > 1:
            values = sorted(names, key=lambda text: (len(text), text))
            differing.append(f"{setting} {', '.join(f'{text} ({_policies(names, text)})' for text in values)}")
        else:
            shared += [f"{setting} {text}" for text in names]
    text = f"{', '.join(shared)} where a policy has them" if shared else ""
    if differing:
        text = "; ".join([f"cells differ in {'; '.join(differing)}", *shared])
    marks = sorted({mark for label in labels.values() if label and (mark := protocol_of(label)) != PAPER})
    protocols = [f"@{mark}: {', '.join(SETTINGS)} of protocol={mark}, not of the paper" for mark in marks]
    return printable("; ".join(filter(None, (text, *protocols, answers_text(descriptions)))))


def _policies(labels: Mapping[str, set[str]], value: str) -> str:
    """Name the policies that have a value: by the first word of the label, or by all of it where another value has
    the same first word. labels: by value.
    """
    others = {label.split(" ")[0] for other, members in labels.items() if other != value for label in members}
    words = {label: label.split(" ")[0] for label in labels[value]}
    return ", ".join(sorted({label if word in others else word for label, word in words.items()}))


def answers_text(descriptions: Iterable[Mapping[str, Any] | None]) -> str:
    """Return how answers were drawn, in a sentence for the header of a table: empty if none was."""
    texts: dict[str, None] = {}
    for task in map(task_settings, descriptions):
        if temperature := task.get("temperature"):
            number, top_p = task.get("samples_per_prompt", 1), task.get("top_p", 1.0)
            nucleus = f", top_p {top_p:g}" if top_p < 1 else ""
            several = f"{number} answers per prompt (their mean: avg@{number})" if number > 1 else "answers"
            texts[f"{several} drawn at temperature {temperature:g}{nucleus}"] = None
        elif task:
            texts["greedy answers"] = None
    return " or ".join(texts) if list(texts) != ["greedy answers"] else ""


def differing(cells: Iterable[str], describe: Describe) -> str:
    """Return the same sentence if cells do not share them, else nothing."""
    text = windows(dict.fromkeys(cells), describe)
    return text if text.startswith("cells differ") else ""
