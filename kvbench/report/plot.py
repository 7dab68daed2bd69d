"""`kvbench report plot`: one picture of a kind, in a file."""

import importlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

from kvbench.report.plots.canvas import check_file, save, styled
from kvbench.report.plots.request import Request
from kvbench.report.reading import Warn
from kvbench.report.tables.where import check_where
from kvbench.support.errors import UserError
from kvbench.support.nearest import closest

KINDS = ("tradeoff", "bars", "perplexity", "needle", "kept", "split", "latency")


def plot(
    kind: str,
    results: str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    settings: Mapping[str, str] | None = None,
    warn: Warn = warnings.warn,
) -> None:
    """Draw ``kind`` into the file ``out`` (PDF, PNG or SVG by its name).

    ``settings``: those that the kind has, by name; all others select rows, with commas between values.

    Raises ValueError for a wrong kind, setting or file, FileNotFoundError where there are no rows, curves or kept sets,
    NothingSelected where no row is left or none has a value; then no file is written.
    """
    if kind not in KINDS:
        raise UserError(f"there is no plot {kind!r}; {closest(kind, KINDS)}")
    file = check_file(None if out is None else Path(out))
    module = importlib.import_module(f"kvbench.report.plots.{kind}")
    own, where = {}, {}
    for key, value in (settings or {}).items():
        if key in module.SETTINGS:
            if value not in module.SETTINGS[key]:
                raise UserError(f"{key}={value}: a {kind} plot has {key}={'|'.join(module.SETTINGS[key])}")
            own[key] = value
        else:
            where[key] = [one.strip() for one in value.split(",")]
    check_where(where)
    with styled():
        save(module.draw(Request(Path(results), where, own, warn)), file)
