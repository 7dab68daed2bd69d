"""A score in one file: written, held to what every score must do, and compared with attention.

    python scripts/examples/new_score.py

To use it from the command line, put the class in a package of your own: scripts/examples/plugin.py.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Group, Pool
from kvbench.eviction.scores.attn import Attention, received
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.extras.conformance.properties import check
from kvbench.models.loading.load import LoadedModel, load, model_info
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.prompts.build import build
from kvbench.models.prompts.tokens import TokensOf
from kvbench.tasks.ruler.niah import Niah
from kvbench.tasks.task import Sample


@dataclass(frozen=True)
class Steady(Score):
    """(1 - doubt) times the largest attention weight that a pair has from any observed row, plus doubt times the mean
    over all rows. The larger `doubt` is, the less a pair is worth that one row alone looks at.

    Raises ValueError for a doubt outside 0..1.
    """

    doubt: float = 0.5
    name: str = "steady"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=True)  # the engine records the observation window
    group: ClassVar[Group] = "mean"  # how the query heads of a KV head are merged

    def __post_init__(self) -> None:
        if not 0 <= self.doubt <= 1:
            raise ValueError(f"score.doubt={self.doubt}: from 0 to 1, e.g. 0.5")

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        """Scores [heads, tokens] of a dense layer: one row a query head, higher is kept."""
        assert window is not None
        mean, largest = received(layer, window, "mean"), received(layer, window, "max")
        return (1 - self.doubt) * largest + self.doubt * mean


POLICY = Policy("snapkv", window=16, pool=Pool("max", 7), recent=16)
TASK = Niah(
    name="ruler/niah_single_1",
    haystack="noise",
    keys="words",
    values="numbers",
    context_length=512,
    samples=12,
    max_new_tokens=12,
)


def answers(model: LoadedModel, score: Score, pairs: int) -> list[float]:
    """What the answers to the task's samples are worth when so many pairs per head stay."""
    values = []
    for sample in TASK.generate(TokensOf(model.tokenizer), range(TASK.samples)):
        assert isinstance(sample, Sample)
        prompt = build(model.tokenizer, sample, TASK, model.max_length)
        prefilled = model.engine.prefill(torch.tensor(prompt.prefill), windows={POLICY.rows(10**6)})
        smaller = Eviction(POLICY, score, TokenBudget(pairs))(prefilled.cache)
        tile = model.engine.batch([smaller], sample.max_new_tokens)
        (answer,) = model.engine.generate(prefilled, tile, model.stop)
        values.append(TASK.score(model.tokenizer.decode(answer.ids), sample))
    return values


def main() -> None:
    """Check the score, then count the needles that are found with it."""
    check(Steady())  # budgets spent, ties broken alike, only declared evidence read, and a dozen properties more
    print("steady has the properties of a score")
    model = load(model_info(ModelSpec("reference")))
    for pairs in (22, 48):
        for score in (Attention(), Steady(), Steady(doubt=0.0)):
            values = answers(model, score, pairs)
            label = f"{score.name} doubt={score.doubt}" if isinstance(score, Steady) else score.name
            print(f"{pairs} pairs per head, {label:16} {sum(values):4.0f} of {len(values)} needles found")


if __name__ == "__main__":
    main()
