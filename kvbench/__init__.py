"""kvbench: an evaluation bench for key-value cache eviction in long-context inference.

Importing the package imports nothing else: rooms are entered by name (`kvbench.eviction.evict`, `kvbench.report`), so
that a command that only prints help, lists names or reads rows never pays for torch. `kvbench.Bench`, `evict`,
`generate`, `plot_kept` and `run` are imported when they are used; `run` is also a package, which can be called.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from kvbench.support import __version__

__all__ = ["__version__"]
WHERE = {
    "Bench": "kvbench.notebook.bench",
    "evict": "kvbench.notebook.in_memory",
    "generate": "kvbench.notebook.in_memory",
    "plot_kept": "kvbench.notebook.in_memory",
}
"""What is imported when it is used, and the module that has it."""


class _Run(ModuleType):
    """The package `kvbench.run` as a function."""

    def __call__(self, *words: str, **settings: Any) -> Any:
        return import_module("kvbench.notebook.sweep").run(*words, **settings)


class _Kvbench(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "run" and type(value) is ModuleType:  # set by the import of the package
            value.__class__ = _Run
        super().__setattr__(name, value)


def __dir__() -> list[str]:
    return sorted((*__all__, *WHERE, "run"))


def __getattr__(name: str) -> Any:
    if name == "run":
        return import_module("kvbench.run")
    if name in WHERE:
        return getattr(import_module(WHERE[name]), name)
    raise AttributeError(f"module 'kvbench' has no attribute {name!r}")


sys.modules[__name__].__class__ = _Kvbench
