"""Concept drawings and diagrams of the docs are those that `make pictures` draws, and say that they show one prompt."""

import re
from pathlib import Path

import pytest

from scripts import draw_concepts, draw_rooms

DOCS = Path(__file__).parents[2] / "docs"
NUMBER = re.compile(r"-?\d+\.?\d*")
STALE = "docs/images/{} is stale: make pictures"


def is_same_drawing(drawn: Path, committed: Path) -> bool:
    """Whether two SVG files have the same shapes; coordinates may differ by a point, as on another processor."""
    texts = [
        re.sub(r'"data:[^"]*"|clip-path="[^"]*"|id="[^"]*"|#\w+', "", file.read_text()) for file in (drawn, committed)
    ]
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in texts]
    if NUMBER.sub("", texts[0]) != NUMBER.sub("", texts[1]) or len(numbers[0]) != len(numbers[1]):
        return False
    return all(abs(a - b) <= 1 for a, b in zip(*numbers, strict=True))


def test_concept_drawings_are_drawn_again(tmp_path: Path) -> None:
    draw_concepts.main(["--out", str(tmp_path)])
    for name in draw_concepts.PICTURES:
        file = f"concept-{name}.svg"
        assert is_same_drawing(tmp_path / file, DOCS / "images" / file), STALE.format(file)
    other = is_same_drawing(tmp_path / "concept-score.svg", DOCS / "images" / "concept-policy.svg")
    assert not other, "the comparison sees no difference"


def test_the_picture_of_the_packages_is_drawn_again(tmp_path: Path) -> None:
    draw_rooms.save(tmp_path / "rooms.svg")
    assert is_same_drawing(tmp_path / "rooms.svg", draw_rooms.PICTURE), STALE.format("rooms.svg")


@pytest.mark.parametrize("page", ["concepts.md", "python.md"])
def test_a_picture_of_one_prompt_says_so(page: str) -> None:
    text = (DOCS / page).read_text("utf-8")
    captions = re.findall(r"!\[([^\]]*)\]\(images/(?:concept-|tutorial-)", text)
    assert captions and all(caption.startswith("Concept drawing") for caption in captions)
    assert "concept drawing" in text.replace("\n", " ").lower() and "one prompt" in text.replace("\n", " ")
