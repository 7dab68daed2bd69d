"""docs/notebooks/first_idea.ipynb: small, without outputs, and its cells run one after the other."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

FILE = Path(__file__).parents[2] / "docs" / "notebooks" / "first_idea.ipynb"
CELLS = json.loads(FILE.read_text("utf-8"))["cells"]


def test_it_is_short_and_has_no_outputs() -> None:
    assert len(CELLS) <= 16 and FILE.stat().st_size < 10_000
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in CELLS)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)


@pytest.mark.slow
def test_its_cells_run() -> None:
    """In the namespace of a module, as a kernel has it; what a cell shows at its end can be shown."""
    shared: dict[str, Any] = {"__name__": "__main__"}
    shown = [_run("".join(cell["source"]), shared) for cell in CELLS if cell["cell_type"] == "code"]
    figures = [value for value in shown if isinstance(value, Figure)]
    assert len(figures) == 2 and all(figure._repr_png_().startswith(b"\x89PNG") for figure in figures)  # type: ignore
    assert "moves power=2.0" in repr(shared["result"]) and "<table>" in shared["result"]._repr_html_()
    assert len(shared["mine"].frame) == 9 and shared["mine"].frame["error"].isna().all()


def _run(source: str, shared: dict[str, Any]) -> Any:
    """The value of the last line of a cell, if it is an expression."""
    *_, last = source.splitlines()
    try:
        code = compile(last, "<cell>", "eval")
    except SyntaxError:
        exec(compile(source, "<cell>", "exec"), shared)
        return None
    exec(compile(source.removesuffix(last), "<cell>", "exec"), shared)
    return eval(code, shared)
