"""How an item prints the names of its values: by `results/papers/labels.yaml`, then by the `labels` of the item."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache

import yaml

from kvbench.papers.item import Item
from kvbench.report.tables.summary import FRACTION, budget_key
from kvbench.support import paths

LABEL_HEADS = {
    "policy": "method",
    "context_length": "tokens",
    "evict_after": "eviction",
    "decode_every": "buffer",
    "chat": "template",
    "prompt": "repeat prompt",
}
"""Heads of label columns whose key is no word of the papers."""


@cache
def _printed_names() -> dict[str, dict[str, str]]:
    return yaml.safe_load((paths.papers() / "labels.yaml").read_text("utf-8"))


def names_of(item: Item) -> Mapping[str, str]:
    """Return the printed name of every value that has one."""
    return {**_printed_names().get(item.paper, {}), **item.labels}


def printed_name(names: Mapping[str, str], key: str, value: str) -> str:
    """Return the value of a key of a layout; a fraction of the KV pairs in percent."""
    if key == "context_length":
        return value
    if key == "budget" and value and value not in names:
        kind, number, _ = budget_key(value)
        return f"{100 * number:g} %" if kind == FRACTION else value
    return names.get(value, value.rpartition("/")[2] if key == "task" else value)


def method(names: Mapping[str, str], policy: str, score: str, hosts: Collection[str] = ()) -> str:
    """Return a policy and its score: "H2O", "H2O + CAOTE"; "+ CAOTE" if the policy without that score is one of
    `hosts`.
    """
    if f"{policy} {score}" in names:
        return names[f"{policy} {score}"]
    host, added = printed_name(names, "policy", policy), f"+ {printed_name(names, 'score', score)}"
    if is_host(policy, score):
        return host
    return added if policy in hosts else f"{host} {added}"


def is_host(policy: str, score: str) -> bool:
    """Return whether a score is the policy's own, which papers do not name."""
    return score in ("", "attn") or policy == score or policy.startswith(f"{score}_")


def line_labels(
    names: Mapping[str, str], keys: Sequence[str], line: Sequence[str], hosts: Collection[str] = ()
) -> dict[str, str]:
    """Return the label of each key of a line; a score is part of its policy's, and the full cache has no budget."""
    values = dict(zip(keys, line, strict=True))
    labels = {key: printed_name(names, key, value) for key, value in values.items()}
    if "policy" in values and "score" in values:
        labels["policy"] = method(names, values["policy"], values["score"], hosts)
        del labels["score"]
    if "budget" in values and values.get("policy") == "full":
        labels["budget"] = ""
    return labels
