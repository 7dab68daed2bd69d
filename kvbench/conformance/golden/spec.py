"""From the spec of a case to the policy, score, budget and cache of a run; every field is known or refused."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any, get_args

import torch
from torch import Tensor

from kvbench.cache.attention import causal, observe
from kvbench.cache.kv_cache import KVCache, LayerCache, from_dense
from kvbench.conformance.golden.case import AXES, Case, check_arrays
from kvbench.conformance.golden.repeat import probed, repetition_of
from kvbench.eviction.allocation.heads import HeadAllocation
from kvbench.eviction.allocation.layers import LayerAllocation
from kvbench.eviction.budget import Tokens
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Group, Pool
from kvbench.eviction.scores.score import Score
from kvbench.support.errors import UserError

MakeScore = Callable[[str, Mapping[str, Any]], Score]
"""A score by name and parameters; raises ValueError for one that does not exist."""

SCHEDULES = {"prefill": None, "decode": "steps", "blockwise": "block"}
"""The kinds of cases, and what their schedule counts."""
WORDS = {
    "kind": tuple(SCHEDULES),
    "variant": ("paper", "official"),
    "group": get_args(Group),
    "reduce": ("sum", "mean", "max"),
}
NUMBERS = {"sink": 0, "recent": 0, "budget_tokens": 1, "total_pairs": 0}
"""Fields that are whole numbers, and the least they may be."""
TOLERANCES = ("score_tolerance", "score_floor", "tie_tolerance")
PARAMETERS = {"mix": ("alpha",), "safeguard": ("alpha",), "pyramid": ("beta",), "preference": ("tau1", "tau2")}
"""What a head or layer allocation of a kind is described by; the others by nothing."""
REQUIRED = ("name", "shape", "score", "window", "pool", "order", "heads", "layers", *WORDS, *NUMBERS, *TOLERANCES)
NOTES = ("notes", "seed")
"""Fields that say where a case comes from and change nothing."""


def eviction_of(case: Case, make_score: MakeScore) -> Eviction:
    """The policy, score and budget that a spec describes.

    Raises ValueError, naming the field, for one that is missing, unknown or not supported, and for arrays that are not
    those of the spec.
    """
    spec = case.spec
    _check_fields(spec)
    named = _parts("score", spec["score"], "name", "params")
    if not isinstance(named["name"], str) or not isinstance(named["params"], dict):
        raise UserError(f"score {named!r} is not supported; legal: a name and an object of parameters")
    repetition = repetition_of(spec)
    score = make_score(named["name"], named["params"]) if repetition is None else make_score("kvzip", {})
    schedule = schedule_of(case)
    apart = spec["group"] == "none" and (score.evidence.window or repetition is not None)
    policy = Policy(
        name=spec["name"],
        window=spec["window"],
        reduce=spec["reduce"],
        pool=None if spec["pool"] is None else Pool(**_parts("pool", spec["pool"], "kind", "size")),
        group=None if spec["group"] == "none" and not apart else spec["group"],
        order=tuple(spec["order"]) if isinstance(spec["order"], list) else spec["order"],
        sink=spec["sink"],
        recent=spec["recent"],
        heads=_split("heads", spec["heads"], get_args(HeadAllocation)),
        layers=_split("layers", spec["layers"], get_args(LayerAllocation)),
        variant=spec["variant"],
        layout="query_heads" if apart else "kv_heads",
        state=schedule.get("state", "overwrite"),
        slot_order=schedule.get("slot_order", "position"),
    )
    check_arrays(
        case,
        case.shape["query_heads" if apart else "kv_heads"],
        step_count(case),
        repetition.length if repetition else 0,
    )
    return Eviction(policy, score, Tokens(spec["budget_tokens"]))


def schedule_of(case: Case) -> dict[str, Any]:
    """What the spec says of cuts after the first, {} where there are none. Raises ValueError for what is not legal."""
    counted = SCHEDULES[case.spec["kind"]]
    if counted is None:
        return {}
    if "schedule" not in case.spec:
        raise UserError(f"field schedule is missing in a case of kind {case.spec['kind']}")
    given = case.spec["schedule"]
    ordered = isinstance(given, dict) and "slot_order" in given
    schedule = _parts("schedule", given, counted, "state", *(("slot_order",) if ordered else ()))
    _whole(f"schedule.{counted}", schedule[counted], 1)
    return schedule


def step_count(case: Case) -> int:
    """How many cuts follow the first, or, block by block, how many there are."""
    schedule = schedule_of(case)
    if "block" in schedule:
        return -(-case.shape["tokens"] // schedule["block"])
    return schedule.get("steps", 0)


def cache_of(case: Case, eviction: Eviction) -> KVCache:
    """The cache a model would hand over: every token, and the voting rows as evidence."""
    queries, keys, values = (torch.from_numpy(case.arrays[name]) for name in ("query", "key", "value"))
    rows = eviction.policy.rows(keys.shape[2])
    layers = [_layer(index, *layer, rows=rows) for index, layer in enumerate(zip(queries, keys, values, strict=True))]
    if repetition := repetition_of(case.spec):
        repeat = eviction.score.evidence.repeat
        assert repeat is not None
        records = probed(case, repetition, repeat)
        layers = [replace(layer, probed={repeat: record}) for layer, record in zip(layers, records, strict=True)]
    return KVCache(tuple(layers), keys.shape[2])


def _layer(index: int, queries: Tensor, keys: Tensor, values: Tensor, rows: int) -> LayerCache:
    scaling = keys.shape[-1] ** -0.5
    voting = queries[:, -rows:]
    window = observe(voting, causal(voting, keys, values, scaling), keys, scaling)
    return from_dense(index, queries.shape[0], keys, values, (window,))


def _check_fields(spec: dict[str, Any]) -> None:
    """Everything that can be said of the fields one by one."""
    if absent := [field for field in REQUIRED if field not in spec]:
        raise UserError(f"field {', '.join(absent)} is missing")
    for field, legal in WORDS.items():
        _require(field, spec[field], legal)
    legal = (*REQUIRED, *NOTES, *(("schedule",) if SCHEDULES[spec["kind"]] else ()))
    if unknown := [field for field in spec if field not in legal]:
        where = f"is not supported in a case of kind {spec['kind']}"
        raise UserError(f"field {', '.join(unknown)} {where}; legal: {', '.join(legal)}")
    if spec["window"] != "all":
        _whole("window", spec["window"], 1, "all, or ")
    if not isinstance(spec["name"], str):
        raise UserError(f"name {spec['name']!r} is not legal; legal: a text")
    for field, least in NUMBERS.items():
        _whole(field, spec[field], least)
    for axis, size in _parts("shape", spec["shape"], *AXES).items():
        _whole(f"shape.{axis}", size, 1)
    if spec["shape"]["query_heads"] % spec["shape"]["kv_heads"]:
        raise UserError(f"shape.query_heads {spec['shape']['query_heads']} is no multiple of shape.kv_heads")
    for field in TOLERANCES:
        value = spec[field]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or not 0 < value < 1:
            raise UserError(f"{field} {value!r} is not legal; legal: a number above 0 and below 1")


def _split(field: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """A head or layer allocation: an object of its kind and exactly its parameters, which are numbers."""
    if not isinstance(value, dict):
        raise UserError(f"{field} {value!r} is not supported; legal: an object of a kind and its parameters")
    by_kind = {kind().kind: kind for kind in kinds}
    _require(f"{field}.kind", value.get("kind"), tuple(by_kind))
    kind = by_kind[value["kind"]]
    parts = _parts(field, value, "kind", *PARAMETERS.get(value["kind"], ()))
    for name, number in parts.items():
        if name != "kind" and (isinstance(number, bool) or not isinstance(number, (int, float))):
            raise UserError(f"{field}.{name} {number!r} is not supported; legal: a number")
    return kind(**parts)


def _require(field: str, value: Any, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise UserError(f"{field} {value!r} is not supported; legal: {', '.join(legal)}")


def _whole(field: str, value: Any, least: int, words: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{field} {value!r} is not supported; legal: {words}a whole number, {least} or more")


def _parts(field: str, value: Any, *names: str) -> dict[str, Any]:
    """An object with exactly these names."""
    if not isinstance(value, dict) or set(value) != set(names):
        raise UserError(f"{field} {value!r} is not supported; legal: an object of {', '.join(names)} and nothing else")
    return value
