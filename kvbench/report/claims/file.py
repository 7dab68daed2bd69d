"""The file of claims: what is compared, on which prompts, and what counts as shown. It is written before its rows.

    says: What eviction scores change on SmolLM2.
    alpha: 0.05    # the chance of one false verdict in a family
    floor: 5       # percent: a task in which both sides have less is left out of a claim, and named
    ceiling: 95    # or both have more
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

Conditions are those of a selection: columns of rows and settings of cells. Those of a side replace those of its family.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvbench.records.lines import small_file
from kvbench.report.selection import Where, check_where
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.yaml_file import yaml_of

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
    """All claims of a file, and what they share. floor, ceiling: in percent."""

    says: Text
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    floor: Percent = 0.0
    ceiling: Percent = 100.0
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
        return self

    def family(self, claim: Claim) -> Family:
        """The family of a claim."""
        return self.families[claim.family]

    def where(self, claim: Claim, side: Mapping[str, Any]) -> Where:
        """The conditions of a side, as texts."""
        family = self.family(claim)
        named = {**family.common, **side, "task": list(family.tasks)}
        values = {key: value if isinstance(value, list) else [value] for key, value in named.items()}
        return {key: tuple(map(_written, members)) for key, members in values.items()}


def _written(value: Any) -> str:
    """A value as a selection has it."""
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

    @cached_property
    def claims(self) -> Claims:
        """What it says. Raises as `content`, and UserError, in one line, for a file that breaks the rules."""
        content = yaml_of(self.content, self.path)
        try:
            claims = Claims.model_validate(content)
        except ValidationError as error:
            raise UserError(f"{self.path}: {_complaint(error, content)}") from None
        for claim in claims.claims:
            for side in (claim.a, claim.b):
                check_where(claims.where(claim, side))
        return claims


def _complaint(error: ValidationError, content: Any) -> str:
    """The first complaint, with the name of the claim that it is about."""
    first = error.errors()[0]
    place = list(first["loc"])
    if place[:1] == ["claims"] and len(place) > 1 and isinstance(place[1], int):
        claim = content["claims"][place[1]]
        place[:2] = [f"claim {claim.get('name', place[1] + 1) if isinstance(claim, dict) else place[1] + 1}"]
    words = first["msg"].removeprefix("Value error, ")
    return f"{'.'.join(map(str, place))}: {words}" if place else words
