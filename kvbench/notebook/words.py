"""Arguments of Python as words of the command line: names, numbers, budgets, scores and policies that are objects."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.config.entries import base_of, is_kind, is_object, takes_objects
from kvbench.config.given import word_of
from kvbench.config.overrides import format_value
from kvbench.eviction.budget import ByteBudget, FractionBudget, TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.support.errors import UserError

PLAIN = (str, int, float, bool, Path, np.generic, TokenBudget, FractionBudget, ByteBudget)
"""Types of a value that is written as it is."""
SEVERAL = (list, tuple, range, np.ndarray)
"""Types of an argument that stands for several values."""


def words_of(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as words of the command line; None is left out. An `Eviction` stands for policy, score and
    budget.

    Raises UserError for a value that is no setting.
    """
    return [
        f"{name}={','.join(_word(name, each) for each in value) if isinstance(value, SEVERAL) else _word(name, value)}"
        for name, value in _parts(settings).items()
        if value is not None
    ]


def lists_several(settings: Mapping[str, Any]) -> bool:
    """Return whether an argument stands for several values."""
    return any(isinstance(value, SEVERAL) for value in settings.values())


def _parts(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings, a policy that is an eviction by its parts."""
    eviction = settings.get("policy")
    if not isinstance(eviction, Eviction):
        return settings
    return {**settings, "policy": eviction.policy, "score": eviction.score, "budget": eviction.budget}


def _word(name: str, value: Any) -> str:
    if isinstance(value, type) and is_kind(name, value):
        raise UserError(f"{name}={value.__name__} is a class: give an object of it, {name}={value.__name__}()")
    if is_object(name, value):
        return word_of(name, value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, PLAIN):
        plain = isinstance(value, (str, int, float, bool)) or value is None
        return format_value(value if plain else str(value))
    if isinstance(value, (list, tuple, dict)):
        return format_value(value)
    objects = f", an object of {str(base_of(name)).rpartition('.')[2]}" if takes_objects(name) else ""
    raise UserError(f"{name}={type(value).__name__}(...): allowed: a text, a number{objects}, or a list of these")
