"""One line of `kvbench doctor`."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """`missing` is what every run needs and is not there, `-` what only some need; `command` is what mends it."""

    mark: Literal["ok", "-", "missing"]
    name: str
    text: str
    command: str | None = None
