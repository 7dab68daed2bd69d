"""The protocols of `conf/protocols.yaml`: what they put over the settings that the file of a policy says."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from yaml import safe_load

from kvbench.config.given import names_object
from kvbench.support import paths


@dataclass(frozen=True)
class Protocol:
    """policy: values that all policies share, by setting. unless: values with which a policy lacks the setting."""

    policy: Mapping[str, Any]
    unless: Mapping[str, list[Any]]

    def over(self, policy: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a policy, with the shared value of all that it has; an object is as it is."""
        if names_object(policy["_target_"]):
            return dict(policy)
        shared = {name: value for name, value in self.policy.items() if policy.get(name) not in self.unless[name]}
        return {**policy, **shared}


@cache
def protocols() -> dict[str, Protocol]:
    """Return every protocol by its name, the one that runs have by default first."""
    return {name: Protocol(**node) for name, node in safe_load((paths.conf() / "protocols.yaml").read_text()).items()}
