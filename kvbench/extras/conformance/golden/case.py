"""A golden case of an eviction: one `.npz` file, read and checked, and the policy, score and cache that it describes.

Every byte of the arrays is checked against its checksum, every field of the spec is known or refused, and the arrays
must have the shapes that the spec says.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams, causal, observe, strongest
from kvbench.cache.kv_cache import KVCache, LayerCache, from_dense
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Group, Pool
from kvbench.eviction.scores.score import ContextRepetition, Score
from kvbench.extras.conformance.golden.verdict import is_number
from kvbench.extras.conformance.properties.caches import future_queries_of
from kvbench.support.errors import JSON_KINDS, UserError
from kvbench.support.text import closest
from kvbench.support.whole_file import check_unpacked

Span = tuple[int, int]
ArrayTypes = dict[str, tuple[tuple[int, ...], type]]
"""Shape and dtype of arrays, by name."""

AXES = ("layers", "query_heads", "kv_heads", "tokens", "head_dim")
INPUTS = {"query", "key", "value", "query_step", "key_step", "value_step", "query_repeat", "key_repeat"}
"""Arrays that must be finite."""
ANY = -1  # an axis whose length the spec does not say
SCHEDULES = {"prefill": None, "decode": "steps", "blockwise": "block"}
"""The kinds of cases, and the number that their schedule names."""
WORDS = {
    "kind": tuple(SCHEDULES),
    "variant": ("paper", "official"),
    "group": get_args(Group),
    "reduce": ("sum", "mean", "max"),
}
NUMBERS = {"sink": 0, "recent": 0, "budget_tokens": 1, "total_pairs": 0}
"""Fields that are whole numbers, and the least value of each."""
TOLERANCES = ("score_tolerance", "score_floor", "tie_tolerance")
PARAMETERS = {
    "mix": ("alpha",),
    "safeguard": ("alpha",),
    "pyramid": ("beta",),
    "preference": ("tau1", "tau2"),
    "lazy": ("published_threshold",),
}
"""The parameters of each kind of head or layer allocation; the other kinds have none."""
REQUIRED = ("name", "shape", "score", "window", "pool", "order", "heads", "layers", *WORDS, *NUMBERS, *TOLERANCES)
NOTES = ("notes", "seed")
"""Fields about the origin of a case; they change nothing."""
REPEAT_FIELDS = {"probe", "prefix", "chunks", "rows"}
"""Parameters of a score that is computed while the context is repeated."""


@dataclass(frozen=True)
class Case:
    """The spec and the arrays of a file."""

    spec: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def shape(self) -> dict[str, int]:
        """layers, query_heads, kv_heads, tokens, head_dim."""
        return self.spec["shape"]


class Repetition(NamedTuple):
    """The columns of each chunk, the rows that repeat it, and the number of first columns that all rows attend to."""

    prefix: int
    chunks: tuple[Span, ...]
    rows: tuple[Span, ...]


def load(path: Path) -> Case:
    """Read a case. Raises UserError for a file that is no case, FileNotFoundError if there is no file."""
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            check_unpacked(archive)
            for name in archive.namelist():
                array = name.removesuffix(".npy")
                if array == name or array in arrays:
                    raise UserError(f"{name} is {'no array' if array == name else 'in it twice'}")
                content = io.BytesIO(archive.read(name))  # to the end, because the checksum is compared only there
                arrays[array] = np.lib.format.read_array(content, allow_pickle=False)
                if content.read(1):
                    raise UserError(f"{name} has bytes after its array")
        spec = json.loads(str(arrays.pop("spec")), object_pairs_hook=_unique_keys)
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged archive raises almost anything: zlib.error, EOFError, struct.error
        reason = f"no array {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise UserError(f"{path} is not a golden case: {reason}") from error
    if not isinstance(spec, dict):
        raise UserError(f"{path} is not a golden case: its spec is {JSON_KINDS[type(spec)]}, not an object")
    return Case(spec, arrays)


def eviction_of(case: Case) -> Eviction:
    """Return the policy, score and budget that a spec describes.

    Raises UserError, naming it, for a field or an array that is missing, unknown, not supported or no match.
    """
    from kvbench.config.entries import ALLOCATION, step_settings  # Hydra's grammar takes a while to import
    from kvbench.config.policy_parts import kinds, steps_of

    spec, allocations = case.spec, kinds(ALLOCATION)
    _check_fields(spec)
    named = _parts("score", spec["score"], "name", "params")
    if not isinstance(named["name"], str) or not isinstance(named["params"], dict):
        raise UserError(f"score {named!r} is not supported; allowed: a name and an object of parameters")
    repetition = repetition_of(spec)
    score = make_score(named["name"], named["params"]) if repetition is None else make_score("kvzip", {})
    schedule = schedule_of(case)
    per_query_head = spec["group"] == "none" and (score.inputs.window or repetition is not None)
    policy = Policy(
        name=spec["name"],
        window=spec["window"],
        reduce=spec["reduce"],
        pool=None if spec["pool"] is None else Pool(**_parts("pool", spec["pool"], "kind", "size")),
        group=None if spec["group"] == "none" and not per_query_head else spec["group"],
        order=tuple(spec["order"]) if isinstance(spec["order"], list) else spec["order"],
        sink=spec["sink"],
        recent=spec["recent"],
        heads=_allocation("heads", spec["heads"], allocations["heads"]),
        layers=_allocation("layers", spec["layers"], allocations["layers"]),
        variant=spec["variant"],
        layout="query_heads" if per_query_head else "kv_heads",
        state=schedule.get("state", "overwrite"),
        slot_order=schedule.get("slot_order", "position"),
        steps=steps_of({name: spec[name] for name in step_settings() if name in spec}),
    )
    cache_heads = case.shape["query_heads" if per_query_head else "kv_heads"]
    repeating_rows = max(stop for _, stop in repetition.rows) if repetition else 0
    _check_arrays(case, _expected_arrays(case, cache_heads, repeating_rows, schedule, score))
    return Eviction(policy, score, TokenBudget(spec["budget_tokens"]))


def make_score(name: str, parameters: Mapping[str, Any]) -> Score:
    """Return the score of `conf/score/NAME.yaml`. Raises UserError for an unknown name or parameter."""
    from kvbench.config.entries import load_entry, options  # Hydra's grammar takes a while to import
    from kvbench.config.settings import build

    if name not in options("score"):
        raise UserError(f"score {name!r} is not supported; {closest(name, options('score'))}")
    node = load_entry("score", name)
    allowed = [key for key in node if key not in ("_target_", "name")]
    if unknown := [key for key in parameters if key not in allowed]:
        allowed_text = f"allowed: {', '.join(allowed)}" if allowed else "it takes none"
        raise UserError(f"parameter {', '.join(unknown)} of score {name} is not supported; {allowed_text}")
    plain = {key: value for key, value in node.items() if not str(value).startswith("${")}
    return build("score", plain | dict(parameters))


def cache_of(case: Case, eviction: Eviction) -> KVCache:
    """Return the cache that a model would return: every token, with the rows of the policy's window."""
    queries, keys, values = (torch.from_numpy(case.arrays[name]) for name in ("query", "key", "value"))
    rows, scaling = eviction.policy.rows(keys.shape[2]), keys.shape[3] ** -0.5
    layers: list[LayerCache] = []
    for index, (query, key, value) in enumerate(zip(queries[:, :, -rows:], keys, values, strict=True)):
        window = observe(query, causal(query, key, value, scaling), key, AttentionParams(scaling))
        layers.append(from_dense(index, query.shape[0], key, value, (window,)))
    if repetition := repetition_of(case.spec):
        repeat = eviction.score.inputs.repeat
        assert repeat is not None
        records = repeated_scores(case, repetition, repeat)
        layers = [replace(layer, recordings={repeat: record}) for layer, record in zip(layers, records, strict=True)]
    if (request := eviction.score.inputs.future_queries) is not None:
        layers = [
            replace(layer, future_queries=(future_queries_of(query[:, request.skip :], scaling),))
            for layer, query in zip(layers, queries, strict=True)
        ]
    for name in eviction.score.inputs.projections:
        matrices = torch.from_numpy(case.arrays[f"{name}_projection"])
        layers = [
            replace(layer, projections={**layer.projections, name: matrix})
            for layer, matrix in zip(layers, matrices, strict=True)
        ]
    return KVCache(tuple(layers), keys.shape[2])


def repetition_of(spec: dict[str, Any]) -> Repetition | None:
    """Return the repetition that a spec describes, or None. Raises ValueError for one that is not allowed."""
    params = spec["score"]["params"]
    if params.get("probe") is None:
        return None
    tokens = spec["shape"]["tokens"]
    if spec["score"]["name"] != "attn_max" or params["probe"] != "repeat" or set(params) != REPEAT_FIELDS:
        raise UserError(
            f"score {spec['score']!r} is not supported; allowed with a probe: attn_max, {sorted(REPEAT_FIELDS)}"
        )
    if spec["kind"] != "prefill":
        raise UserError(f"probe repeat is not supported in a case of kind {spec['kind']}; allowed: prefill")
    prefix = params["prefix"]
    if not isinstance(prefix, int) or isinstance(prefix, bool) or not 0 <= prefix <= tokens:
        raise UserError(f"prefix {prefix!r} is not allowed; allowed: an integer up to {tokens}")
    chunks, rows = _spans("chunks", params["chunks"], tokens), _spans("rows", params["rows"], None)
    if len(chunks) != len(rows):
        raise UserError(f"{len(chunks)} chunks, but rows for {len(rows)}")
    return Repetition(prefix, chunks, rows)


def repeated_scores(case: Case, repetition: Repetition, repeat: ContextRepetition) -> list[Tensor]:
    """Return the scores that KVzip records per layer: [query heads, tokens], NaN for columns outside the chunks."""
    arrays = (torch.from_numpy(case.arrays[name]) for name in ("query_repeat", "key_repeat", "key"))
    records, rule, prefix = [], AttentionParams(case.shape["head_dim"] ** -0.5), repetition.prefix
    for queries, repeated, keys in zip(*arrays, strict=True):
        record = torch.full((queries.shape[0], keys.shape[1]), torch.nan)
        record[:, :prefix] = 0
        for (start, stop), (first, last) in zip(repetition.chunks, repetition.rows, strict=True):
            attended = torch.cat((keys[:, :prefix], keys[:, start:stop], repeated[:, first:last]), dim=1)
            columns = slice(prefix, prefix + stop - start)
            record[:, start:stop] = strongest(queries[:, first:last], attended, columns, rule, repeat.softmax)
        records.append(record)
    return records


def schedule_of(case: Case) -> dict[str, Any]:
    """Return the schedule of evictions after the first, {} without any. Raises UserError for a value that is not
    allowed.
    """
    number = SCHEDULES[case.spec["kind"]]
    if number is None:
        return {}
    if "schedule" not in case.spec:
        raise UserError(f"field schedule is missing in a case of kind {case.spec['kind']}")
    spec = case.spec["schedule"]
    optional = ("slot_order", "answer_budget") if number == "steps" else ("slot_order",)
    named = [name for name in optional if isinstance(spec, dict) and name in spec]
    schedule = _parts("schedule", spec, number, "state", *named)
    for name in (number, *(["answer_budget"] if "answer_budget" in named else [])):
        _check_whole(f"schedule.{name}", schedule[name], 1)
    return schedule


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise UserError(f"spec names a field twice: {', '.join(key for key, _ in pairs)}")
    return dict(pairs)


def _expected_arrays(
    case: Case, cache_heads: int, repeating_rows: int, schedule: dict[str, Any], score: Score
) -> ArrayTypes:
    """Shape and dtype of every array. The last axis of the arrays of each step is `ANY`: padded to the longest head."""
    layers, query_heads, kv_heads, tokens, head_dim = (case.shape[axis] for axis in AXES)
    stored = (layers, cache_heads)
    steps = -(-tokens // schedule["block"]) if "block" in schedule else schedule.get("steps", 0)
    arrays: ArrayTypes = {
        "query": ((layers, query_heads, tokens, head_dim), np.float32),
        "key": ((layers, kv_heads, tokens, head_dim), np.float32),
        "value": ((layers, kv_heads, tokens, head_dim), np.float32),
        "scores": ((*stored, tokens), np.float64),
        "lengths": (stored, np.int64),
        "kept": ((*stored, tokens), np.bool_),
    }
    if repeating_rows:
        arrays["query_repeat"] = ((layers, query_heads, repeating_rows, head_dim), np.float32)
        arrays["key_repeat"] = ((layers, kv_heads, repeating_rows, head_dim), np.float32)
    for name in score.inputs.projections:
        width = query_heads * head_dim
        arrays[f"{name}_projection"] = ((layers, *((ANY, width) if name == "output" else (width, ANY))), np.float32)
    if steps:
        arrays["kept_positions"] = ((steps, *stored, ANY), np.int64)
        arrays["step_lengths"] = ((steps, *stored), np.int64)
        arrays["step_scores"] = ((steps, *stored, ANY), np.float64)
        if schedule["state"] == "accumulate":
            arrays["accumulator"] = ((steps, *stored, ANY), np.float64)
    if case.spec["kind"] == "decode":
        arrays["query_step"] = ((steps, layers, query_heads, 1, head_dim), np.float32)
        arrays["key_step"] = ((steps, layers, kv_heads, 1, head_dim), np.float32)
        arrays["value_step"] = ((steps, layers, kv_heads, 1, head_dim), np.float32)
    return arrays


def _check_arrays(case: Case, expected: ArrayTypes) -> None:
    """Raise ValueError unless the arrays are the expected ones, finite, and of `total_pairs` kept pairs."""
    if absent := sorted(set(expected) - set(case.arrays)):
        raise UserError(f"array {', '.join(absent)} is missing")
    if unknown := sorted(set(case.arrays) - set(expected)):
        raise UserError(f"array {', '.join(unknown)} is not supported; allowed: {', '.join(expected)}")
    for name, (shape, dtype) in expected.items():
        array = case.arrays[name]
        if array.ndim != len(shape) or any(
            want not in (size, ANY) for size, want in zip(array.shape, shape, strict=True)
        ):
            axes = ", ".join("*" if size == ANY else str(size) for size in shape)
            raise UserError(f"array {name} has shape {list(array.shape)}, expected [{axes}] by the spec's shape")
        if array.dtype != dtype:
            raise UserError(f"array {name} is {array.dtype}, expected {np.dtype(dtype)}")
        if name in INPUTS and not np.isfinite(array).all():
            raise UserError(f"array {name} holds NaN or inf")
        if np.isinf(array).any():
            raise UserError(f"array {name} holds inf")
    pairs = int(case.arrays["lengths"].sum())
    if pairs != case.spec["total_pairs"]:
        raise UserError(f"total_pairs is {case.spec['total_pairs']}, but the expected lengths sum to {pairs}")


def _check_fields(spec: dict[str, Any]) -> None:
    if absent := [field for field in REQUIRED if field not in spec]:
        raise UserError(f"field {', '.join(absent)} is missing")
    for field, words in WORDS.items():
        _check_word(field, spec[field], words)
    from kvbench.config.entries import step_settings

    allowed = (*REQUIRED, *NOTES, *(("schedule",) if SCHEDULES[spec["kind"]] else step_settings()))
    if unknown := [field for field in spec if field not in allowed]:
        kind = f"in a case of kind {spec['kind']}"
        raise UserError(f"field {', '.join(unknown)} is not supported {kind}; allowed: {', '.join(allowed)}")
    if spec["window"] != "all":
        _check_whole("window", spec["window"], 1, "all, or ")
    if not isinstance(spec["name"], str):
        raise UserError(f"name {spec['name']!r} is not allowed; allowed: a text")
    for field, least in NUMBERS.items():
        _check_whole(field, spec[field], least)
    for axis, size in _parts("shape", spec["shape"], *AXES).items():
        _check_whole(f"shape.{axis}", size, 1)
    if spec["shape"]["query_heads"] % spec["shape"]["kv_heads"]:
        raise UserError(f"shape.query_heads {spec['shape']['query_heads']} is not a multiple of shape.kv_heads")
    for field in TOLERANCES:
        value = spec[field]
        if not is_number(value) or not isfinite(value) or not 0 < value < 1:
            raise UserError(f"{field} {value!r} is not allowed; allowed: a number above 0 and below 1")


def _allocation(field: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """Return a head or layer allocation: an object of its kind and exactly its parameters, which are numbers."""
    if not isinstance(value, dict):
        raise UserError(f"{field} {value!r} is not supported; allowed: an object of a kind and its parameters")
    by_kind = {kind().kind: kind for kind in kinds}
    _check_word(f"{field}.kind", value.get("kind"), tuple(by_kind))
    parts = _parts(field, value, "kind", *PARAMETERS.get(value["kind"], ()))
    for name, number in parts.items():
        if name != "kind" and not is_number(number):
            raise UserError(f"{field}.{name} {number!r} is not supported; allowed: a number")
    return by_kind[value["kind"]](**parts)


def _spans(name: str, value: Any, most: int | None) -> tuple[Span, ...]:
    """Ascending spans that do not overlap and are not empty, none beyond `most`."""

    def is_span(span: Any) -> bool:
        integers = isinstance(span, list) and len(span) == 2 and all(type(number) is int for number in span)
        return integers and 0 <= span[0] < span[1] and (most is None or span[1] <= most)

    spans = isinstance(value, list) and value and all(map(is_span, value))
    if not spans or any(before[1] > after[0] for before, after in pairwise(value)):
        raise UserError(f"{name} {value!r} is not allowed; allowed: pairs of integers, in order")
    return tuple((start, stop) for start, stop in value)


def _check_word(field: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{field} {value!r} is not supported; allowed: {', '.join(allowed)}")


def _check_whole(field: str, value: Any, least: int, words: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{field} {value!r} is not supported; allowed: {words}an integer, {least} or more")


def _parts(field: str, value: Any, *names: str) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(names):
        raise UserError(
            f"{field} {value!r} is not supported; allowed: an object of {', '.join(names)} and nothing else"
        )
    return value
