"""The file of claims: what is compared, on which prompts, and what counts as shown. It is written before its rows.

    says: What eviction scores change on SmolLM2.
    written: 2026-11-28  # what a copy without a history says of its age
    alpha: 0.05    # the chance of one false verdict in a family
    floor: 5       # percent: a task in which both sides have less is left out of a claim, and named
    ceiling: 95    # or both have more
    beside:        # cells that every table shows too, each at the budget of what it stands beside
      StreamingLLM: {policy: streaming_llm}
    families:
      scores:
        common: {model: smollm2, schedule: prompt, task.texts: varied}  # conditions of every side
        tasks: [ruler/niah_single_2, ruler/niah_multikey_1]
        samples: 320   # prompts of each task; rows of more are not looked at
        first: 0       # the number of the first of them
    claims:
      - name: caote-snapkv
        says: CAOTE's score answers more than attention on SnapKV.
        family: scores
        a: {policy: snapkv, score: attn, budget: 0.6}
        b: {policy: snapkv, score: caote, budget: 0.6}
        shows: difference  # equivalence, not worse
        expects: b better  # a better, either; of differences
        margin: 5          # points, or percent of a perplexity; of equivalence and not worse

Conditions are a selection's: columns of rows and settings of cells. Conditions of a side replace its family's.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvbench.records.lines import small_file
from kvbench.report.selection import Where, check_where
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.yaml_file import yaml_of

_LABELS = ("policy", "score", "budget")
"""Conditions that are written without their names, in this order."""
Text = Annotated[str, Field(min_length=1)]
Percent = Annotated[float, Field(ge=0, le=100)]


class Strict(BaseModel):
    """A part of the file: no unknown keys, and nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Claim(Strict):
    """One claim. a, b: conditions of its sides. margin: points of rates, or percent of a perplexity."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    says: Text
    family: Text
    a: dict[str, Any]
    b: dict[str, Any]
    shows: Literal["difference", "equivalence", "not worse"]
    expects: Literal["a better", "b better", "either"] | None = None
    margin: Annotated[float, Field(gt=0, lt=100)] | None = None

    @model_validator(mode="after")
    def _says_what_is_tested(self) -> "Claim":
        if self.shows == "difference" and (self.expects is None or self.margin is not None):
            raise ValueError("shows: difference needs expects: a better, b better or either, and has no margin")
        if self.shows != "difference" and (self.margin is None or self.expects is not None):
            raise ValueError(f"shows: {self.shows} needs a margin, in points, and has no expects")
        return self


class Family(Strict):
    """Claims that share a correction and prompts: `samples` of each task, from number `first` on."""

    common: dict[str, Any] = {}
    tasks: Annotated[tuple[Text, ...], Field(min_length=1)]
    samples: Annotated[int, Field(ge=2)]
    first: Annotated[int, Field(ge=0)] = 0


class Claims(Strict):
    """All claims of a file, and what they share. floor, ceiling: in percent. beside: conditions of cells by name."""

    says: Text
    written: date | None = None
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    floor: Percent = 0.0
    ceiling: Percent = 100.0
    beside: dict[Text, dict[str, Any]] = {}
    families: dict[str, Family]
    claims: Annotated[tuple[Claim, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_right(self) -> "Claims":
        names = [claim.name for claim in self.claims]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two claims have the name {twice[0]}")
        for claim in self.claims:
            if claim.family not in self.families:
                known = ", ".join(self.families)
                raise ValueError(f"claim {claim.name}: family {claim.family} is not among families: {known}")
            self._check_budgets(claim)
        return self

    def _check_budgets(self, claim: Claim) -> None:
        """Raise ValueError for a side without a budget, or with several, for what stands beside it."""
        if all("budget" in conditions for conditions in self.beside.values()):
            return
        for name, side in (("a", claim.a), ("b", claim.b)):
            budget = {**self.families[claim.family].common, **side}.get("budget")
            if budget is None or isinstance(budget, list):
                raise ValueError(f"claim {claim.name}: side {name} needs one budget, for what stands beside it")

    def cell(self, family: str, side: Mapping[str, Any]) -> "Cell":
        """Return the cell that a side and its family name."""
        own = self.families[family]
        named = {**own.common, **side, "task": list(own.tasks)}
        values = {key: value if isinstance(value, list) else [value] for key, value in named.items()}
        words = [_written(side[key]) for key in _LABELS if key in side]
        words += [f"{key}={_written(value)}" for key, value in side.items() if key not in _LABELS]
        return Cell(family, ", ".join(words), {key: tuple(map(_written, members)) for key, members in values.items()})

    def cells_beside(self, cell: "Cell") -> dict[str, "Cell"]:
        """Return the cells that stand beside a cell, by name: at its budget, where no other is named."""
        budget = {key: values[0] for key, values in cell.where.items() if key == "budget"}
        return {name: self.cell(cell.family, {**budget, **side}) for name, side in self.beside.items()}


@dataclass(frozen=True)
class Cell:
    """One cell of every task of a family: how it is written, and the conditions of its rows, as texts."""

    family: str
    words: str
    where: Where

    @property
    def key(self) -> str:
        """The same text for the same prompts and conditions."""
        return f"{self.family} {sorted(self.where.items())}"


def _written(value: Any) -> str:
    """Return a value as a selection has it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class ClaimsFile:
    """A file of claims as it was read."""

    path: Path

    @cached_property
    def content(self) -> bytes:
        """Its bytes, read once. Raises MissingFile without the file, UserError for one that is too large."""
        if not self.path.is_file():
            raise MissingFile(f"{self.path}: there is no such file of claims")
        return small_file(self.path)

    @property
    def sha256(self) -> str:
        """The hash of its bytes."""
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def claims(self) -> Claims:
        """Return the claims. Raises as `content`, and UserError, in one line, for a file that breaks the rules."""
        content = yaml_of(self.content, self.path)
        if not isinstance(content, dict):
            keys = ", ".join(name for name, field in Claims.model_fields.items() if field.is_required())
            raise UserError(f"{self.path}: it has no keys and values; required: {keys} (docs/statistics.md)")
        try:
            claims = Claims.model_validate(content)
        except ValidationError as error:
            raise UserError(f"{self.path}: {_complaint(error, content)}") from None
        for claim in claims.claims:
            for cell in (claims.cell(claim.family, claim.a), claims.cell(claim.family, claim.b)):
                for named in (cell, *claims.cells_beside(cell).values()):
                    check_where(named.where)
        return claims


def _complaint(error: ValidationError, content: Any) -> str:
    """Return the first complaint, with the name of the claim that it is about."""
    first = error.errors()[0]
    place = list(first["loc"])
    if place[:1] == ["claims"] and len(place) > 1 and isinstance(place[1], int):
        claim = content["claims"][place[1]]
        place[:2] = [f"claim {claim.get('name', place[1] + 1) if isinstance(claim, dict) else place[1] + 1}"]
    words = first["msg"].removeprefix("Value error, ")
    return f"{'.'.join(map(str, place))}: {words}" if place else words
