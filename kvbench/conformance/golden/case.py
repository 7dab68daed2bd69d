"""Reading a case: every byte of the file's arrays against its checksum, then the arrays against each other."""

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.support.errors import UserError

AXES = ("layers", "query_heads", "kv_heads", "tokens", "head_dim")
ARRAYS = ("query", "key", "value", "scores", "lengths", "kept")
"""What a case of kind `prefill` holds besides its spec."""
INPUTS = {"query", "key", "value", "query_step", "key_step", "value_step", "query_repeat", "key_repeat"}
"""Arrays that must be finite."""
ANY = -1
"""An axis whose length the spec does not say."""


@dataclass(frozen=True)
class Case:
    """The arrays of a file and its spec."""

    spec: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def shape(self) -> dict[str, int]:
        """layers, query_heads, kv_heads, tokens, head_dim."""
        return self.spec["shape"]


def load(path: Path) -> Case:
    """Read a case. Raises ValueError for a file that is none, FileNotFoundError where there is none."""
    try:
        arrays = _read(path)
        spec = json.loads(str(arrays.pop("spec")), object_pairs_hook=_once)
    except FileNotFoundError:
        raise
    except Exception as error:  # what a damaged archive raises is anybody's guess: zlib.error, EOFError, struct.error
        raise UserError(f"{path} is no golden case: {_said(error)}") from error
    if not isinstance(spec, dict):
        raise UserError(f"{path} is no golden case: its spec is a {type(spec).__name__}, not an object")
    return Case(spec, arrays)


def check_arrays(case: Case, cache_heads: int, steps: int = 0, repeated: int = 0) -> None:
    """Raise ValueError unless the arrays are those of the spec's `shape`, finite, and of `total_pairs` kept pairs.

    `cache_heads` is how many heads the policy stores a cache for, `steps` how many cuts have arrays of their own. The
    last axis of those, `ANY` long, is as wide as the widest of them needs. `repeated` is how many rows repeat.
    """
    layers, query_heads, kv_heads, tokens, head_dim = (case.shape[axis] for axis in AXES)
    expected = {
        "query": ((layers, query_heads, tokens, head_dim), np.float32),
        "key": ((layers, kv_heads, tokens, head_dim), np.float32),
        "value": ((layers, kv_heads, tokens, head_dim), np.float32),
        "scores": ((layers, cache_heads, tokens), np.float64),
        "lengths": ((layers, cache_heads), np.int64),
        "kept": ((layers, cache_heads, tokens), np.bool_),
    }
    if repeated:
        expected |= {
            "query_repeat": ((layers, query_heads, repeated, head_dim), np.float32),
            "key_repeat": ((layers, kv_heads, repeated, head_dim), np.float32),
        }
    if steps:
        expected |= {
            "kept_positions": ((steps, layers, cache_heads, ANY), np.int64),
            "step_lengths": ((steps, layers, cache_heads), np.int64),
            "step_scores": ((steps, layers, cache_heads, ANY), np.float64),
        }
        if case.spec["schedule"]["state"] == "accumulate":
            expected["accumulator"] = ((steps, layers, cache_heads, ANY), np.float64)
    if case.spec["kind"] == "decode":
        expected |= {
            "query_step": ((steps, layers, query_heads, 1, head_dim), np.float32),
            "key_step": ((steps, layers, kv_heads, 1, head_dim), np.float32),
            "value_step": ((steps, layers, kv_heads, 1, head_dim), np.float32),
        }
    if absent := sorted(set(expected) - set(case.arrays)):
        raise UserError(f"array {', '.join(absent)} is missing")
    if unknown := sorted(set(case.arrays) - set(expected)):
        raise UserError(f"array {', '.join(unknown)} is not supported; legal: {', '.join(expected)}")
    for name, (shape, dtype) in expected.items():
        array = case.arrays[name]
        if array.ndim != len(shape) or any(
            want not in (size, ANY) for size, want in zip(array.shape, shape, strict=True)
        ):
            raise UserError(f"array {name} has shape {list(array.shape)}, expected {_axes(shape)} by the spec's shape")
        if array.dtype != dtype:
            raise UserError(f"array {name} is {array.dtype}, expected {np.dtype(dtype)}")
    for name in INPUTS & set(case.arrays):
        if not np.isfinite(case.arrays[name]).all():
            raise UserError(f"array {name} holds NaN or inf")
    for name in {"scores", "step_scores", "accumulator"} & set(case.arrays):
        if np.isinf(case.arrays[name]).any():
            raise UserError(f"array {name} holds inf")
    pairs = int(case.arrays["lengths"].sum())
    if pairs != case.spec["total_pairs"]:
        raise UserError(f"total_pairs is {case.spec['total_pairs']}, but the expected lengths sum to {pairs}")


def _axes(shape: tuple[int, ...]) -> str:
    return f"[{', '.join('*' if size == ANY else str(size) for size in shape)}]"


def _read(path: Path) -> dict[str, np.ndarray]:
    """Every array of the archive. Members are read to their end, because only there is the checksum compared."""
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            array = name.removesuffix(".npy")
            if array == name or array in arrays:
                raise UserError(f"{name} is {'no array' if array == name else 'in it twice'}")
            content = io.BytesIO(archive.read(name))
            arrays[array] = np.lib.format.read_array(content, allow_pickle=False)
            if content.read(1):
                raise UserError(f"{name} goes on after its array")
    return arrays


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, every key of which may stand there once."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise UserError(f"spec names a field twice: {', '.join(key for key, _ in pairs)}")
    return made


def _said(error: Exception) -> str:
    return f"no array {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
