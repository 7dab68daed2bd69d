"""docs/notebooks/first_idea.ipynb: small, without outputs; it runs, and its page shows what it says."""

import re

import pytest
from matplotlib.figure import Figure

from scripts.document_notebook import NOTEBOOK, PAGE, cells, page, run, shown

STALE = "run python scripts/document_notebook.py"


def without_seconds(text: str) -> str:
    return re.sub(r"[\d.]+ m?s\b", "", text)


def test_it_is_short_and_has_no_outputs() -> None:
    assert len(cells()) <= 16 and NOTEBOOK.stat().st_size < 10_000
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells())
    assert len({cell["id"] for cell in cells()}) == len(cells())
    code = [line for cell in cells() if cell["cell_type"] == "code" for line in "".join(cell["source"]).splitlines()]
    assert max(map(len, code)) <= 76, "the site shows 76 columns"


def test_its_page_has_its_cells() -> None:
    text, place = PAGE.read_text("utf-8"), 0
    for cell in cells():
        place = text.find("".join(cell["source"]), place)
        assert place >= 0, f"{cell['id']}: {STALE}"
    assert text.count("```python\n") == sum(cell["cell_type"] == "code" for cell in cells()), STALE


@pytest.mark.slow
def test_its_page_has_its_outputs() -> None:
    """As in the namespace of a module. Seconds differ from run to run."""
    outputs = [*run()]
    figures = [value for _, _, value in outputs if isinstance(value, Figure)]
    assert len(figures) == 2 and all(figure._repr_png_().startswith(b"\x89PNG") for figure in figures)  # type: ignore
    made = page({name: shown(name, printed, value) for name, printed, value in outputs})
    assert without_seconds(made) == without_seconds(PAGE.read_text("utf-8")), STALE
