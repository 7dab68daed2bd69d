"""The model card: what was done, with which data, what was measured, what the model is not good for."""

import json
from pathlib import Path
from typing import Any

from .curriculum import FIRST, SECOND


def card(run: Path, figures: list[dict[str, Any]], hashes: dict[str, str], state: list) -> str:
    """The text of README.md beside the weights.

    `state` is the checkpoint's (stage, stage step, step, tokens, seconds, ...), `hashes` the sha256 of each file.
    """
    described = json.loads((run / "run.json").read_text(encoding="utf-8"))
    settings = described["settings"]
    return TEXT.format(
        parameters=described["parameters"],
        hidden=settings["hidden"],
        layers=settings["layers"],
        vocabulary=settings["vocabulary"],
        seed=settings["seed"],
        rate=settings["learning_rate"],
        device=settings["device"],
        books=", ".join(settings["books"]) or "none",
        steps=state[2],
        tokens=f"{state[3] / 1e6:.1f}",
        minutes=round(state[4] / 60),
        figures=_figures(figures),
        curve=_curve(run),
        stages=_stages(run),
        hashes=_table(("file", "sha256"), [(f"`{name}`", f"`{digest}`") for name, digest in hashes.items()]),
    )


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _figures(figures: list[dict[str, Any]]) -> str:
    head = ("task", "length", "seed", "n", "score", "95 %", "held-out key", "new tokens", "ended by itself, %")
    rows = [
        (
            row["task"],
            row["context_length"],
            row["seed"],
            row["n"],
            f"{100 * row['mean']:.1f}",
            f"{100 * row['low']:.1f} .. {100 * row['high']:.1f}",
            f"{100 * row['mean_held_out_key']:.1f} (n={row['n_held_out_key']})" if row["n_held_out_key"] else "",
            row["mean_new_tokens"],
            f"{100 * row['ended']:.1f}",
        )
        for row in figures
    ]
    return _table(head, rows)


def _lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "curve.jsonl").read_text(encoding="utf-8").splitlines()]


def _stages(run: Path) -> str:
    """The last line of each stage."""
    last = {line["stage"]: line for line in _lines(run)}
    tokens = {stage.name: stage.mix.tokens if stage.mix else stage.copy_tokens for stage in FIRST + SECOND}
    rows = [
        (
            name,
            tokens[name],
            line["stage_step"],
            line["step"],
            f"{line['tokens'] / 1e6:.2f}",
            f"{line['seconds'] / 60:.1f}",
        )
        for name, line in last.items()
    ]
    head = ("stage", "longest prompt, tokens", "steps", "step at its end", "million tokens so far", "minutes so far")
    return _table(head, rows)


def _curve(run: Path) -> str:
    """About twenty-five points: loss and wholly right answers on fresh needle prompts, right copied tokens."""
    lines = [line for line in _lines(run) if "copying_right" in line or "needles_right" in line]
    names = ("copying_right", "needles", "needles_right")
    rows = [
        (line["step"], line["stage"], *(f"{line[name]:.3f}" if name in line else "" for name in names))
        for line in lines[:: max(1, len(lines) // 25)]
    ]
    return _table(("step", "stage", "copied tokens right", "loss on answers", "answers wholly right"), rows)


TEXT = """# The reference model of kvbench

A small language model that answers RULER's needle questions, so that eviction can be tried, tested and shown on a CPU
in seconds and without a download. A Llama (`LlamaForCausalLM`): {parameters:,} parameters in float32, hidden size
{hidden}, {layers} layers, 4 query heads over 2 KV heads (groups of 2) of size 64, rotary positions (theta 10000, up to
4096), tied embeddings, a byte-level BPE of {vocabulary} tokens of its own (any text tokenises; digits in groups of at
most two). `<|endoftext|>` ends an answer and pads; nothing is put before a prompt. Licence: that of kvbench.

## Made by

`python scripts/train_reference_model.py --out RUN --books FOLDER --half`, then `--out RUN --export FOLDER`.
Seed {seed}, AdamW (0.9, 0.98), learning rate {rate} after 300 steps of warm-up, no weight decay, gradient norm 1;
{steps} steps, {tokens} million tokens, {minutes} minutes on one thread ({device}).

{stages}

The run was stopped and resumed several times, stages were added while it ran, and bfloat16 products (`--half`) came in
during "ruler short"; the stages in `scripts/reference_model/curriculum.py` are those that took place, with
their lengths. Repeating the command repeats the recipe, not every bit.

Data, all drawn on the fly from streams that share nothing with the benchmark's generator or its seeds: copies of
random tokens; pairs of random tokens; needle prompts from `key value` up to RULER's sentences, over RULER's noise, over
other needles and over book text; a few prompts without the needle, answered by a random number, so that answers end in
any case; a little language modelling of books (elsewhere the loss is on answers only). Some prompts of the last stages
have jumps in their positions, as long or evicted prompts have. In the last stage three batches in ten answer while most
of the prompt is hidden (random spans kept, the value in every second prompt), so that answers end after an eviction
too; no policy's choices were used. Keys are made of the words of wonderwords 2.2.0; a fifth of them
(`held_out_words.json`) was never shown to model or tokenizer in a key. Books (Project Gutenberg texts of the
PG19 test split): {books}.

{curve}

## Measured

Official prompts (RULER c3f5e3b), lengths in tokens of this tokenizer with the 128 to generate included, greedy, full
cache, float32; interval: Wilson, 95 %. The seeds were never trained on. "held-out key": only the samples whose key
holds a held-out word.

{figures}

`python scripts/train_reference_model.py --evaluate FOLDER` prints these figures again.

## Not good for

Anything but these prompts: it knows no language, no facts, no instructions. Perplexities, LongBench and InfiniteBench
scores of it mean nothing by themselves. Differences between eviction methods on it show that code works and in which
direction a method errs; they predict nothing about large models. Several values or several queries at once, variable
tracking and word counting were not trained; uuids (niah_multikey_3) were, too little to be learned, and such answers
often run on. It was trained on prompts of up to 900 tokens.

## Files

{hashes}
"""
