"""What was asked, for those who read answers: prompts/<name of the rows file>, one line a prompt of a unit.

    {"prompt_sha256": "9f..", "tail": "..the last characters of the prompt", "references": ["right answers"]}

Rows name their prompt by `prompt_sha256`, so one line serves all cells. Nothing is compared by these texts.
"""

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvbench.records.folder import ResultsFolder
from kvbench.records.lines import read_lines
from kvbench.support.errors import UserError

ROOM = "prompts"
TAIL = 600
"""Characters of a prompt that are kept, its last ones."""
REFERENCES = 8
REFERENCE = 400
"""Right answers that are kept, and characters of each."""


@dataclass(frozen=True)
class PromptRecord:
    """The end of a prompt and its right answers."""

    prompt_sha256: str
    tail: str
    references: tuple[str, ...]

    @classmethod
    def of(cls, prompt_sha256: str, prompt: str, references: tuple[str, ...]) -> "PromptRecord":
        """What is kept of a prompt and its answers."""
        return cls(prompt_sha256, prompt[-TAIL:], tuple(text[:REFERENCE] for text in references[:REFERENCES]))

    def to_json(self) -> str:
        """One line without its newline, ASCII only."""
        return json.dumps({"prompt_sha256": self.prompt_sha256, "tail": self.tail, "references": self.references})

    @classmethod
    def from_json(cls, line: str | bytes) -> "PromptRecord":
        """What a line says. Raises ValueError for one that says something else."""
        try:
            data: dict[str, Any] = json.loads(line)
            told = cls(data["prompt_sha256"], data["tail"], tuple(data["references"]))
        except (KeyError, TypeError) as error:
            raise UserError(f"not a line about a prompt: {type(error).__name__}: {error}") from error
        if not all(isinstance(text, str) for text in (told.prompt_sha256, told.tail, *told.references)):
            raise UserError("not a line about a prompt: its texts are no texts")
        return told


def read_prompts(
    folder: str | os.PathLike[str], warn: Callable[[str], None] = warnings.warn
) -> dict[str, PromptRecord]:
    """What a results folder knows of its prompts, by `prompt_sha256`.

    A torn last line is dropped and told to `warn`. Raises ValueError naming file and line for a broken one elsewhere.
    """
    found = {}
    for path in sorted((ResultsFolder(folder).path / ROOM).glob("*.jsonl")):
        for told in read_lines(path, PromptRecord.from_json, "a line about a prompt", warn):
            found[told.prompt_sha256] = told
    return found
