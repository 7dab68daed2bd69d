"""Names as a paper prints them: those of `results/papers/labels.yaml`, then the `labels` of the item."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache

import yaml

from kvbench.papers.item import Item
from kvbench.report.tables.summary import budget_key
from kvbench.support import paths

HEADS = {"policy": "method", "context_length": "tokens", "evict_after": "eviction", "prompt": "repeat prompt"}
"""Heads of label columns whose key is no word of the papers."""


@cache
def _of_papers() -> dict[str, dict[str, str]]:
    return yaml.safe_load((paths.papers() / "labels.yaml").read_text("utf-8"))


def names_of(item: Item) -> Mapping[str, str]:
    """The printed name of every value that has one."""
    return {**_of_papers().get(item.paper, {}), **item.labels}


def printed(names: Mapping[str, str], key: str, value: str) -> str:
    """The value of a key of a layout; a fraction of the KV pairs in percent."""
    if key == "context_length" or value in names:
        return value if key == "context_length" else names[value]
    if key == "budget":
        is_number, number, _ = budget_key(value)
        return value if is_number else f"{100 * number:g} %"
    return value.rpartition("/")[2] if key == "task" else value


def method(names: Mapping[str, str], policy: str, score: str, hosts: Collection[str] = ()) -> str:
    """A policy and its score: "H2O", "H2O + CAOTE"; "+ CAOTE" if the policy without that score is one of `hosts`."""
    host = printed(names, "policy", policy)
    if f"{policy} {score}" in names:
        return names[f"{policy} {score}"]
    if is_host(policy, score):
        return host
    return f"+ {printed(names, 'score', score)}" if policy in hosts else f"{host} + {printed(names, 'score', score)}"


def is_host(policy: str, score: str) -> bool:
    """Whether a score is the policy's own, which papers do not name."""
    return score in ("", "attn") or policy == score or policy.startswith(f"{score}_")


def label_keys(keys: Sequence[str]) -> list[str]:
    """Keys with a label of their own: a score is part of its policy's."""
    return [key for key in keys if key != "score" or "policy" not in keys]


def line_labels(
    names: Mapping[str, str], keys: Sequence[str], line: Sequence[str], hosts: Collection[str] = ()
) -> list[str]:
    """One label for each of `label_keys`; the full cache has no budget."""
    values = dict(zip(keys, line, strict=True))
    labels = []
    for key in label_keys(keys):
        if key == "policy" and "score" in values:
            labels.append(method(names, values["policy"], values["score"], hosts))
        else:
            is_all = key == "budget" and values.get("policy") == "full"
            labels.append("" if is_all else printed(names, key, values[key]))
    return labels
