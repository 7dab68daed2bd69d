"""Prompts of a data set of the Hub, or of a table of yours, by the names of its columns.

    task=hub task.path=org/name task.revision=COMMIT task.columns={context:article,question:q,answers:labels.text}
    task=hub task.path=mine.parquet task.columns={context:text,answers:label}

Rows are what lines are in `kvbench.tasks.own_file`, and are scored by the same metrics.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from kvbench.extras.hub.table_rows import sha256_of_rows, table_rows
from kvbench.tasks import jsonl
from kvbench.tasks.own_file import OwnFile


@dataclass(frozen=True, kw_only=True)
class HubRows(OwnFile):
    """Sample i is row i of the table `path`. In rows the task is called `hub/` and the name of the data set or file.

    Its cells depend on the contents of the columns that are read, and on the settings that name them. Raises what
    `kvbench.extras.hub.table_rows.table_rows` raises, and UserError for a row that cannot be read.

    - Protocol: `task=hub task.path=org/name task.revision=COMMIT
      task.columns={context:article,question:q,answers:label}`. A row is what a line of `task=jsonl` is, and is scored
      by the same metrics. A dot enters a column of structures (`answers.text` of SQuAD); a text or a whole number is
      one answer. Without `task.columns` the columns are those called `context`, `question` or `input`, `messages` and
      `answers`, and names other than LongBench's columns are refused. A cell of a CSV file is the text that stands
      there, as Python's `csv` reads it; a JSON list of texts in it is several answers. `task.subset=` and
      `task.split=test` choose what is read of the data set.
    - Split: after the question, as for `task=jsonl`.
    - Source: the Hub, through `datasets` (`pip install 'kvbench[hub]'`). A revision is required, as a branch changes. A
      local file `.parquet`, `.arrow`, `.feather` or `.csv` is read by the same words without that package.
    - Cells depend on the contents of the columns that are read: `data_sha256` of their descriptions is the SHA-256 of
      the rows as JSON, whatever file they came from. In rows the task is called `hub/org/name`, or `hub/` and the name
      of the file.
    - Traps: columns that are no text, such as lists of paragraphs, are refused with the row's number; join them first.
    """

    name: str = "hub"
    revision: str | None = None
    subset: str | None = None
    split: str = "test"
    columns: Mapping[str, str] | None = field(default=None, hash=False)
    version = "hub.1"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "name", f"hub/{self.path if self.is_of_hub else Path(self.path).stem}")
        object.__setattr__(self, "samples", min(self.samples, len(self.row_numbers)))

    @property
    def is_of_hub(self) -> bool:
        """Whether `path` names a data set of the Hub."""
        return self.revision is not None

    @property
    def files(self) -> tuple[str, ...]:
        return (self.path,) if self.is_of_hub else super().files

    @cached_property
    def lines(self) -> Sequence[str]:
        """The rows as JSON."""
        columns = None if self.columns is None else tuple(sorted(self.columns.items()))
        return table_rows(self.path, self.revision, self.subset, self.split, columns)

    @property
    def row_numbers(self) -> Sequence[int]:
        return range(len(self.lines))

    def hash_data(self) -> str | None:
        return sha256_of_rows(self.lines)

    def read_lines(self, file: str, numbers: Collection[int] | None = None) -> Iterator[jsonl.Line]:
        for number in sorted(self.row_numbers if numbers is None else numbers):
            yield jsonl.Line(number, f"{file}:{number + 1}", self.lines[number].encode())
