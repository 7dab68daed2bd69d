"""Bytes that kernels load in Triton's interpreter, by array: each element that a mask lets through counts."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Tensor
from triton.runtime import interpreter


@contextmanager
def counted(arrays: Mapping[str, Tensor]) -> Iterator[dict[str, int]]:
    """The bytes loaded from each array while the context lasts, and those of all `others`."""
    found = dict.fromkeys((*arrays, "others"), 0)
    load: Callable[..., Any] = interpreter.InterpreterBuilder.create_masked_load

    def count(self: Any, places: Any, mask: Any, *options: Any) -> Any:
        read = places.data[np.broadcast_to(mask.data, places.data.shape)]
        size, rest = places.get_element_ty().primitive_bitwidth // 8, len(read)
        for name, array in arrays.items():
            first = array.data_ptr()
            inside = int(((read >= first) & (read < first + array.nbytes)).sum())
            found[name] += inside * size
            rest -= inside
        found["others"] += rest * size
        return load(self, places, mask, *options)

    with patch.object(interpreter.InterpreterBuilder, "create_masked_load", count):
        yield found
