"""`bench.recommend(...)`: the report of `kvbench recommend` in Python."""

from pathlib import Path
from typing import Any

from kvbench.extras.recommend.recommend import need_of, recommend
from kvbench.extras.recommend.recommendation import report_of
from kvbench.notebook.bench import Bench
from kvbench.notebook.prompts import Prompts, task_words
from kvbench.notebook.report import NotebookReport
from kvbench.notebook.sweep import SCREEN, naming_stale
from kvbench.run.stale import Stale


def recommended(
    bench: Bench,
    data: Prompts,
    memory: str | None = None,
    loss: float = 2,
    requests: int = 1,
    *,
    results: str | Path | None = None,
    stale: Stale = "stop",
    **settings: Any,
) -> NotebookReport:
    """Return the report of `kvbench recommend`: the methods that are worth it for these prompts and this memory.

    data: as of `compare`. memory: bytes with a unit ("2GiB"), None: no limit. loss: points of the mean that may be
    lost. requests: at a time. results, stale, settings: as of `compare`; policy, score and budget name what is tried.

    Raises UserError and MissingFile, in one line, for what cannot be done.
    """
    words = bench.words(results, **settings)
    limits = {"loss": loss, "requests": requests, **({} if memory is None else {"memory": memory})}
    need = {name: str(value) for name, value in limits.items()}
    with naming_stale():
        found = recommend([*words, *task_words(data, words)], None, need_of(need), SCREEN, stale)
    return NotebookReport(report_of(found))
