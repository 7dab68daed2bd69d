"""A model that `kvbench data pull` fetched: its folder lies beside the data of tasks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from kvbench.models.loading.spec import ModelSpec
from kvbench.support.annotations import Help
from kvbench.support.errors import MissingFile
from kvbench.support.quantity import shortened
from kvbench.tasks import files
from kvbench.tasks.data.lock import read_lock


@dataclass(frozen=True)
class PulledModel(ModelSpec):
    """`pulled`: the source of `kvbench data pull`, whose folder lies under `root`, the setting `data.root`."""

    is_pulled = True
    left_out = (*ModelSpec.left_out, "pulled", "root")

    pulled: Annotated[str, Help("a source of kvbench data pull: its folder under data.root")] = ""
    root: str | None = None

    def folder(self) -> Path:
        """Return the folder. Raises MissingFile, with the command that fetches it, if a file of it is missing."""
        under = files.folder(self.root)
        if missing := files.absent(self.root, read_lock()[self.pulled]):
            raise MissingFile(
                f"model={self.name}: no {shortened(missing, 2)} under {under}: {files.command(self.root, self.pulled)} "
                "fetches the model, or name another folder with data.root=FOLDER"
            )
        return under / self.pulled
