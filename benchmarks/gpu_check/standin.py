"""A stand-in for jaxtyping where it is not installed: annotations then say nothing, which no computation notices."""

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Annotation:
    """`Float[Tensor, "heads tokens"]` is `Tensor`."""

    def __class_getitem__(cls, item: Any) -> Any:
        return item[0]


def stand_in() -> bool:
    """Make `import jaxtyping` work; returns whether that needed the stand-in. Before any import of kvbench."""
    if "jaxtyping" in sys.modules or find_spec("jaxtyping") is not None:
        return False
    module = ModuleType("jaxtyping")
    module.__getattr__ = _annotation  # type: ignore
    sys.modules["jaxtyping"] = module
    return True


def _annotation(name: str) -> Any:
    """Float, Int, and whatever else arrays are annotated with."""
    if name.startswith("_"):
        raise AttributeError(name)
    return _Annotation
