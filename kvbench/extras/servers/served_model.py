"""The model of a server: its tokenizer is read here, its weights are not."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from kvbench.models.loading.spec import TOKENIZER, ModelSpec, content_hash, has_chat_template
from kvbench.support.annotations import Help
from kvbench.support.errors import MissingFile


@dataclass(frozen=True)
class ServedModel(ModelSpec):
    """A model of which only the tokenizer is read here: `path` is a folder with `tokenizer.json`, or a hub id."""

    only_if_stated: ClassVar[tuple[str, ...]] = (
        "dtype",
        "attention",
        "kernels",
        "template_kwargs",
        "threads",
        "max_batch",
        "device",
        "device_map",
        "cuda_graph",
        "products",
        "shape",
    )
    name: str = "endpoint"
    path: Annotated[str | None, Help("a folder with the model's tokenizer.json, or a name on the hub")] = None
    revision: Annotated[str | None, Help("of a tokenizer of the hub: a commit or a tag")] = None
    max_length: Annotated[int | None, Help("tokens of prompt and answer; null: no limit but the server's")] = None
    backend = "kvbench.extras.servers.run:Servers"
    runs_here = False

    def folder(self) -> Path:
        """Return the folder of the tokenizer. Raises MissingFile where there is none."""
        assert self.path is not None
        local = Path(self.path).expanduser()
        if not local.is_dir():
            if local.is_absolute() or self.path.startswith((".", "~")) or self.path.count("/") != 1:
                raise MissingFile(
                    f"model.path={self.path}: no such folder; give a folder with a tokenizer, or a hub id"
                )
            local = _fetched(self.path, self.revision)
        if not (local / "tokenizer.json").is_file():
            raise MissingFile(
                f"model.path={self.path}: the folder holds no tokenizer.json, which builds prompts for a server; "
                "save_pretrained of a fast tokenizer writes it"
            )
        return local

    def described(self) -> dict[str, Any]:
        """Return what names it in cells: all that is known of it. Raises as `folder` does."""
        template = {"chat": self.chat, "system": self.system, "chat_template": has_chat_template(self.folder())}
        return {"tokenizer_sha256": self.sha256(), "max_length": self.max_length, **template}

    def sha256(self) -> str:
        """Return a hash of the tokenizer's files. Raises as `folder` does."""
        return content_hash(self.folder(), TOKENIZER)


def _fetched(hub_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=list(TOKENIZER)))
    except Exception as error:  # the hub, the network and the cache have their own errors
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise MissingFile(
            f"model.path={hub_id}: no such folder, and its tokenizer could not be downloaded from the hub "
            f"({type(error).__name__}: {reason})"
        ) from error
