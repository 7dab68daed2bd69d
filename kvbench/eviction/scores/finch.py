"""FINCH: the attention of the question, each of its tokens weighed by how many tokens it could attend to.

FINCH (Corallo, Papotti 2024, https://arxiv.org/abs/2408.00167), as in `FinchPress` of kvpress. The window is the
question, which the policy says (`policy.window=question`).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.scores.attn import received
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.eviction.scores.window import Chunk, over_columns


@dataclass(frozen=True)
class Finch(Score):
    """mean over the observed rows i of n_i A_ij, n_i the number of tokens before row i; A_ij without `normalize`.

    A later row divides its attention among more tokens, so that without n_i it would count less.
    """

    normalize: bool = True
    name: str = "finch"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        assert rows is not None
        if not self.normalize:
            return received(layer, rows, "mean")

        def weighed(chunk: Chunk) -> Float[Tensor, "heads columns"]:
            before = torch.arange(chunk.row, chunk.row + chunk.weights.shape[1], device=chunk.weights.device)
            return (chunk.weights * before[:, None]).sum(dim=1)

        return over_columns(layer, rows, weighed) / rows.lse.shape[1]
