"""How often `kvbench recommend` calls a method worse, or within, wrongly and rightly, and after how many prompts.

    python benchmarks/statistics/elimination.py [--runs 2000]

Losses are drawn for each prompt: 0/1 answers, of which a share is lost and a share won; or F1-like, a part of the value
lost. Rounds and decisions are those of `kvbench recommend`: 8 prompts, 16, 32 and so on, and Holm's procedure over 21
methods. In the first cases all 21 methods lose exactly what is tolerated, where errors are most likely.
"""

import argparse
from collections.abc import Callable

import numpy as np

from kvbench.extras.recommend.elimination import Evidence, decisions

METHODS, ALPHA, PROMPTS = 21, 0.05, 512
Draw = Callable[[np.random.Generator, int], np.ndarray]


def answers(lost: float, won: float = 0.0) -> Draw:
    """0/1 answers: shares of prompts that are lost and won."""
    return lambda generator, n: generator.choice([1.0, -1.0, 0.0], size=n, p=[lost, won, 1 - lost - won])


def partial(loss: float, spread: float) -> Draw:
    """Values such as F1: a normal loss of this mean, cut to -1..1; a small spread leaves the mean as it is."""
    return lambda generator, n: np.clip(generator.normal(loss, spread, n), -1.0, 1.0)


CASES: dict[str, tuple[float, Draw]] = {
    "tolerated 2, loses 2": (0.02, answers(0.02)),
    "tolerated 2, loses 12, wins 10": (0.02, answers(0.12, 0.10)),
    "tolerated 5, loses 5": (0.05, answers(0.05)),
    "tolerated 2, F1-like, loses 2": (0.02, partial(0.02, 0.2)),
    "tolerated 2, loses 50": (0.02, answers(0.5)),
    "tolerated 2, loses 20": (0.02, answers(0.2)),
    "tolerated 5, loses nothing": (0.05, answers(0.0)),
    "tolerated 5, wins 5, loses 5": (0.05, answers(0.05, 0.05)),
    "tolerated 10, loses 1": (0.10, answers(0.01)),
}


def outcome(generator: np.random.Generator, tolerated: float, draws: list[Draw]) -> tuple[list[str], list[int]]:
    """The decision of each method, and the prompts of the round that made it."""
    losses = [draw(generator, PROMPTS) for draw in draws]
    evidence, decided, after = [Evidence() for _ in draws], ["open"] * len(draws), [PROMPTS] * len(draws)
    prompts = 8
    while prompts <= PROMPTS and "open" in decided:
        evidence = [
            before.looked(values[:prompts], tolerated) if state == "open" else before
            for before, values, state in zip(evidence, losses, decided, strict=True)
        ]
        for number, decision in enumerate(decisions(evidence, ALPHA)):
            if decided[number] == "open" and decision != "open":
                decided[number], after[number] = decision, prompts
        prompts *= 2
    return decided, after


def main() -> None:
    """Print the tables of benchmarks/results/statistics.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    print("| all 21 methods | any called worse | any called within | worse | within | prompts, median |")
    print("| :-- | --: | --: | --: | --: | --: |")
    for name, (tolerated, draw) in CASES.items():
        generator = np.random.default_rng(0)
        found = [outcome(generator, tolerated, [draw] * METHODS) for _ in range(runs)]
        shares = [
            np.mean([[state == kind for state in decided] for decided, _ in found]) for kind in ("worse", "within")
        ]
        anyone = [np.mean([kind in decided for decided, _ in found]) for kind in ("worse", "within")]
        median = int(np.median([after for _, after in found]))
        print(
            "|",
            name,
            "|",
            " | ".join(f"{100 * share:.1f} %" for share in (*anyone, *shares)),
            f"| {median} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
