"""Draw the concept drawings of docs/concepts.md: what the embedded model scores, keeps and holds on one prompt.

    python scripts/draw_concepts.py [--out docs/images]

One prompt of `ruler/niah_single_1` of at most 512 tokens. `inputs` alone is a diagram, of what scores declare.
"""

import argparse
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvbench.cache.kv_cache import KVCache
from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.eviction.evict import Decision, raw_scores
from kvbench.eviction.incremental import IncrementalEviction, capacity_after
from kvbench.eviction.scores.window import blocks, chunks
from kvbench.models.loading.load import LoadedModel, load, model_info
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.tokens import TokensOf
from kvbench.report.plots.canvas import save, styled
from kvbench.run.cell import Cell
from kvbench.run.evict_cell import eviction_of, incremental_eviction
from kvbench.run.prefill_job import prompt_of
from kvbench.tasks.task import Sample

IMAGES = Path(__file__).parents[1] / "docs" / "images"
BUDGET = "budget=0.2"
COMMON = ("protocol=common", "task.context_length=512")
"""One window for all policies, and few enough positions to see each."""
LAYER, HEAD = 1, 0
"""Where the embedded model looks for the needle."""
WINDOWS = (1, 4, 16, 64)
EXAMPLES = ("attn", "obcache_joint", "caote", "lava", "kvzip", "expected_attention", "key_norm", "key_diff", "recency")
"""Scores that the picture of inputs names; a new score needs no new picture."""
DARK, BLUE, ORANGE, GREY = "#333333", "#0072B2", "#D55E00", "#BBBBBB"
NEEDLE = {"color": ORANGE, "alpha": 0.25, "linewidth": 0}


def cell_of(*words: str) -> Cell:
    """The cell of a command line."""
    (config,) = combinations(parse([*COMMON, *words]))
    return CellBuilder().cell(config)


@dataclass(frozen=True)
class Scene:
    """The embedded model and one prompt."""

    model: LoadedModel
    sample: Sample

    def prompt(self, cell: Cell) -> Prompt:
        """What a cell reads of it."""
        return prompt_of(self.model, self.sample, cell)

    @cached_property
    def full_prompt(self) -> Prompt:
        """The prompt, question included."""
        return self.prompt(cell_of("policy=full"))

    @cached_property
    def needle(self) -> tuple[int, int]:
        """The first token of the number that is asked for, and the one after its last."""
        ends = [0]
        for token in self.full_prompt.prefill:
            ends.append(ends[-1] + len(self.model.tokenizer.decode([token])))
        first = self.model.tokenizer.decode(self.full_prompt.prefill).index(self.sample.references[0])
        return bisect_right(ends, first) - 1, bisect_left(ends, first + len(self.sample.references[0]))

    @cached_property
    def cache(self) -> KVCache:
        """The cache after the whole prompt, with a record of its newest rows for each window."""
        return self.model.engine.prefill(torch.tensor(self.full_prompt.prefill), {*WINDOWS, 32}).cache

    def decide(self, *words: str) -> Decision:
        """What a cell keeps of the prompt."""
        return eviction_of(cell_of(*words, BUDGET), self.full_prompt).decide(self.cache)

    def mark(self, axes: Axes) -> None:
        """Show where the needle is."""
        axes.axvspan(*self.needle, **NEEDLE)


def load_scene() -> Scene:
    """Load the embedded model and make its first prompt."""
    cell = cell_of("policy=full")
    model = load(model_info(cell.model))
    (sample,) = cell.task.generate(TokensOf(model.tokenizer), [0])
    assert isinstance(sample, Sample)
    return Scene(model, sample)


def score(scene: Scene) -> Figure:
    """Three scores of the same head, each over its own largest value."""
    layer = scene.cache.layers[LAYER]
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    for axes, name in zip(figure.subplots(3, 1, sharex=True), ("attn", "obcache_joint", "key_norm"), strict=True):
        cell = cell_of("policy=snapkv", f"score={name}")
        scores = raw_scores(layer, cell.policy, cell.score)[HEAD].float()
        scores = scores - scores.min() if name == "key_norm" else scores
        axes.stairs((scores / scores.max()).tolist(), fill=True, color=BLUE)
        scene.mark(axes)
        axes.set_title(f"score={name}")
        axes.set_yticks([])
        axes.grid(visible=False)
    axes.set_xlim(0, scene.cache.num_tokens)
    axes.set_xlabel(f"position in one prompt (orange: the needle); layer {LAYER}, head {HEAD}")
    return figure


def policy(scene: Scene) -> Figure:
    """What one head keeps under five policies."""
    names = ("streaming_llm", "h2o_obcache", "tova_obcache", "snapkv", "pyramidkv")
    figure = Figure(figsize=(7.2, 2.1), layout="constrained")
    axes = figure.subplots()
    for line, name in enumerate(names):
        kept = scene.decide(f"policy={name}").kept[LAYER][HEAD]
        axes.vlines((kept.nonzero()[:, 0] + 0.5).tolist(), line - 0.36, line + 0.36, color=DARK, linewidth=1)
    scene.mark(axes)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, scene.cache.num_tokens)
    axes.grid(visible=False)
    axes.set_xlabel(f"position in one prompt (orange: the needle); {BUDGET}, layer {LAYER}, KV head {HEAD}")
    return figure


def budget(scene: Scene) -> Figure:
    """Pairs of every layer and head, the same in sum."""
    names = ("snapkv", "pyramidkv", "ada_snapkv", "lava")
    figure = Figure(figsize=(7.2, 2.0), layout="constrained")
    most = 0
    panels = figure.subplots(1, len(names), sharey=True)
    for axes, name in zip(panels, names, strict=True):
        lengths = scene.decide(f"policy={name}").lengths
        layers, heads = lengths.shape
        step = 0.8 / heads
        for head in range(heads):
            places = [layer + step * (head - (heads - 1) / 2) for layer in range(layers)]
            axes.bar(places, lengths[:, head].tolist(), width=0.9 * step, color=GREY if head % 2 else BLUE)
        axes.axhline(float(lengths.double().mean()), color=DARK, linestyle="--", linewidth=0.8)
        axes.set_title(f"{name}\nsum {int(lengths.sum())}")
        axes.set_xticks(range(layers))
        axes.set_xlabel("layer (one prompt)")
        most = max(most, int(lengths.max()))
    panels[0].set_ylabel(f"KV pairs kept, {BUDGET}")
    panels[0].set_ylim(0, 1.05 * most)
    return figure


def window(scene: Scene) -> Figure:
    """Attention of the newest 32 queries, and the sums over windows of them."""
    layer, rows = scene.cache.layers[LAYER], 32
    observed = layer.observed(rows)
    weights = torch.zeros(rows, scene.cache.num_tokens)
    for block, row in blocks(layer, observed):
        for chunk in chunks(layer, block, row):
            weights[:, chunk.start : chunk.start + chunk.weights.shape[2]] = chunk.weights[HEAD]
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    top, *others = figure.subplots(1 + len(WINDOWS), 1, sharex=True, height_ratios=[3, *[1] * len(WINDOWS)])
    end = scene.cache.num_tokens
    extent = (0, end, end, end - rows)
    top.imshow(weights.sqrt().numpy(), extent=extent, aspect="auto", cmap="Greys", interpolation="none", vmax=0.6)
    top.set_ylabel("query")
    top.set_title(f"attention of the newest {rows} queries (square root), layer {LAYER}, query head {HEAD}")
    for axes, size in zip(others, WINDOWS, strict=True):
        cell = cell_of("policy=snapkv", f"policy.window={size}")
        scores = raw_scores(layer, cell.policy, cell.score)[HEAD].float()
        scores = (scores / scores[: end - max(WINDOWS)].max()).clamp(max=1)
        axes.stairs(scores.tolist(), fill=True, color=BLUE)
        axes.set_ylabel(f"{size}", rotation=0, ha="right", va="center")
    for axes in (top, *others):
        scene.mark(axes)
        axes.grid(visible=False)
        axes.set_yticks([])
    others[0].set_title("score=attn: sums over the newest 1, 4, 16 and 64 queries")
    others[-1].set_xlim(0, end)
    others[-1].set_xlabel("position in one prompt (orange: the needle)")
    return figure


def inputs(scene: Scene) -> Figure:
    """Which part of a prompt some scores have recorded."""
    scores: dict[str, list[str]] = {"window": [], "repeat": [], "future": [], "nothing": []}
    for name in EXAMPLES:
        needed = cell_of("policy=kvzip_head", f"score={name}").score.inputs
        kinds = {"repeat": needed.repeat, "future": needed.future_queries, "window": needed.window, "nothing": True}
        scores[next(kind for kind, is_needed in kinds.items() if is_needed)].append(name)
    parts = {
        "window": ("attention of the newest queries, and their outputs", (76, 24, BLUE, None)),
        "repeat": ("attention of a repetition of the prompt", (100, 34, ORANGE, "//")),
        "future": ("mean and covariance of all queries, rotated ahead", (0, 100, GREY, None)),
        "nothing": ("only keys and values", None),
    }
    figure = Figure(figsize=(7.2, 2.6), layout="constrained")
    axes = figure.subplots()
    for line, (kind, (text, span)) in enumerate(parts.items()):
        axes.barh(line, 100, height=0.5, color="white", edgecolor=DARK, linewidth=0.8)
        if span is not None:
            start, length, colour, hatch = span
            axes.barh(line, length, left=start, height=0.5, color=colour, edgecolor="white", hatch=hatch, linewidth=0)
        if kind == "future":
            axes.annotate("", (134, line), (101, line), arrowprops={"arrowstyle": "->", "color": DARK})
        axes.text(0, line - 0.32, text, va="bottom", fontsize=8, color=DARK)
        names = scores[kind]
        lines = [", ".join(names[start : start + 4]) for start in range(0, len(names), 4)]
        axes.text(138, line, ",\n".join(lines), va="center", fontsize=8, color=DARK)
    axes.text(2, 0, "the prompt", va="center", fontsize=7, color=DARK)
    axes.set_xlim(-2, 240)
    axes.set_ylim(3.5, -0.8)
    axes.axis("off")
    return figure


def schedule(scene: Scene) -> Figure:
    """KV pairs that one head holds, token by token: read, evicted, and read again."""
    answer = 48
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    lines = {
        "after the prompt (default)": (),
        "schedule.evict_after=context": ("schedule.evict_after=context",),
        "schedule.prefill_block=64": ("schedule.prefill_block=64",),
        "schedule.decode_every=1": ("schedule.decode_every=1",),
    }
    for axes, (title, words) in zip(figure.subplots(2, 2, sharex=True, sharey=True).flat, lines.items(), strict=True):
        held, end = _held(scene, cell_of("policy=snapkv", BUDGET, *words), answer)
        axes.plot(*zip(*held, strict=True), color=BLUE)
        axes.axvspan(end, end + answer, color=GREY, alpha=0.3, linewidth=0)
        axes.set_title(title)
    for axes in figure.axes[2:]:
        axes.set_xlabel("tokens of one prompt read (grey: the answer)")
    for axes in figure.axes[::2]:
        axes.set_ylabel("KV pairs held")
    return figure


def _held(scene: Scene, cell: Cell, answer: int) -> tuple[list[tuple[int, int]], int]:
    """Tokens read and pairs of a head, before and after each eviction, and how many tokens the whole prompt has."""
    engine, prompt = scene.model.engine, scene.prompt(cell)
    ids, block = torch.tensor(prompt.prefill), cell.schedule.prefill_block
    later = torch.tensor([*prompt.question, *prompt.prefill[:answer]])  # which tokens they are does not matter here
    held = [(0, 0)]

    def note(cache: KVCache) -> None:
        tokens, pairs = held[-1]
        held.append((cache.num_tokens, pairs + cache.num_tokens - tokens))
        held.append((cache.num_tokens, int(cache.lengths[LAYER, HEAD])))

    if isinstance(block, int):
        growing = engine.evicting_cache(incremental_eviction(cell, prompt), 1)
        for part in ids.split(block):
            engine.read_silently(part, [growing], block)
            note(growing.freeze())
        incremental, compressed = growing.evictor, growing.freeze()
    else:
        full = engine.prefill(ids, {cell.policy.rows(len(ids))}).cache
        eviction = eviction_of(cell, prompt)
        decision = eviction.decide(full)
        incremental = IncrementalEviction(eviction, capacity_after(eviction, full, decision), decoding=True)
        compressed = incremental.remember(full, decision, eviction.evict(full, decision))
        note(compressed)
    growing = engine.evicting_cache(incremental, cell.schedule.decode_every, compressed)
    if cell.schedule.decode_every is None:  # each token stays, so that all can be read at once
        engine.read_silently(later, [growing], len(later))
        tokens, pairs = held[-1]
        held += [(tokens + read, pairs + read) for read in range(1, len(later) + 1)]
        cache = growing.freeze()
        assert held[-1] == (cache.num_tokens, int(cache.lengths[LAYER, HEAD]))
    else:
        for token in later:
            engine.read_silently(token[None], [growing])
            cache = growing.freeze()
            held.append((cache.num_tokens, int(cache.lengths[LAYER, HEAD])))
    return held, len(ids) + len(prompt.question)


PICTURES: dict[str, Callable[[Scene], Figure]] = {
    "score": score,
    "policy": policy,
    "budget": budget,
    "window": window,
    "inputs": inputs,
    "schedule": schedule,
}


def main(arguments: list[str]) -> None:
    """Draw all of them into a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=IMAGES)
    flags = parser.parse_args(arguments)
    scene = load_scene()
    with styled():
        for name, draw in PICTURES.items():
            save(draw(scene), flags.out / f"concept-{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
