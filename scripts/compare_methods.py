"""docs/reference/methods-compared.md: scores of kvbench and presses of kvpress, by recall of the error and by cost.

python scripts/compare_methods.py run FOLDER     # the commands of the page (kvpress must be installed), and the costs
python scripts/compare_methods.py pack FOLDER    # FOLDER to results/methods.parquet
python scripts/compare_methods.py page           # the page's table and picture, from results/methods.parquet alone
"""

import json
import shlex
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import torch
from matplotlib.figure import Figure

from kvbench.cli.main import main as kvbench
from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.extras.probes.scene import Scene
from kvbench.models.loading.load import load, model_info
from kvbench.records import read_rows
from kvbench.report.plots.canvas import save, styled
from kvbench.report.stats.intervals import mean_interval
from kvbench.run.cell import Cell
from kvbench.run.plan import plan
from kvbench.run.prefill_job import prefill, prompt_of

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "results" / "methods.parquet"
PAGE, PICTURE = ROOT / "docs" / "reference" / "methods-compared.md", ROOT / "docs" / "images" / "methods-compared.png"
BEGIN, END = "<!-- methods -->", "<!-- end of methods -->"
SHORT = "task.max_new_tokens=12"  # right answers are shorter
COMMON = "policy=plain task.samples=20 task.context_length=1024"
NATIVE = (
    "attn,attn_max,cake,caote,cap,compactor,compactor_vllm,criticalkv,cur,exact_removal,exact_zeroed,expected_attention,"
    "fastcaote,finch,key_diff,key_norm,kvzip,kvzip_logit,kvzip_plus,lagkv,lava,leverage,non_causal,obcache_joint,"
    "obcache_key,obcache_value,random,recency,rkv,vatp"
)
PRESSES = (
    "CapPress,CompactorPress,CURPress,ExpectedAttentionPress,KeyDiffPress,KnormPress,LagKVPress,LeverageScorePress,"
    "NonCausalAttnPress,RandomPress,SnapKVPress,StreamingLLMPress,TOVAPress"
)
SCORES = (
    f"score={NATIVE}",
    "score=triattention score.statistics=FOLDER/queries.safetensors",
    f"score=kvpress score.press={PRESSES}",
    "score=kvpress score.press=FinchPress score.args.window_size=16",
    "score=kvpress score.press=CriticalKVPress score.args.press=SnapKVPress",
)
PROBE = (
    "probe oracle_recall probe.windows=16 probe.recents=0 policy.layout=kv_heads budget=40 "
    f"task=ruler/niah_single_1,ruler/niah_multikey_2 {SHORT} model.max_batch=64"
)
RUNS = (
    f"run budget=0.1 task=ruler/niah_single_1 {SHORT}",
    f"run budget=0.2 task=ruler/niah_multikey_2 {SHORT}",
    "run budget=0.4 task=ruler/fwe task.max_new_tokens=24",
)
CALIBRATED = f"task=ruler/niah_single_1 task.context_length=1024 {SHORT} seed=7"
BEFORE = (
    f"heads --queries {CALIBRATED} task.samples=20 --output FOLDER/queries.safetensors",
    f"heads {CALIBRATED} task.samples=8 score=key_diff policy.recent=0 --output FOLDER/budgets.npy",
)
LUKV = "policy=lukv policy.layers.path=FOLDER/budgets.npy score=key_diff policy.recent=0"
REPEATS = 5


def commands(folder: str) -> Iterator[list[str]]:
    """The commands of the page."""
    lines = [*BEFORE, *(f"{verb} {COMMON} {scores} results.dir=FOLDER" for scores in SCORES for verb in (PROBE, *RUNS))]
    lines += (f"{verb} {COMMON.replace('policy=plain', LUKV)} results.dir=FOLDER" for verb in RUNS)
    return (shlex.split(line.replace("FOLDER", folder)) for line in lines)


def named(score: str) -> str:
    """A score as the page has it: `LagKVPress` for a press."""
    return score.partition("press=")[2].partition(" ")[0] or score.partition(" ")[0]


def costs(folder: str) -> Iterator[dict[str, Any]]:
    """Processor milliseconds of one thread for a prompt: its prefill, and what a score adds until all is ranked."""
    torch.set_num_threads(1)
    words = f"{COMMON} budget=0.1 task=ruler/niah_single_1 {SHORT}"
    lines = [shlex.split(f"{words} {scores}".replace("FOLDER", folder)) for scores in SCORES]
    cells = [CellBuilder().cell(tree) for line in lines for tree in combinations(parse(line))]
    model = load(model_info(cells[0].model))
    sample = next(iter(plan([cells[0]], set()).groups[0].samples(model.tokenizer)))
    prompt = prompt_of(model, sample, cells[0])  # type: ignore[arg-type]

    def spent(cell: Cell | None) -> float:
        begin = time.process_time()
        scene = Scene(model, prompt, prefill(model, {0: prompt}, [cell or bare]))
        if cell:
            scene.rank(cell)
        return 1000 * (time.process_time() - begin)

    bare = next(cell for cell in cells if cell.score.name == "random")
    with torch.inference_mode():
        alone = [spent(None) for _ in range(REPEATS)]
        yield {"score": "prefill", "quantity": "milliseconds", "value": min(alone)}
        for cell in cells:
            spent(cell)
            added = [spent(cell) - spent(None) for _ in range(REPEATS)]
            value = max(0.0, statistics.median(added))
            yield {"score": named(str(cell.eviction.score_label)), "quantity": "milliseconds", "value": value}


def pack(folder: Path) -> None:
    """Recall and value by score, task and sample, and the costs, as one file."""
    records = [json.loads(line) for line in (folder / "costs.jsonl").read_text("utf-8").splitlines()]
    probed = pa.concat_tables(
        map(pyarrow.parquet.read_table, sorted((folder / "probes").glob("*.parquet")))
    ).to_pandas()
    if errors := set(probed["error"].dropna()):
        raise SystemExit(f"a measurement failed: {errors}")
    for keys, group in probed.groupby(["score", "task", "sample"]):
        record = dict(zip(("score", "task", "sample"), keys, strict=True))
        records.append(record | {"score": named(keys[0]), "quantity": "recall", "value": float(group["value"].mean())})
    for row in read_rows(str(folder)):
        assert row.error is None, row.error
        score = f"lukv, {row.score}" if str(row.policy).startswith("lukv") else named(str(row.score))
        record = {"score": score, "task": row.task, "budget": row.budget, "sample": row.sample}
        records.append(record | {"quantity": "value", "value": row.value})
    names = ("score", "task", "budget", "sample", "quantity", "value")
    table = pa.Table.from_pylist([{name: record.get(name) for name in names} for record in records])
    pyarrow.parquet.write_table(table, ROWS, compression="zstd")


def page() -> None:
    """Write the table and the picture."""
    rows = pyarrow.parquet.read_table(ROWS).to_pandas()
    cost = rows[rows["quantity"] == "milliseconds"].set_index("score")["value"]
    values = rows[rows["quantity"] == "value"].groupby(["task", "budget", "score"])["value"].mean().mul(100).unstack()
    columns = [f"{task.removeprefix('ruler/')} at {budget}" for task, budget in values.index]
    recalls = rows[rows["quantity"] == "recall"].groupby("score")["value"].apply(list)
    lines = [f"| score | recall | {' | '.join(columns)} | cost |", "| :-- | --: |" + " --: |" * (len(columns) + 1)]
    points = []
    for score in recalls.apply(sum).sort_values(ascending=False, kind="stable").index:
        mean, low, high = mean_interval(recalls[score], rate=True)
        assert low is not None and high is not None
        points.append((score, cost[score], mean, low, high))
        shown = " | ".join("" if answer != answer else f"{answer:.0f}" for answer in values[score])
        lines.append(f"| `{score}` | {mean:.3f} [{low:.3f}, {high:.3f}] | {shown} | {cost[score]:.0f} |")
    for score in sorted({*values.columns} - {*recalls.index}):
        lines.append(f"| `{score}` | | {' | '.join(f'{answer:.0f}' for answer in values[score])} | |")
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.split(END)[1]}", "utf-8")
    draw(points, cost["prefill"])


def draw(points: list[tuple[str, float, float, float, float]], alone: float) -> None:
    """Recall with its interval, one line per score, the best above; beside it the cost."""
    with styled():
        figure = Figure(figsize=(7.2, 0.17 * len(points) + 0.9))
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        for place, (score, cost, mean, low, high) in enumerate(reversed(points)):
            colour = "#D55E00" if score.endswith("Press") else "#0072B2"
            left.plot((low, high), (place, place), color=colour, linewidth=1)
            left.plot(mean, place, "o", color=colour, markersize=3)
            right.barh(place, max(cost, 0.1), color=colour, height=0.6)
        left.set_yticks(range(len(points)), [point[0] for point in reversed(points)], fontsize=6)
        left.set_xlabel("recall of the 40 pairs of largest exact error")
        right.set_xscale("log")
        right.set_xticks([10, 100], ["10", "100"])
        right.axvline(alone, color="#777777", linewidth=0.8)
        right.set_xlabel("added processor ms per prompt (grey: its prefill)")
        figure.suptitle("Scores of kvbench (blue) and presses of kvpress (orange)", fontsize=8)
        figure.tight_layout()
        save(figure, PICTURE)


def main() -> int:
    """Run the part that is named."""
    match sys.argv[1:]:
        case ["run", folder]:
            codes = [kvbench(command) for command in commands(folder)]
            lines = [json.dumps(record) for record in costs(folder)]
            Path(folder, "costs.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
            return max(codes)
        case ["pack", folder]:
            pack(Path(folder))
        case ["page"]:
            page()
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
