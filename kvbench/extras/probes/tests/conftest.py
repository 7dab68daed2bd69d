"""A tiny model in float64 that has read a prompt, and the same prompt read by transformers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch

from kvbench.eviction.budget import parse_budget
from kvbench.eviction.policy import Policy
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.score import Score
from kvbench.extras.probes.probe import Measured, Probe
from kvbench.extras.probes.scene import Scene
from kvbench.extras.probes.tests.twin import Arrays, arrays_of
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.loading.load import LoadedModel
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.prompts.prompt import Prompt
from kvbench.run.cell import Cell
from kvbench.run.eviction_method import EvictionMethod
from kvbench.run.rows import TimedPrefill
from tests.models.conftest import tiny_llama
from tests.questions import Questions

TOKENS, WINDOWS = 37, (1, 5, 16, 37)


@dataclass(frozen=True)
class World:
    """A scene, and what a twin needs to say the same of it: the arrays of prompt, question and first decoded token."""

    scene: Scene
    ids: tuple[int, ...]

    @cached_property
    def arrays(self) -> list[Arrays]:
        return arrays_of(tiny_llama(torch.float64, attn_implementation="sdpa"), torch.tensor(self.ids))

    @property
    def tokens(self) -> int:
        return self.scene.tokens

    @property
    def last(self) -> int:
        """The row of the first decoded token."""
        return len(self.ids) - 1

    def measured(self, probe: Probe, cell: Cell) -> list[Measured]:
        """All numbers of a probe."""
        return list(probe.measure(self.scene, probe.judged(cell)))


def world_of(question: int = 0) -> World:
    """37 tokens to evict from, `question` of them read after the cut."""
    ids = torch.randint(0, 97, (TOKENS + question,), generator=torch.Generator().manual_seed(5)).tolist()
    model = tiny_llama(torch.float64)
    with torch.no_grad():
        first = int(tiny_llama(torch.float64, attn_implementation="sdpa")(torch.tensor([ids])).logits[0, -1].argmax())
    bridge.attach(model)
    engine = Engine(model, prefill_chunk=11)
    prefilled = engine.prefill(torch.tensor(ids[:TOKENS]), WINDOWS)
    prompt = Prompt(tuple(ids[:TOKENS]), tuple(ids[TOKENS:]), "", prefix_tokens=3)
    loaded = LoadedModel(engine, None, frozenset(), 512, {})
    return World(Scene(loaded, prompt, TimedPrefill(prefilled, 0.0)), (*ids, first))


@pytest.fixture(scope="package")
def world() -> World:
    """The cut comes after the whole prompt."""
    return world_of()


@pytest.fixture
def make_cell() -> Callable[..., Cell]:
    """A cell of any policy and score: make_cell(Attention(), "0.25", window=5, layout="query_heads")."""

    def make(score: Score | None = None, budget: str = "0.25", name: str = "plain", **fields: Any) -> Cell:
        score = score or Attention()
        task, model = Questions(), ModelSpec("reference")
        policy = Policy(name, **fields)
        return Cell(model, task, EvictionMethod(policy, score, parse_budget(budget), name, score.name), Schedule(), 42)

    return make
