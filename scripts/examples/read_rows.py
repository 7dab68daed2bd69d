"""Rows with pandas: the committed ones of the embedded model, 100 prompts a task.

    python scripts/examples/read_rows.py [ROWS.parquet]

A run's own folder is read alike: `kvbench report rows --results DIR --out rows.parquet`. Columns are those of
kvbench/records/row.py.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas

from kvbench.report.rows import describer

ROWS = Path(__file__).resolve().parents[2] / "results" / "reference" / "main.parquet"
TASK = "ruler/fwe"
POLICIES, SCORES = ("h2o_obcache", "snapkv@common", "tova_obcache"), ("attn", "vatp", "obcache_joint", "exact_removal")
BUDGETS = ["0.2", "0.4"]


def main(arguments: Sequence[str] = ()) -> None:
    """A table, a paired difference, and the settings behind a row."""
    path = Path(arguments[0]) if arguments else ROWS
    frame: Any = pandas.read_parquet(path)
    frame = frame[frame["error"].isna()]
    print(f"{len(frame)} rows of {frame['cell'].nunique()} cells, {frame['task'].nunique()} tasks\n")

    own = frame[(frame["task"] == TASK) & frame["policy"].isin(POLICIES) & frame["score"].isin(SCORES)]
    table = own.pivot_table("value", ["policy", "score"], "budget", "mean")[BUDGETS] * 100
    print(f"{TASK}, words found in % by budget\n{table.round(1).to_string()}\n")

    print("what a budget of a tenth holds")
    held = frame[(frame["budget"] == "0.1") & (frame["policy"] == "snapkv@common") & (frame["score"] == "attn")]
    sizes = held.groupby("task")[["kept_fraction", "cache_bytes", "full_cache_bytes"]].mean()
    print(f"{sizes.round(3).to_string()}\n")

    # Two cells are compared prompt by prompt: both have read the same ones.
    alike = frame[(frame["policy"] == "snapkv@common") & (frame["budget"] == "0.4")]
    columns = ["task", "context_length", "sample", "prompt_sha256", "value"]
    attn, obcache = (alike.loc[alike["score"] == score, columns] for score in ("attn", "obcache_joint"))
    both = attn.merge(obcache, on=columns[:-1], suffixes=("_attn", "_obcache"))
    paired = both.groupby("task", as_index=False).agg(
        n=("sample", "size"), attn=("value_attn", "mean"), obcache_joint=("value_obcache", "mean")
    )
    wins = both["value_attn"] - both["value_obcache"]
    paired["attn_better"] = (wins > 0).groupby(both["task"]).sum().to_numpy()
    paired["obcache_better"] = (wins < 0).groupby(both["task"]).sum().to_numpy()
    print(f"snapkv@common at 0.4, prompt by prompt\n{paired.round(3).to_string(index=False)}\n")

    cell = held["cell"].iloc[0]
    settings = describer(path)(cell)  # the descriptions of cells travel with the rows
    assert settings is not None
    print(f"cell {cell}: window {settings['policy']['window']}, pool {settings['policy']['pool']}")
    print(f"read by a model with SHA-256 {settings['model']['sha256'][:12]}..., {settings['task']['version']}")


if __name__ == "__main__":
    main(sys.argv[1:])
