"""A table of what each head is worth, as a file: the text that DuoAttention publishes, or one that says what it is of.

DuoAttention (Xiao et al. 2024, https://arxiv.org/abs/2410.10819) publishes `full_attention_heads.tsv` by model: a line
a layer, a number for each KV head, tabs in between. Nothing there says which model; what `kvbench heads` writes does:
a JSON object with the numbers, the hash of the model that they were found with, and how.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.support.errors import MissingFile, UserError

FORMAT = "kvbench head table 1"
"""What the JSON form says of itself."""

Table = np.ndarray[Any, np.dtype[np.float64]]
"""[layers, KV heads], in 0..1."""


@dataclass(frozen=True)
class HeadFile:
    """Numbers of heads in 0..1, and what they are of.

    model, model_sha256: the model by name and by the bytes of its files; None where the file does not say. source: how
    the numbers were found.
    """

    scores: tuple[tuple[float, ...], ...]
    model: str | None = None
    model_sha256: str | None = None
    source: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and KV heads."""
        return len(self.scores), len(self.scores[0])

    def write(self, path: Path) -> None:
        """Write the numbers alone for a name in `.tsv`, else everything as JSON; every digit stays."""
        if path.suffix == ".tsv":
            text = "".join("\t".join(map(repr, layer)) + "\n" for layer in self.scores)
        else:
            text = json.dumps({"format": FORMAT, "shape": self.shape, **asdict(self)}, indent=1) + "\n"
        path.write_text(text, "utf-8")


def read(path: str) -> HeadFile:
    """Read either form; numbers are taken into 0..1, as DuoAttention's code does.

    Raises FileNotFoundError where there is no file, ValueError for one that holds no such table.
    """
    if not Path(path).is_file():
        raise MissingFile(f"score.path={path}: no such file; a table has a line a layer, tabs between its heads")
    try:
        text = Path(path).read_text("utf-8")
        found = _from_json(path, text) if text.lstrip().startswith("{") else HeadFile(_rows(_from_tsv(path, text)))
    except UnicodeDecodeError as error:
        raise UserError(f"score.path={path} is no text: {error}") from error
    return found


def _from_tsv(path: str, text: str) -> Table:
    if not text.strip():
        raise UserError(f"score.path={path} is empty: a table has a line a layer, tabs between its heads")
    try:
        table = np.loadtxt(text.splitlines(), delimiter="\t", dtype=np.float64, ndmin=2)
    except ValueError as error:
        said = str(error).partition(";")[0]  # numpy goes on with advice for those who call it
        raise UserError(
            f"score.path={path} is no table of numbers: {said}: a table has a line a layer, tabs between its heads"
        ) from error
    return _checked(path, table)


def _from_json(path: str, text: str) -> HeadFile:
    try:
        node = json.loads(text)
        kind, shape = node.pop("format", None), tuple(node.pop("shape"))
        table = np.array(node.pop("scores"), dtype=np.float64)
        found = HeadFile(_rows(_checked(path, table)), **node)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"score.path={path} is no head table as kvbench heads writes it: {error}") from error
    if kind != FORMAT or shape != found.shape:
        raise UserError(
            f"score.path={path}: format {kind!r} and shape {list(shape)} of a table of {list(found.shape)}; "
            f"legal: {FORMAT!r} and the shape of its table"
        )
    return found


def _checked(path: str, table: Table) -> Table:
    if table.ndim != 2 or not table.size or not np.isfinite(table).all():
        raise UserError(f"score.path={path}: a table holds a finite number for each head of each layer")
    return table.clip(0, 1)


def _rows(table: Table) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in table.tolist())
