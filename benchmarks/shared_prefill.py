"""What sharing a prefill and decoding cells as one batch is worth, as ratios measured in one run.

    python benchmarks/shared_prefill.py [--tokens 1024] [--cells 24] [--new 32] [--repeat 3]

The embedded model reads random text; every cell keeps a different share. `one by one` reads the prompt again for each
cell and decodes it alone in a tile of one; `shared` reads once and decodes the cells in tiles of sixteen. Both must
give the same answers. Medians, with the fastest and slowest repeat.
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from decimal import Decimal

import torch

from kvbench.eviction.budget import FractionBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.scores.attn import Attention
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from kvbench.models.loading.load import load, model_info
from kvbench.models.loading.spec import ModelSpec

Answers = list[tuple[int, ...]]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 1024), ("cells", 24), ("new", 32), ("repeat", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    model = load(model_info(ModelSpec("reference", dtype="float32", threads=1))).engine.model
    ids = torch.randint(1, model.config.vocab_size, (options.tokens,), generator=torch.Generator().manual_seed(0))
    policy = Policy("snapkv", recent=16, pool=Pool("max", 7))
    shares = [FractionBudget(Decimal(cell + 1) / (2 * options.cells)) for cell in range(options.cells)]
    evictions = [Eviction(policy, Attention(), share) for share in shares if share.of(options.tokens) >= 16]
    ways: dict[str, Callable[[], Answers]] = {
        "one by one": lambda: one_by_one(Engine(model, max_batch=1), ids, evictions, options.new),
        "shared": lambda: shared(Engine(model), ids, evictions, options.new),
    }
    if ways["one by one"]() != ways["shared"]():
        sys.exit("the two ways give different answers: nothing to time")
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, {options.repeat} repeats")
    print(f"{len(evictions)} cells, {options.tokens} tokens, {options.new} new")
    seconds = {name: timed(way, options.repeat) for name, way in ways.items()}
    slow = statistics.median(seconds["one by one"])
    for name, taken in seconds.items():
        middle = statistics.median(taken)
        print(f"{name:<12} {middle:7.3f} s ({min(taken):.3f} to {max(taken):.3f})  {slow / middle:5.1f} x")


def one_by_one(engine: Engine, ids: torch.Tensor, evictions: list[Eviction], new: int) -> Answers:
    """Each cell reads the prompt itself."""
    answers = []
    for eviction in evictions:
        prefilled = engine.prefill(ids, {16})
        tile = RaggedBatch([eviction(prefilled.cache)], engine.max_batch, new)
        answers += engine.generate(prefilled, tile, ())
    return [answer.ids for answer in answers]


def shared(engine: Engine, ids: torch.Tensor, evictions: list[Eviction], new: int) -> Answers:
    """All cells share one prefill and one ranking, and decode in tiles."""
    prefilled = engine.prefill(ids, {16})
    ranking = evictions[0].rank(prefilled.cache)
    caches = [eviction.evict(prefilled.cache, eviction.decide(prefilled.cache, ranking)) for eviction in evictions]
    answers = []
    for start in range(0, len(caches), engine.max_batch):
        tile = RaggedBatch(caches[start : start + engine.max_batch], engine.max_batch, new)
        answers += engine.generate(prefilled, tile, ())
    return [answer.ids for answer in answers]


def timed(way: Callable[[], Answers], repeat: int) -> list[float]:
    """Wall seconds of each repeat."""
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        way()
        taken.append(time.perf_counter() - start)
    return taken


if __name__ == "__main__":
    main()
