"""The samples that a live page asks for: of the cells that its filters leave, or of the cells that a reader chose."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from kvbench.support.errors import UserError

Number = Annotated[int, Field(ge=0, le=10**6)]


@dataclass(frozen=True)
class Query:
    """The body of a request, as JSON.

    cells: whose answers are read. side_by_side: answers of these cells to one prompt stand side by side; otherwise each
    stands alone. only_wrong: samples that are not fully right. text: a part of an answer or an error. sample: the
    number of a sample, None for all. page: counted from 1.
    """

    cells: tuple[str, ...]
    side_by_side: bool = False
    only_wrong: bool = False
    text: str = ""
    sample: Number | None = None
    page: Number = 1

    @classmethod
    def of(cls, body: bytes) -> "Query":
        """Read a query. Raises UserError for a body that is none."""
        try:
            return TypeAdapter(cls).validate_json(body, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "the body"
            raise UserError(f"no query for samples: {place}: {first['msg']}") from None
