"""Tables of a few columns as lines of text."""

from collections.abc import Sequence


def padded(grid: Sequence[Sequence[str]], left: int) -> list[list[str]]:
    """The texts of every line as wide as their columns: the first `left` of them to the left, the others right."""
    sizes = [max(map(len, column)) for column in zip(*grid, strict=True)]
    return [
        [
            text.ljust(width) if place < left else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, sizes, strict=True))
        ]
        for line in grid
    ]


def aligned(grid: Sequence[Sequence[str]], left: int) -> list[str]:
    """A line of text for every line of a grid."""
    return ["  ".join(line).rstrip() for line in padded(grid, left)]
