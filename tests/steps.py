"""Policies with the settings of steps, as keywords beside their own fields."""

from dataclasses import replace
from typing import Any

from kvbench.config.entries import step_settings
from kvbench.config.policy_parts import kinds, settings_of, steps_of
from kvbench.eviction.policy import Policy


def with_steps(policy: Policy, **changes: Any) -> Policy:
    """The policy with other values of its fields and of the settings of steps; a part is given as a step."""
    now = {name: value for name, value in settings_of(policy).items() if name in step_settings()}
    for part, each in kinds().items():
        now[part] = next((step for step in policy.steps if type(step) in each), each[0]())
    now |= {name: changes.pop(name) for name in list(changes) if name in step_settings()}
    return replace(policy, steps=steps_of(now), **changes)
