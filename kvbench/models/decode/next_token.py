"""Which token follows: the most likely one, a drawn one, or the token of a recorded answer.

A drawn token depends on the logits of its cell and on one uniform number, which depends on the seed, the prompt, the
answer and the step alone. All cells of a prompt draw with the same numbers, so that their answers are paired.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

Choice = tuple[Int[Tensor, "cells"], Float[Tensor, "cells"]]
"""The chosen token of every cell, and the gap between its two best logits in float64."""
Sampler = Callable[[Float[Tensor, "cells vocabulary"], int | Int[Tensor, ""]], Choice]
"""From logits and the number of the step; the number may lie on the device."""

Chosen = list[list[float]]
"""The token of every cell in one step (-1 after its answer has ended) and the gap between its two best logits."""


def greedy(logits: Float[Tensor, "cells vocabulary"], step: int | Int[Tensor, ""] = 0) -> Choice:
    """Return the most likely token, in every step."""
    first, second = logits.topk(2, dim=-1).values.double().unbind(dim=-1)
    return logits.argmax(dim=-1), first - second


@dataclass(frozen=True)
class Sampled:
    """A token from softmax(logits / temperature), limited to the fewest most likely ones whose sum reaches `top_p`.

    uniforms: one number in [0, 1) for every step and cell, on the device of the logits. The most likely tokens come
    first, equal ones by id: token j is drawn if the number, as a share of the sum of all that are allowed, lies within
    its part. Computed in float64.
    """

    temperature: float
    top_p: float
    uniforms: Float[Tensor, "steps cells"]

    def __call__(self, logits: Float[Tensor, "cells vocabulary"], step: int | Int[Tensor, ""]) -> Choice:
        probabilities, order = (logits.double() / self.temperature).softmax(dim=-1).sort(descending=True, stable=True)
        before = running_sums(probabilities) - probabilities
        probabilities = probabilities.masked_fill(before >= self.top_p, 0.0)
        ends = running_sums(probabilities)
        place = torch.as_tensor(step, device=logits.device).view(1)
        cells = torch.arange(len(logits), device=logits.device).clamp(max=self.uniforms.shape[1] - 1)  # rows that pad
        uniform = self.uniforms.index_select(0, place)[0].index_select(0, cells)
        last = (probabilities > 0).sum(dim=-1) - 1
        drawn = torch.minimum((ends <= (uniform * ends[:, -1])[:, None]).sum(dim=-1), last.clamp(min=0))
        return order.gather(1, drawn[:, None])[:, 0], greedy(logits)[1]


def running_sums(parts: Float[Tensor, "*cells vocabulary"]) -> Float[Tensor, "*cells vocabulary"]:
    """Return the sums of parts of 1 up to each column. A GPU adds floats in an order of its own, and a single row
    otherwise than several: there the sums are of whole numbers of 2**-60.
    """
    if parts.device.type == "cpu":
        return parts.cumsum(dim=-1)
    return (parts * 2.0**60).long().cumsum(dim=-1).double() * 2.0**-60


class TeacherForced:
    """The tokens of a given answer, one in each step, for all cells. losses: what they cost, `[steps, cells]`, in nats.

    losses has the negative log-likelihood of each token given those before it, in float32 or wider, on the device.
    """

    def __init__(self, ids: Sequence[int], cells: int, device: torch.device) -> None:
        self._ids = torch.tensor(ids, device=device)
        self.losses = torch.full((len(ids), cells), torch.nan, dtype=torch.double, device=device)

    def __call__(self, logits: Float[Tensor, "cells vocabulary"], step: int | Int[Tensor, ""]) -> Choice:
        place = torch.as_tensor(step, device=logits.device).view(1)
        token, cells = self._ids.index_select(0, place), self.losses.shape[1]
        wide = logits[:cells] if logits.dtype == torch.float64 else logits[:cells].float()
        self.losses.index_copy_(0, place, -wide.log_softmax(dim=-1).index_select(1, token).T.double())
        return token.expand(len(logits)), greedy(logits)[1]


def uniforms(seed: int, prompt: int, answer: int, steps: int) -> np.ndarray:
    """Numbers in [0, 1), float64 of shape (steps,): 53 bits each of SHAKE-256 of the three numbers."""
    stream = hashlib.shake_256(f"{seed} {prompt} {answer}".encode()).digest(8 * steps)
    return (np.frombuffer(stream, dtype="<u8") >> 11) * 2.0**-53
