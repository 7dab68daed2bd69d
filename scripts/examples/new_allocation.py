"""A layer allocation in one file: who gets how much of one budget, exactly, and what that does to answers.

    python scripts/examples/new_allocation.py

An allocation says how many pairs each layer keeps on average; the policy says the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from kvbench.eviction.allocation.allocation import Layers, UniformLayers
from kvbench.eviction.allocation.layers import PyramidLayers
from kvbench.eviction.allocation.shares import AllocationBudget, shares
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.scores.attn import Attention
from kvbench.models.loading.load import load, model_info
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.prompts.build import build
from kvbench.models.prompts.tokens import TokensOf
from kvbench.tasks.ruler.niah import Niah
from kvbench.tasks.task import Sample


@dataclass(frozen=True)
class MiddleLayers(Layers):
    """Layers in the middle keep `times` as much as the first and the last; in between it is a straight line.

    Raises ValueError for a number below 1.
    """

    kind: Literal["middle"] = "middle"
    times: float = 3.0

    def __post_init__(self) -> None:
        if not self.times >= 1:
            raise ValueError(f"policy.layers.times={self.times}: the middle keeps 1 time as much or more")

    def __call__(self, layer_weights: Sequence[float], terms: AllocationBudget) -> tuple[int, ...]:
        """Candidates per stored head for each layer; `terms.base` of them is the mean that must come out."""
        last = max(1, len(layer_weights) - 1)
        weights = [1 + (self.times - 1) * (1 - abs(2 * layer / last - 1)) for layer in range(len(layer_weights))]
        return shares(len(layer_weights) * terms.base, weights, terms.candidates)


ALLOCATIONS: tuple[Layers, ...] = (UniformLayers(), PyramidLayers(beta=4), MiddleLayers())
TASK = Niah(
    name="ruler/niah_single_1",
    haystack="noise",
    keys="words",
    values="numbers",
    context_length=512,
    samples=12,
    max_new_tokens=12,
)
PAIRS = 28


def main() -> None:
    """Print the pairs of each layer, and how many needles are found with them."""
    model = load(model_info(ModelSpec("reference")))
    evictions = [
        Eviction(Policy("mine", pool=Pool("max", 7), recent=16, layers=layers), Attention(), TokenBudget(PAIRS))
        for layers in ALLOCATIONS
    ]
    correct = {eviction.policy.layers.kind: 0.0 for eviction in evictions}
    lengths: dict[str, list[int]] = {}
    for sample in TASK.generate(TokensOf(model.tokenizer), range(TASK.samples)):
        assert isinstance(sample, Sample)
        prompt = build(model.tokenizer, sample, TASK, model.max_length)
        prefilled = model.engine.prefill(torch.tensor(prompt.prefill), windows={16})  # once for all of them
        caches = [eviction(prefilled.cache) for eviction in evictions]
        tile = model.engine.batch(caches, sample.max_new_tokens)  # they decode together
        for eviction, cache, answer in zip(
            evictions, caches, model.engine.generate(prefilled, tile, model.stop), strict=True
        ):
            kind = eviction.policy.layers.kind
            correct[kind] += TASK.score(model.tokenizer.decode(answer.ids), sample)
            lengths[kind] = cache.lengths[:, 0].tolist()
            assert cache.pairs == PAIRS * cache.lengths.numel()
    for kind, worth in correct.items():
        print(f"{kind:8} pairs by layer {lengths[kind]}, sum {sum(lengths[kind])}; {worth:.0f} of {TASK.samples} found")


if __name__ == "__main__":
    main()
