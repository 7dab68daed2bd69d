"""Decoding by a CUDA graph: a step is captured once and replayed, without work of the host in between; where batches
of several prompts lie in one room (`kvbench.extras.gpu_decoding.rooms`), for all of them.

All that changes from step to step lies on the device: the number of tokens read (`GraphBatch.on_device`), positions,
the chosen tokens, and which cells are still running. The host reads the tokens of `READ_EVERY` steps at once, so that
at most `READ_EVERY` - 1 steps follow the end of the last answer.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.extras.gpu_decoding.graph_batch import GraphBatch
from kvbench.models import bridge
from kvbench.models.decode.next_token import Chosen, Sampled, Sampler, greedy

READ_EVERY = 8
"""Steps whose tokens the host reads at once."""

Read = Callable[[Int[Tensor, "cells"], Int[Tensor, "cells"]], Float[Tensor, "cells vocabulary"]]


def blocks(
    model: Any,
    batch: GraphBatch,
    logits: Float[Tensor, "cells vocabulary"],
    steps: int,
    stop: Collection[int],
    at_least: int,
    choose: Sampler,
    stream: Any,
) -> Iterator[list[Chosen]]:
    """Yield the tokens of `steps` steps, several steps at a time; the first is chosen from `logits`.

    stream: of the GPU, on which a step is captured if none is there yet.
    """

    def read(tokens: Int[Tensor, "cells"], positions: Int[Tensor, "cells"]) -> Float[Tensor, "cells vocabulary"]:
        last = bridge.logits(model, tokens[:, None], positions, batch, 1)
        batch.finish(1)
        return last[:, -1]

    alike = chosen_alike(choose)
    if batch.room is None or alike is None:
        batch.stepped = f"by a graph of this batch alone: {'recorded answers' if alike is None else batch.unshared}"
        graph = DecodeGraph(batch.cells, choose, stream, stop, at_least)
    else:
        key = batch.cells, alike, frozenset(stop), at_least
        if key not in batch.room.captured:
            batch.room.captured = {key: DecodeGraph(batch.cells, choose, stream, stop, at_least)}
        graph = batch.room.captured[key]
    yield from graph.blocks(read, batch, logits, steps, choose)


class DecodeGraph:
    """Decoding of batches on one GPU by one captured step: of a single batch, or of all that lie in one room.

    choose: the token that logits give; it may not wait for the device. stream: of the GPU, on which the step is
    captured. No `stop` token is chosen among the first `at_least`.
    """

    def __init__(self, cells: int, choose: Sampler, stream: Any, stop: Collection[int], at_least: int = 0) -> None:
        if isinstance(choose, Sampled):  # with numbers of its own, that others are copied to
            choose = replace(choose, uniforms=choose.uniforms.clone())
        self._rule, self._at_least, self._stream, device = choose, at_least, stream, stream.device
        self._graph: Any = None
        self._stop = torch.tensor(sorted(stop), dtype=torch.long).to(device, non_blocking=True)
        self._positions, self._tokens = torch.zeros(2, cells, dtype=torch.long, device=device)
        self._step = torch.zeros((), dtype=torch.long, device=device)
        self._running = torch.zeros(cells, dtype=torch.bool, device=device)
        self._chosen = torch.zeros(READ_EVERY, cells, 2, dtype=torch.double, device=device)

    def blocks(
        self, read: Read, batch: GraphBatch, logits: Float[Tensor, "cells vocabulary"], steps: int, choose: Sampler
    ) -> Iterator[list[Chosen]]:
        """Yield as the function of this name. read: the logits after one more token of every cell, at these positions;
        it may not wait for the device.
        """
        self._begin(batch, choose)
        self._choose(logits)
        first = 1
        with batch.on_device():
            if self._graph is None and steps > 1:
                self._graph, first = self._capture(read, batch), 2
        for step in range(first, steps):
            if step % READ_EVERY == 0:
                yield self._chosen.tolist()
            assert self._graph is not None
            self._graph.replay()
            batch.num_new_tokens += 1
        yield self._chosen[: (steps - 1) % READ_EVERY + 1].tolist()

    def _begin(self, batch: GraphBatch, choose: Sampler) -> None:
        """Start the answers of a batch."""
        if isinstance(self._rule, Sampled) and isinstance(choose, Sampled):
            self._rule.uniforms.copy_(choose.uniforms)
        self._positions.copy_(torch.tensor(batch.positions), non_blocking=True)
        self._step.zero_()
        self._running.fill_(True)

    def _capture(self, read: Read, batch: GraphBatch) -> Any:
        """Return the captured step, after a step outside of it: kernels are compiled, buffers allocated."""
        with torch.cuda.device(self._stream.device):  # torch captures on the current GPU
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self._advance(read)
            torch.cuda.current_stream().wait_stream(self._stream)
            graph, before = torch.cuda.CUDAGraph(), batch.num_new_tokens
            with torch.cuda.graph(graph, stream=self._stream):
                self._advance(read)
        batch.num_new_tokens = before  # a capture runs nothing
        return graph

    def _advance(self, read: Read) -> None:
        logits = read(self._tokens, self._positions)
        self._positions += 1
        self._choose(logits)

    def _choose(self, logits: Float[Tensor, "cells vocabulary"]) -> None:
        """Choose the next token of every cell; what is not in its place in `_chosen` stays."""
        if self._at_least:
            allowed = logits.index_fill(-1, self._stop, -math.inf)
            logits = torch.where(self._step < self._at_least, allowed, logits)
        tokens, gaps = self._rule(logits, self._step)
        chosen = torch.stack((torch.where(self._running, tokens, -1).double(), gaps), dim=1)
        steps = torch.arange(READ_EVERY, device=logits.device)[:, None, None]
        self._chosen.copy_(torch.where(steps == self._step % READ_EVERY, chosen, self._chosen))
        self._running &= (tokens[:, None] != self._stop).all(dim=1) & gaps.isfinite()
        self._tokens.copy_(tokens)
        self._step += 1


def chosen_alike(choose: Sampler) -> Hashable:
    """Return what batches have in common whose tokens one captured step can choose; None: each has a step of its
    own.
    """
    if isinstance(choose, Sampled):
        return choose.temperature, choose.top_p, choose.uniforms.shape
    return choose if choose is greedy else None
