"""Tool calls in a generated text, and when they equal recorded ones."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvbench.extras.trajectories.trajectory import Call
from kvbench.tasks.jsonl import unrepeated


def calls_in(text: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tool calls of a generated text, in order: each object of JSON with `name` and `arguments` or
    `parameters`.

    It may stand in other text, and in an object that is no call.
    """
    decoder, calls, place = json.JSONDecoder(object_pairs_hook=unrepeated, parse_constant=_refuse), [], text.find("{")
    while place >= 0:
        following = place + 1
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            pass
        else:
            if (call := call_of(value)) is not None:
                calls.append(call)
                following = end
        place = text.find("{", following)
    return calls


def call_of(value: Any) -> tuple[str, Mapping[str, Any]] | None:
    """Name and arguments, which may be JSON in a text; None for anything else."""
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, object_pairs_hook=unrepeated, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return None
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def match(text: str, recorded: Sequence[Call]) -> bool:
    """Return whether the first calls of a text equal the recorded ones, in their order: same name, same arguments."""
    calls = calls_in(text)[: len(recorded)]
    expected = [(call.name, json.loads(call.arguments)) for call in recorded]
    return len(calls) == len(expected) and all(
        name == other and same_json(arguments, others)
        for (name, arguments), (other, others) in zip(calls, expected, strict=True)
    )


def same_json(first: Any, second: Any) -> bool:
    """Return whether two values of JSON are equal: objects whatever the order of their keys, numbers by value (1 is
    1.0), true and 1 not.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same_json(value, second[key]) for key, value in first.items())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same_json, first, second))
    return isinstance(first, bool) == isinstance(second, bool) and first == second


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
