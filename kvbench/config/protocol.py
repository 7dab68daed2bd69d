"""`protocol`: window, newest tokens and pooling of policies, the same for all or those of each policy's own file."""

from typing import Any

from kvbench.config.overrides import written
from kvbench.support.errors import UserError

COMMON = {"window": 16, "recent": 16, "pool": {"kind": "max", "size": 7}}
"""What policies share with `protocol=common`."""
LACKING = {"window": (None, 1, "all", "question"), "recent": (None, 0, "question"), "pool": (None,)}
"""Values that say that a policy has no window, protects no newest tokens or pools nothing, or that both are the
question; these stay."""


def under(tree: dict[str, Any], protocol: Any) -> dict[str, Any]:
    """A tree whose policy is as its file says, under a protocol. Raises UserError for another one."""
    if protocol not in ("common", "paper"):
        raise UserError(f"protocol={written(protocol)}: allowed: common, paper")
    policy = as_common(tree["policy"]) if protocol == "common" else tree["policy"]
    return {**tree, "policy": policy, "protocol": protocol}


def as_common(policy: dict[str, Any]) -> dict[str, Any]:
    """What the file of a policy says, with the common value of all that the policy has."""
    shared = {name: value for name, value in COMMON.items() if policy.get(name) not in LACKING[name]}
    return {**policy, **shared}
