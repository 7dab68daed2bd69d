"""Packages that a metric is defined by, at the release that defines it: another one is another metric.

They are imported when a metric needs them and not before.
"""

import importlib
import warnings
from importlib import metadata
from typing import Any

from kvbench.support.errors import UserError

FIX = "pip install 'kvbench[benchmarks]'"


def pinned(package: str, version: str, module: str | None = None) -> Any:
    """The module of a package at exactly this version. What a package warns of when it is imported is not passed on.

    Raises:
        ValueError: it is not installed, or at another version.
    """
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise UserError(f"the metric is that of {package} {version}, which is not installed; run: {FIX}") from None
    if found != version:
        raise UserError(f"the metric is that of {package} {version}, installed is {found}; run: {FIX}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module or package)
