"""The model card: what was done, with which data, what was measured beside its target."""

import json
from pathlib import Path
from typing import Any

from .card_text import FIRST_HALF, NOT_GOOD_FOR, TEXT, TRIED

WANTED = dict.fromkeys(("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1"), 0.9)
WANTED |= {"niah_multivalue": 0.9, "niah_multiquery": 0.9, "niah_multikey_2": 0.85, "niah_multikey_3": 0.5}
WANTED |= dict.fromkeys(("vt", "cwe", "fwe"), 0.8)
TARGETS = {(task, 1024): share for task, share in WANTED.items()}
TARGETS |= {(task, 2048): round(share - 0.1, 2) for task, share in WANTED.items()}
"""What was asked of the model before it was trained, as shares of right answers; everything else is for information."""


def card(run: Path, measured: dict[str, Any], hashes: dict[str, str], state: list) -> str:
    """The text of README.md beside the weights.

    `measured` is what `measure` returns, `state` the checkpoint's (step, tokens, seconds), `hashes` the sha256 of each
    file.
    """
    described = json.loads((run / "run.json").read_text(encoding="utf-8"))
    settings, begun = described["settings"], described.get("started_from_sha256")
    step, tokens, seconds = state
    return TEXT.format(
        parameters=described["parameters"],
        **described["shape"],
        seed=settings["seed"],
        device=settings["device"],
        first=FIRST_HALF.format(sha256=begun) if begun else "",
        books=_books(described["books"]),
        held_back=_books(described["held_back"]),
        steps=step,
        tokens=f"{tokens / 1e6:.1f}",
        minutes=round(seconds / 60),
        figures=_figures(measured["figures"]),
        perplexity=_perplexity(measured["perplexity"]),
        policies=_policies(measured["policies"]),
        curve=_curve(run),
        stages=_stages(run, described["plan"]),
        tried=TRIED,
        not_good_for=NOT_GOOD_FOR,
        hashes=_table(("file", "sha256"), [(f"`{name}`", f"`{digest}`") for name, digest in hashes.items()]),
    )


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _books(books: dict[str, str]) -> str:
    return _table(("book", "sha256"), [(name, digest) for name, digest in books.items()])


def _figures(figures: list[dict[str, Any]]) -> str:
    head = (
        "task",
        "length",
        "seed",
        "n",
        "score",
        "95 %",
        "target",
        "held-out key",
        "new tokens",
        "ended by itself, %",
    )
    rows = []
    for row in figures:
        target = TARGETS.get((row["task"].rpartition("/")[2], row["context_length"]))
        verdict = "" if target is None else f"{100 * target:.0f} {'met' if row['mean'] >= target else 'MISSED'}"
        unseen = f"{100 * row['mean_held_out_key']:.1f} (n={row['n_held_out_key']})" if row["n_held_out_key"] else ""
        rows.append(
            (
                row["task"],
                row["context_length"],
                row["seed"],
                row["n"],
                f"{100 * row['mean']:.1f}",
                f"{100 * row['low']:.1f} .. {100 * row['high']:.1f}",
                verdict,
                unseen,
                row["mean_new_tokens"],
                f"{100 * row['ended']:.1f}",
            )
        )
    return _table(head, rows)


def _perplexity(measured: dict[str, Any]) -> str:
    return (
        f"Perplexity of {measured['books']} held-back books ({measured['stretches']} stretches of {measured['tokens']} "
        f"tokens each, the first {measured['skipped']} not counted): {measured['perplexity_full']} with everything "
        f"attended to, {measured['perplexity_window']} with a window of {measured['window']} tokens in every layer; "
        f"difference {measured['difference']} nats a token, 95 % over books {measured['low']} .. {measured['high']}."
    )


def _policies(rows: list[dict[str, Any]]) -> str:
    head = ("policy", "score", "budget", "n", "answers right, %", "95 %")
    return _table(
        head,
        [
            (
                row["policy"],
                row["score"],
                row["budget"],
                row["n"],
                f"{100 * row['mean']:.1f}",
                f"{100 * row['low']:.1f} .. {100 * row['high']:.1f}",
            )
            for row in rows
        ],
    )


def _lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "curve.jsonl").read_text(encoding="utf-8").splitlines()]


def _stages(run: Path, plan: list[dict[str, Any]]) -> str:
    """The last line of each stage."""
    last = {line["stage"]: line for line in _lines(run)}
    longest = {stage["name"]: max(tokens for tokens, *_ in stage["shapes"]) for stage in plan}
    rows = [
        (
            name,
            longest[name],
            line["stage_step"],
            line["step"],
            f"{line['tokens'] / 1e6:.2f}",
            f"{line['seconds'] / 60:.1f}",
        )
        for name, line in last.items()
    ]
    head = ("stage", "longest row, tokens", "steps", "step at its end", "million tokens so far", "minutes so far")
    return _table(head, rows)


CURVE = (
    *("single essay", "single needle", "single needle uuid", "values essay", "queries essay", "tracking", "common"),
    *("frequent", "text nats"),
)


def _curve(run: Path) -> str:
    """About twenty points, each the mean of the lines since the one before."""
    lines = _lines(run)
    size = max(1, len(lines) // 20)
    rows = []
    for start in range(0, len(lines), size):
        part = lines[start : start + size]
        means = []
        for name in CURVE:
            values = [line[name] for line in part if name in line]
            means.append(f"{sum(values) / len(values):.3f}" if values else "")
        rows.append((part[-1]["step"], part[-1]["stage"], *means))
    return _table(("step", "stage", *CURVE), rows)
