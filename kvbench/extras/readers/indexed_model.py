"""Models with sparse attention of their own: `model=indexed`, and what is refused before their weights are loaded."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

from kvbench.eviction.scores.random import Random
from kvbench.eviction.scores.recency import Recency
from kvbench.eviction.scores.score import WindowScore
from kvbench.extras.readers.indexer import Indexer, use_indexers
from kvbench.models.engine import Engine
from kvbench.models.loading.load import ModelInfo
from kvbench.models.loading.spec import ModelSpec
from kvbench.run.local import Local
from kvbench.run.plan import PrefillGroup
from kvbench.support.errors import UserError

TYPES = ("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4")
TRANSFORMERS = (5, 23)
"""The oldest version that was tried and runs them; 5.17 does not."""
LEAST = 8
"""The smallest `index_topk`: the check of a loaded model reads so many tokens, all of them."""
OF_PAIRS = "kvbench.eviction.scores."
"""The package of scores that read attention or positions and nothing else of a key, if their class says so."""


@dataclass(frozen=True)
class IndexedModel(ModelSpec):
    """A model of one of `TYPES`. Raises UserError for kernels and devices other than PyTorch on a CPU."""

    backend: ClassVar[str] = "kvbench.extras.readers.indexed_model:IndexedLocal"
    holder: ClassVar[Indexer] = Indexer()

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {"kernels": self.kernels, "device": self.device, "device_map": self.device_map}
        for name, value in given.items():
            if value not in (None, "torch", "cpu"):
                raise UserError(f"model.{name}={value}: model=indexed runs in PyTorch on a CPU alone: leave it out")

    def adapted(self, config: Any) -> Any:
        """Return the configuration with layers that hold all tokens. Raises UserError for another model, and for a
        transformers whose model classes look layers up by their types.
        """
        import transformers  # takes seconds

        if config.model_type not in TYPES:
            raise UserError(
                f"model.path={self.path}: model=indexed reads {', '.join(TYPES)}, not {config.model_type}: use model=hf"
            )
        if config.index_topk < LEAST:
            raise UserError(
                f"model.path={self.path}: index_topk={config.index_topk} of its configuration: allowed: {LEAST} or more"
            )
        installed = transformers.__version__
        if tuple(map(int, installed.split(".")[:2])) < TRANSFORMERS:
            oldest = ".".join(map(str, TRANSFORMERS))
            raise UserError(f"model=indexed needs transformers {oldest} or later, and {installed} is installed")
        adapted = deepcopy(config)
        adapted.layer_types = ["full_attention"] * config.num_hidden_layers
        return adapted

    def adapt(self, engine: Engine) -> None:
        use_indexers(engine)


class IndexedLocal(Local):
    """The backend of these models."""

    def prepare(self, spec: ModelSpec) -> ModelInfo:
        info = super().prepare(spec)
        if info.device.type != "cpu":
            raise UserError(
                "model=indexed runs in PyTorch on a CPU alone, and this machine has a GPU: model.device=cpu"
            )
        return info

    def check(self, prepared: ModelInfo, group: PrefillGroup) -> None:
        """Refuse scores that read keys, which have more numbers here. Raises as `Local.check` too."""
        for score in (cell.score for cell in group.cells):
            if not isinstance(score, WindowScore | Random | Recency) or not type(score).__module__.startswith(OF_PAIRS):
                raise UserError(
                    f"score {score.name} may read keys, beside which model=indexed holds index keys: use a score of "
                    "attention weights or positions, such as attn, obcache_joint or recency"
                )
        super().check(prepared, group)
