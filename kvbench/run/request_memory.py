"""Memory of a request that a cell serves alone, as in production: weights, the prompt, the answer.

A sweep holds more (`kvbench.run.memory`): the cells of a decode batch, beside the full cache that they share.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from safetensors import safe_open

from kvbench.eviction.budget import ThresholdBudget
from kvbench.models.engine import Engine
from kvbench.models.loading.load import config_of
from kvbench.models.loading.spec import ModelSpec, quantization_settings, read_json
from kvbench.models.loading.weights import random
from kvbench.run import memory, plan_memory
from kvbench.run.cell import Cell
from kvbench.run.lengths import Lengths, lengths_of
from kvbench.run.plan import PrefillGroup
from kvbench.support.quantity import size


@dataclass(frozen=True)
class RequestMemory:
    """Bytes, at most. prefill: beside the weights while the prompt is read, scored and evicted from, activations of a
    pass included; of that `scoring` is what a method records and ranks, or computes. decode: of a request that is being
    answered, at its end. Workspaces of libraries are not counted, nor what an allocator wastes.
    """

    weights: int
    prefill: int
    scoring: int
    decode: int

    def peak(self, requests: int = 1) -> int:
        """With so many requests at a time, of which one is being read while the others are answered."""
        return self.weights + max(self.prefill + (requests - 1) * self.decode, requests * self.decode)

    def requests(self, limit: int) -> int:
        """Return how many requests fit at a time."""
        room = limit - self.weights
        return 0 if self.peak() > limit else min(1 + (room - self.prefill) // self.decode, room // self.decode)


def request_memory(cell: Cell, lengths: Lengths, at_once: int = Engine.prefill_chunk) -> RequestMemory:
    """Compute the memory of a cell and such a prompt, of which `at_once` tokens are read in a pass. Raises MissingFile
    where the model's files are missing.
    """
    single, tokens = PrefillGroup((cell,), ()), lengths.read
    text, dtype = memory.text_and_dtype(cell.model)
    full, heads, group_size = plan_memory.full_bytes(cell.model, tokens)
    pair_bytes, state = full // tokens, plan_memory.state_bytes_of(cell.model)
    policy = cell.policy.resolve(0, tokens, cell.budget)
    pairs = min(policy.pairs(cell.budget, tokens), tokens)
    copies = group_size if cell.policy.layout == "query_heads" else 1
    kept = copies * pairs * pair_bytes
    recorded, rankings = plan_memory.scoring_bytes((cell,), tokens, full, heads, group_size)
    recorded += sum(plan_memory.hidden_bytes(single) or ())
    every = None if isinstance(cell.budget, ThresholdBudget) else cell.schedule.decode_every  # a threshold may keep all
    later = min(lengths.later, (cell.schedule.answer_budget or 0) + (every or lengths.later))
    held = cell.held.held_bytes(kept, dtype.itemsize)
    block = cell.schedule.block_of(tokens)
    a_pass, scoring = plan_memory.pass_bytes((cell,), tokens, min(tokens, block or at_once)), recorded + rankings
    if block is None:
        repeat = cell.score.inputs.repeat  # a part of the prompt at a time is read again
        repeat_activations = memory.activations(text, dtype, min(tokens, repeat.chunk)) if repeat else 0
        repeat_activations *= text.num_hidden_layers if repeat and repeat.by_gradient else 1
        evicting = rankings + max(held, repeat_activations) if pairs < tokens else 0
        prefill = full + recorded + max(a_pass, evicting)
    else:
        most_pairs = min(tokens, pairs + block)
        scoring = copies * most_pairs * heads * memory.CANDIDATE_BYTES
        prefill = copies * most_pairs * pair_bytes + a_pass + scoring
    return RequestMemory(weights_of(cell.model), prefill + state, scoring, held + copies * later * pair_bytes + state)


@lru_cache
def weights_of(spec: ModelSpec) -> int:
    """Return bytes of a model's weights in memory: of quantised ones the bytes of their files."""
    folder = spec.folder()
    if folder.is_dir() and quantization_settings(read_json(folder / "config.json")):
        return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return sum(map(math.prod, tensor_shapes(spec))) * memory.text_and_dtype(spec)[1].itemsize


@lru_cache
def tensor_shapes(spec: ModelSpec) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a model's tensors, of its files or of the model that transformers makes without data."""
    folder = spec.folder()
    if spec.shape is None and folder.is_dir() and (files := sorted(folder.glob("*.safetensors"))):
        shapes: list[tuple[int, ...]] = []
        for file in files:
            with safe_open(file, "pt") as tensors:
                shapes += [tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()]  # noqa: SIM118
        return tuple(shapes)
    model = random(config_of(spec), 0, torch.float32, torch.device("meta"))
    return tuple(tuple(weight.shape) for weight in model.parameters())


def request_text(group: PrefillGroup) -> str:
    """Describe a request alone, with any of the cells of a group."""
    lengths = lengths_of(group)
    if lengths is None:
        return f"weights: {size([weights_of(group.model)])}"
    needs = [request_memory(cell, lengths) for cell in group.cells]
    length = "the longest prompt has" if lengths.is_counted else "a prompt has at most"
    return (
        f"a request alone: {length} {lengths.read} tokens, and at most {lengths.later} follow; weights "
        f"{size([needs[0].weights])}, and beside them to read, score and evict {size(need.prefill for need in needs)}, "
        f"to answer {size(need.decode for need in needs)}; at its peak {size(need.peak() for need in needs)} in all"
    )
