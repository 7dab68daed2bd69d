"""A score that reads the model's output matrix and hidden states: one class as a file, as an object and in a package.

    python scripts/examples/output_error.py
    kvbench run score=attn,scripts/examples/output_error.py budget=48

In a package of your own the file is its `__init__.py`, with an entry point and the YAML file of docs/extend.md.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.eviction.scores.window import Chunk, over_columns


@dataclass(frozen=True)
class OutputError(Score):
    """sum_i A_ij / (1 - A_ij) |W_o (v_j - o_i)| / |x_i|^power over the observed rows i.

    The first factors are how far the output of the attention moves if pair j alone is evicted: the weights A_ij that
    are left are scaled up to a sum of 1. W_o is the part of the output projection for a query head, o_i the output of
    the head, and x_i the hidden state that the attention reads at row i. power: 0 leaves x_i out.

    Raises ValueError for a negative power.
    """

    power: float = 1.0
    name: str = "output_error"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True, projections=("output",), hidden_states="block")
    group: ClassVar[Group] = "mean"  # how the query heads of a KV head are merged

    def __post_init__(self) -> None:
        if not self.power >= 0:
            raise ValueError(f"score.power={self.power}: 0 or more, e.g. 1")

    def read_hidden(self, layer: LayerCache, hidden: torch.Tensor) -> Scores:
        """|x_i|^power of new tokens, for each KV head: all that is kept of the hidden states."""
        return hidden.float().norm(dim=-1).pow(self.power).expand(layer.cache_heads, -1)

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer: one row a query head, higher is kept."""
        assert window is not None
        matrices = layer.projections["output"].to(layer.values.device).float().unflatten(1, (layer.query_heads, -1))
        squared = torch.einsum("xhd,xhe->hde", matrices, matrices)  # |W_o d|^2 is d.(squared d)
        return over_columns(layer, window, partial(_errors, squared=squared, sizes=layer.recordings[self][:1]))


def _errors(chunk: Chunk, squared: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """The sum over a block of rows, for a run of columns [heads, columns]."""
    values, outputs = chunk.values.repeat_interleave(chunk.group, dim=0), chunk.outputs
    turned = outputs @ squared
    squares = ((values @ squared) * values).sum(-1)[:, None] - 2 * turned @ values.mT
    squares = squares + (turned * outputs).sum(-1)[..., None]
    odds = chunk.weights / chunk.rest.clamp_min(1e-6)
    return (odds * squares.clamp_min(0).sqrt() / sizes[:, chunk.row :][:, : outputs.shape[1], None]).sum(dim=1)


def main(samples: int = 12) -> None:
    """Check the score, and compare it with attention on the embedded model."""
    import kvbench
    from kvbench.extras.conformance.properties import check

    check(OutputError())
    print("output_error has the properties of a score")
    settings = {"task.samples": samples, "task.max_new_tokens": 12, "task.context_length": 512, "protocol": "common"}
    result = kvbench.Bench("reference").compare(
        ["attn", OutputError(), OutputError(power=0.0)], budgets=[22, 48], data="ruler/niah_single_1", **settings
    )
    for (score, budget), rows in result.frame.groupby(["score", "budget"]):
        print(f"{budget} pairs per head, {score:22} {rows['value'].sum():3.0f} of {len(rows)} needles found")


if __name__ == "__main__":
    main()
