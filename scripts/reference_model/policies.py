"""How far apart the model puts eviction methods: kvbench itself, one task, one small budget, every policy."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .wilson import wilson

POLICIES, SCORES = "full,streaming_llm,h2o_obcache,tova_obcache,snapkv,pyramidkv,ada_snapkv,lava,cake", "attn"
TASK, LENGTH, BUDGET = "ruler/niah_single_1", 512, 0.1


def policies(folder: Path, samples: int) -> list[dict[str, Any]]:
    """One line a policy and score: share of right answers at a tenth of the cache, with its 95 % interval."""
    from kvbench.records import read_rows

    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, "-m", "kvbench", "run", f"policy={POLICIES}", f"score={SCORES}", f"budget={BUDGET}"]
        command += ["model=hf", f"model.path={folder}", "model.dtype=float32", "model.threads=1", f"task={TASK}"]
        command += [f"task.samples={samples}", f"task.context_length={LENGTH}", f"results.dir={results}"]
        subprocess.run(command, check=True)
        groups: dict[tuple[str, str], list[float]] = {}
        for row in read_rows(results):
            groups.setdefault((row.policy, row.score or ""), []).append(row.value or 0.0)
    lines = []
    for (policy, score), values in groups.items():
        low, high = wilson(sum(values), len(values))
        mean = sum(values) / len(values)
        budget = 1.0 if policy == "full" else BUDGET
        lines.append({"policy": policy, "score": score, "budget": budget, "n": len(values), "mean": mean})
        lines[-1] |= {"low": round(low, 4), "high": round(high, 4)}
    return sorted(lines, key=lambda line: -line["mean"])
