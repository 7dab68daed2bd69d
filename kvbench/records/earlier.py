"""Names and labels of rows that earlier versions made, in today's words.

Up to schema 8 a plain name was a policy under `protocol=common`, and H2O and TOVA of the OBCache paper were plain `h2o`
and `tova`; the score `rkv` had another default. A cell keeps the name under which its hash was made; readers see
today's.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

PAPER, COMMON = "paper", "common"
"""The protocols: each policy as its paper or code has it; one window, newest tokens and pool for all."""
FIRST_NAMES: Mapping[str, str] = {
    "h2o_obcache": "h2o",
    "h2o": "h2o_full",
    "h2o_kvzip": "h2o_max",
    "tova_obcache": "tova",
    "tova": "tova_layer",
}
"""The names under which cells of policies are hashed, by today's, where they differ."""
_TODAY = {first: today for today, first in FIRST_NAMES.items()}
LAST_UNNAMED = 8
"""The last schema of rows that do not name their protocol."""
_WINDOW_32, _WINDOW_8 = {"window": "32", "recent": "32"}, {"window": "8", "recent": "8"}
_OF_PAPERS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("ada_pyramidkv", "ada_snapkv", "chunkkv", "snapkv"), _WINDOW_32),
    **dict.fromkeys(("lava", "lava_no_head", "lava_pyramid", "lava_uniform"), _WINDOW_32),
    **dict.fromkeys(("pyramidkv", "rkv"), _WINDOW_8),
    "cake": {**_WINDOW_32, "pool.kind": "avg", "pool.size": "5"},
    "compactor": {"recent": "64"},
    "duo_attention": {"recent": "256"},
    "h2o_full": {"recent": "half of the budget"},
    "lukv": {"recent": "1"},
    "simlayerkv": {"recent": "1024"},
}
"""What a label had to say for a policy to be as in its paper; policies that both protocols have alike are not here."""
_DEFAULTS: Mapping[str, Mapping[str, tuple[str, str]]] = {"rkv": {"importance": ("0.07", "0.1")}}
"""Settings of scores that had another default: what their labels left out, and what they leave out today."""
_BESIDE = ("store=", "reader=", "reader.")
"""Words of a policy's label that are no settings of the policy."""


class Named(NamedTuple):
    """Names of a row's method: labels of policy and score, and the policy's protocol and side."""

    policy: str
    protocol: str | None
    variant: str | None
    score: str | None = None


def first_name(policy: str) -> str:
    """The name under which cells of a policy are hashed."""
    return FIRST_NAMES.get(policy, policy)


def name_today(policy: str) -> str:
    """Today's name of a policy that a cell's description names."""
    return _TODAY.get(policy, policy)


def described_today(description: Any) -> Any:
    """A description of a cell with today's name of its policy; whatever is none is returned as it is."""
    policy = description.get("policy") if isinstance(description, Mapping) else None
    if not isinstance(policy, Mapping) or not isinstance(policy.get("name"), str):
        return description
    return {**description, "policy": {**policy, "name": name_today(policy["name"])}}


def policy_of(label: str) -> str:
    """The name of the policy that a label is of: its first word, without the protocol."""
    return label.split(" ")[0].partition("@")[0]


def protocol_of(label: str) -> str:
    """The protocol that a label names; `paper` for a plain name."""
    return label.split(" ")[0].partition("@")[2] or PAPER


def variant_of(label: str, variant: str | None) -> str | None:
    """The side of its paper or code that a policy is on; None for `paper` if the label names a protocol or setting."""
    name, *words = label.split(" ")
    is_plain = "@" not in name and all(word.startswith(_BESIDE) for word in words)
    return variant if is_plain or variant != PAPER else None


@lru_cache(maxsize=2**12)
def named_today(policy: str, variant: str | None, layout: str | None, score: str | None = None) -> Named:
    """Return today's names of the method of a row of schema 8 or earlier. A server's rows, which have no layout,
    stay as they are.
    """
    if layout is None:
        return Named(policy, None, variant, score)
    name, *words = policy.split(" ")
    settings = dict(word.split("=", 1) for word in words if "=" in word and not word.startswith(_BESIDE))
    own, protocol, today = _OF_PAPERS.get(name), PAPER, name_today(name)
    if own is not None and all(settings.get(key) == value for key, value in own.items()):
        words = [word for word in words if word.partition("=")[0] not in own]
    elif own is not None:
        protocol, today = COMMON, f"{today}@{COMMON}"
    label = " ".join((today, *words))
    return Named(label, protocol, variant_of(label, variant), score and _score_today(score))


def _score_today(label: str) -> str:
    """The label of a score, with the settings that it left out as a default of then, without today's."""
    name, *words = label.split(" ")
    for key, (before, now) in _DEFAULTS.get(name, {}).items():
        is_named = any(word.partition("=")[0] == key for word in words)
        words = [word for word in words if word != f"{key}={now}"] if is_named else [f"{key}={before}", *words]
    return " ".join((name, *words))
