"""The stages of training, read from a file: what is drawn, how long rows are, how fast weights move."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

PLAN = Path(__file__).with_name("plan.json")
"""The stages that took place."""


class Stage(BaseModel):
    """One stage.

    steps: until it ends. rate: the learning rate, of matrices; that of embeddings and norms is `embedding_rate` times
    as high. shapes: (tokens of a row, rows of a step, share of the steps). shares: kinds of rows, as `Families.row`
    names them. jumps, evicted: shares of rows whose positions skip ahead, and of those with one answer that see little
    of their prompt. last_rate: what the rate falls to over the stage, if it does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    steps: int
    rate: float
    shapes: tuple[tuple[int, int, float], ...]
    shares: dict[str, float]
    jumps: float = 0.0
    furthest: int = 2000
    evicted: float = 0.0
    last_rate: float | None = None
    embedding_rate: float = 0.6


@dataclass(frozen=True)
class Plan:
    """Stages one after the other."""

    stages: tuple[Stage, ...]

    @classmethod
    def read(cls, file: Path) -> "Plan":
        """Raises pydantic.ValidationError for a file of another form."""
        return cls(TypeAdapter(tuple[Stage, ...]).validate_json(file.read_text("utf-8")))

    @property
    def steps(self) -> int:
        """Of all stages."""
        return sum(stage.steps for stage in self.stages)

    def at(self, step: int) -> tuple[Stage, int]:
        """The stage of a step, and the step's place in it."""
        for stage in self.stages:
            if step < stage.steps:
                return stage, step
            step -= stage.steps
        raise IndexError(step)
