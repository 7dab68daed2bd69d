"""Decoding by a CUDA graph: the step of a batch is captured once and replayed, without work of the host in between.

All that changes from step to step lies on the device: the number of tokens read (`RaggedBatch.on_device`), positions,
the chosen tokens, and which cells are still running. The host reads the tokens of `READ_EVERY` steps at once, so that
at most `READ_EVERY` - 1 steps follow the end of the last answer.
"""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.decode.next_token import Sampler

READ_EVERY = 8
"""Steps whose tokens the host reads at once."""
LEAST_STEPS = 16
"""Steps of an answer from which on capturing one pays."""

Chosen = list[list[float]]
"""The token of every cell in one step (-1 after its answer has ended) and the gap between its two best logits."""


class DecodeGraph:
    """Decoding of a batch on one GPU.

    read: the logits after one more token of every cell, at these positions; choose: the token that they give. Neither
    may wait for the device. No `stop` token is chosen among the first `at_least`.
    """

    def __init__(
        self,
        read: Callable[[Int[Tensor, "cells"], Int[Tensor, "cells"]], Float[Tensor, "cells vocabulary"]],
        choose: Sampler,
        batch: RaggedBatch,
        device: torch.device,
        stop: Collection[int],
        at_least: int = 0,
    ) -> None:
        self._read, self._rule, self._batch, self._at_least = read, choose, batch, at_least
        self._stop = torch.tensor(sorted(stop), dtype=torch.long).to(device, non_blocking=True)
        self._positions = torch.tensor(batch.positions).to(device, non_blocking=True)
        self._step = torch.zeros((), dtype=torch.long, device=device)
        self._tokens = torch.zeros(batch.cells, dtype=torch.long, device=device)
        self._running = torch.ones(batch.cells, dtype=torch.bool, device=device)
        self._chosen = torch.zeros(READ_EVERY, batch.cells, 2, dtype=torch.double, device=device)

    def blocks(self, logits: Float[Tensor, "cells vocabulary"], steps: int) -> Iterator[list[Chosen]]:
        """Yield the tokens of `steps` steps, several steps at a time; the first is chosen from `logits`."""
        self._choose(logits)
        with self._batch.on_device():
            stream = torch.cuda.Stream(self._chosen.device)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):  # a step outside the graph first: kernels are compiled, buffers allocated
                self._advance()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with self._uncounted(), torch.cuda.graph(graph):
                self._advance()
        for step in range(2, steps):
            if step % READ_EVERY == 0:
                yield self._chosen.tolist()
            graph.replay()
            self._batch.num_new_tokens += 1
        yield self._chosen[: (steps - 1) % READ_EVERY + 1].tolist()

    def _advance(self) -> None:
        logits = self._read(self._tokens, self._positions)
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

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        """Yield a capture runs nothing, so that no token is read."""
        before = self._batch.num_new_tokens
        yield
        self._batch.num_new_tokens = before
