"""Optional packages that define a metric. Another release is another metric, so the release is checked.

They are imported when a metric needs them.
"""

import importlib
import warnings
from functools import lru_cache
from importlib import metadata
from typing import Any

from kvbench.support.errors import UserError

FIX = "pip install 'kvbench[benchmarks]'"


def pinned(package: str, version: str, module: str | None = None) -> Any:
    """The module of a package at exactly this version, imported without its warnings.

    Raises UserError: it is not installed, or at another version.
    """
    try:
        installed = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise UserError(f"the metric is that of {package} {version}, which is not installed; run: {FIX}") from None
    if installed != version:
        raise UserError(f"the metric is that of {package} {version}, installed is {installed}; run: {FIX}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module or package)


@lru_cache
def rouge_scorer(task: str, kind: str, use_stemmer: bool) -> Any:
    """A scorer of rouge-score for one kind of ROUGE. Raises UserError that names `task` if it is not installed."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ModuleNotFoundError:
        raise UserError(f"{task} needs rouge-score; run: {FIX}") from None
    return RougeScorer([kind], use_stemmer=use_stemmer)
