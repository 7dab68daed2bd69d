"""Models in one file: the member of the group `model_file` that has the name of its suffix reads it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from kvbench.support.named import code_of, member


@runtime_checkable
class ModelFile(Protocol):
    """How a kind of file is read: a module with these functions, which may raise UserError and MissingFile."""

    def template(self, file: Path) -> str:
        """Return the chat template; empty without one."""
        ...

    def quantization(self, file: Path) -> str | None:
        """Return how weights are stored: `Q4_1`; None for plain numbers."""
        ...

    def read_config(self, file: Path) -> Any:
        """Return the configuration, of transformers."""
        ...

    def read_tokenizer(self, file: Path) -> Any:
        """Return the tokenizer, of transformers."""
        ...

    def arguments(self, file: Path, dtype: Any) -> Mapping[str, Any]:
        """Return arguments of `from_pretrained` for a model in a `torch.dtype`, or in "auto"."""
        ...

    def check(self, file: Path, model: Any) -> None:
        """Raise UserError for a model that is not what the file holds."""
        ...


def is_model_file(path: str | None) -> bool:
    """Return whether a path is named as a file that a member reads, whether it is there or not."""
    kind = Path(path or "").suffix[1:]
    return kind.isidentifier() and member("model_file", kind) is not None


def reader_of(file: Path) -> ModelFile:
    """Return what reads a model file. Raises UserError for a file of another kind."""
    return code_of("model_file", file.suffix[1:])
