"""Run docs/notebooks/first_idea.ipynb and write it with its outputs: docs/notebooks/first_idea.md and its figures.

    python scripts/document_notebook.py

The notebook itself has no outputs. A cell shows what it prints and the value of its last line, as a kernel does.
"""

import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1] / "docs"
NOTEBOOK = DOCS / "notebooks" / "first_idea.ipynb"
PAGE = NOTEBOOK.with_suffix(".md")
FIGURE = "../images/notebook-{}.png"
"""Where the page finds the figure of a cell, by the cell's id."""
NO_PART = re.compile(r"<style scoped>.*?</style>\n|\n<footer></footer>", re.DOTALL)
"""Style of a table for notebooks, and an empty foot."""
INTRODUCTION = (
    "This page is [a notebook](first_idea.ipynb) with its outputs. Its seconds were measured on one CPU; every run has "
    "the same other numbers."
)


def cells() -> list[dict[str, Any]]:
    """The cells of the notebook."""
    return json.loads(NOTEBOOK.read_text("utf-8"))["cells"]


def run() -> Iterator[tuple[str, str, Any]]:
    """Run the cells in one namespace, a module without a file as in a notebook; yield the id of each cell of code, what
    it printed and the value it shows.
    """
    module = sys.modules["notebook_cells"] = ModuleType("notebook_cells")
    shared = vars(module)
    for cell in cells():
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                value = _value("".join(cell["source"]), shared)
            yield cell["id"], printed.getvalue(), value


def _value(source: str, shared: dict[str, Any]) -> Any:
    """The value of the last line of a cell, if it is an expression."""
    *_, last = source.splitlines()
    try:
        code = compile(last, "<cell>", "eval")
    except SyntaxError:
        exec(compile(source, "<cell>", "exec"), shared)
        return None
    exec(compile(source.removesuffix(last), "<cell>", "exec"), shared)
    return eval(code, shared)


def shown(name: str, printed: str, value: Any) -> str:
    """What a page shows below a cell: text, a table or a figure."""
    parts = [f"```text\n{printed.rstrip()}\n```"] if printed.strip() else []
    if isinstance(value, Figure):
        parts.append(f"![Output of the cell]({FIGURE.format(name)})")
    elif hasattr(value, "_repr_html_"):
        parts.append(NO_PART.sub("", re.sub(r"\n\s*", "\n", value._repr_html_())).strip())
    elif value is not None:
        parts.append(f"```text\n{value!r}\n```")
    return "\n\n".join(parts)


def page(outputs: dict[str, str]) -> str:
    """The page: the text and code of the cells, and outputs by the id of their cell."""
    parts = []
    for cell in cells():
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts.append(outputs.get(cell["id"], ""))
    title, *rest = filter(None, parts)
    return "\n\n".join([title, INTRODUCTION, *rest]) + "\n"


def main() -> None:
    """Run the notebook and write page and figures."""
    outputs = {}
    for name, printed, value in run():
        outputs[name] = shown(name, printed, value)
        if isinstance(value, Figure):
            value.savefig(PAGE.parent / FIGURE.format(name), dpi=110, bbox_inches="tight")
    PAGE.write_text(page(outputs), "utf-8")


if __name__ == "__main__":
    main()
