"""How answers of many cells to one prompt go together, and what that does to the gate and to the CUSUM of a history.

    python benchmarks/statistics/shared_noise.py [--runs 500]

First the correlation of answers to one prompt, measured on the committed rows. Then, by simulation with it: how often
the test of all cells fails a run in which nothing is lost, how often it shows a loss of 5 points in every cell, and
what `kvbench.report.stats.power` says of that. Then how often a CUSUM alarms within 100 runs in which nothing is lost.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from kvbench.extras.view.cusum import is_alarm, next_sum
from kvbench.report.stats.paired_tests import ALPHA, OF_CELLS, sign_flip
from kvbench.report.stats.power import CORRELATION, effective_prompts, power, smallest_loss

ROWS = Path(__file__).parents[2] / "results" / "reference" / "main.parquet"
LEVEL = (1 - OF_CELLS) * ALPHA
LOSS = 0.05
LAYOUTS = {"12 prompts, 230 cells each": (12, 230), "50 prompts, 20 cells": (50, 20), "200 prompts, 6 cells": (200, 6)}
LAYOUTS |= {"400 prompts, 4 cells": (400, 4)}


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    runs = parser.parse_args().runs
    print("| answers to one prompt | all cells of a task | cells of one method |\n| :-- | --: | --: |")
    for task, overall, within in correlations():
        print(f"| {task} | {overall:.2f} | {within:.2f} |")
    print("\n| rows | noise | correlation | false alarms | shows 5 points | power says | shows from |")
    print("| :-- | --: | --: | --: | --: | --: | --: |")
    for name, (prompts, cells) in LAYOUTS.items():
        for noise, correlation in ((0.0, CORRELATION), (0.02, 0.17), (0.02, CORRELATION), (0.05, CORRELATION)):
            print(
                f"| {name} | {100 * noise:g} % | {correlation:g} |",
                " | ".join(gate(prompts, cells, noise, correlation, runs)),
                "|",
                flush=True,
            )
    print("\n| prompts | noise | an alarm of any of 20 cells | of all cells |\n| --: | --: | --: | --: |")
    for prompts in (50, 200):
        for noise in (0.02, 0.05, 0.1):
            of_cells, overall = cusum(prompts, noise, max(100, runs // 5))
            print(f"| {prompts} | {100 * noise:g} % | {100 * of_cells:.1f} % | {100 * overall:.1f} % |", flush=True)


def correlations() -> Iterator[tuple[str, float, float]]:
    """Of each task: the correlation of answers to one prompt over all cells, and its mean over methods."""
    rows = pq.read_table(ROWS, columns=["task", "policy", "score", "cell", "sample", "value"]).to_pandas()
    for task, of_task in rows.groupby("task"):
        methods = [
            correlation(own.pivot(index="cell", columns="sample", values="value").to_numpy())
            for _, own in of_task.groupby(["policy", "score"], dropna=False)
        ]
        overall = correlation(of_task.pivot(index="cell", columns="sample", values="value").to_numpy())
        yield str(task), overall, float(np.nanmean(methods))


def correlation(values: np.ndarray) -> float:
    """The intraclass correlation of values [cells, prompts] about the means of the cells; NaN for one cell."""
    centred = values - values.mean(1, keepdims=True)
    centred = centred[centred.var(1) > 0]
    cells = len(centred)
    if cells < 2:
        return float("nan")
    covariance = ((centred.sum(0) ** 2).mean() - (centred**2).sum(0).mean()) / (cells * (cells - 1))
    return float(covariance / (centred**2).mean())


def changes(
    generator: np.random.Generator, shape: tuple[int, int], noise: float, correlation: float, loss: float = 0.0
) -> np.ndarray:
    """-1, 0 or 1 for every cell and prompt; two cells do the same on a prompt with a correlation."""
    shared, own = generator.random(shape[1]), generator.random(shape)
    draws = np.where(generator.random(shape) < np.sqrt(correlation), shared, own)
    return (draws > 1 - noise).astype(float) - (draws < noise + loss)


def gate(prompts: int, cells: int, noise: float, correlation: float, runs: int) -> tuple[str, ...]:
    """Shares of runs that fail without a loss and with one, and what the power says."""
    generator = np.random.default_rng([prompts, cells, round(100 * noise), round(100 * correlation)])
    found = [
        [
            sign_flip(changes(generator, (cells, prompts), noise, correlation, loss).sum(0), "less", LEVEL).p <= LEVEL
            for _ in range(runs)
        ]
        for loss in (0.0, LOSS)
    ]
    alone = int(effective_prompts(np.full(prompts, cells), correlation))
    smallest = smallest_loss(alone, LEVEL, noise)
    says = power(alone, LEVEL, noise, LOSS)
    shares = [*(f"{100 * np.mean(each):.1f} %" for each in found), f"{100 * says:.0f} %"]
    return (*shares, "nothing" if smallest is None else f"{100 * smallest:.1f}")


def cusum(prompts: int, noise: float, series: int, cells: int = 20, runs: int = 100) -> tuple[float, float]:
    """Shares of series with an alarm of any cell, and of all cells together; nothing is lost."""
    alone = int(effective_prompts(np.full(prompts, cells), CORRELATION))
    effects = np.array(
        [max(0.2, smallest_loss(prompts, OF_CELLS * ALPHA, noise) or 1.0)] * cells
        + [max(0.05, smallest_loss(alone, LEVEL, noise) or 1.0)]
    )
    alarms = np.zeros((series, cells + 1), dtype=bool)
    for number in range(series):
        generator = np.random.default_rng([prompts, round(100 * noise), number])
        anchor = changes(generator, (cells, prompts), noise, CORRELATION)
        sums = np.zeros(cells + 1)
        for _ in range(runs):
            losses = anchor - changes(generator, (cells, prompts), noise, CORRELATION)
            lost = np.append(losses.mean(1), losses.mean())
            sums = np.array([next_sum(*each) for each in zip(sums, lost, effects, strict=True)])
            alarms[number] |= [is_alarm(total) for total in sums]
    return float(alarms[:, :-1].any(1).mean()), float(alarms[:, -1].mean())


if __name__ == "__main__":
    main()
