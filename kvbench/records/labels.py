"""The label of a policy: it says its name, its protocol, and the side of its paper or code that it is on."""

from kvbench.support.plugins import held_groups

PAPER, COMMON = "paper", "common"
"""The protocols: each policy as its paper or code has it; one window, newest tokens and pool for all."""


def policy_of(label: str) -> str:
    """Return the name of the policy that a label is of: its first word, without the protocol."""
    return label.split(" ")[0].partition("@")[0]


def protocol_of(label: str) -> str:
    """Return the protocol that a label names; `paper` for a plain name."""
    return label.split(" ")[0].partition("@")[2] or PAPER


def variant_of(label: str, variant: str | None) -> str | None:
    """Return the side of its paper or code that a policy is on.

    None for `paper` if the label names a protocol or a setting; what holds the kept pairs is no setting of a policy.
    """
    name, *words = label.split(" ")
    is_plain = "@" not in name and {word.partition("=")[0].partition(".")[0] for word in words} <= held_groups().keys()
    return variant if is_plain or variant != PAPER else None
