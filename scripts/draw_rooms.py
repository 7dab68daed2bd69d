"""Draw docs/images/rooms.svg and write the table of packages in docs/develop.md, both from the code.

    python scripts/draw_rooms.py

The layers are those that import-linter checks (pyproject.toml); the imports are read from the code; what a package
holds is the first sentence of its docstring.
"""

import ast
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path

import grimp
import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "develop.md"
PICTURE = ROOT / "docs" / "images" / "rooms.svg"
BEGIN, END = "<!-- rooms -->", "<!-- end of rooms -->"
WIDTH, HEIGHT, GAP, CHARACTERS = 6.0, 0.78, 0.07, 14.5
"""Of the picture, of a layer, between boxes; characters of text per unit of width."""


def layers() -> list[list[str]]:
    """The packages of every layer, the top one first, as import-linter checks them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contract = next(
        contract for contract in settings["tool"]["importlinter"]["contracts"] if contract["type"] == "layers"
    )
    return [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]


def imports() -> dict[str, set[str]]:
    """Which packages each package imports directly."""
    graph = grimp.build_graph("kvbench", cache_dir=None)
    packages = {module.split(".")[1] for module in graph.modules if module.count(".") > 1}
    imported: dict[str, set[str]] = {package: set() for package in packages}
    for module in graph.modules:
        package = ([*module.split("."), ""])[1]
        if package in packages:
            names = {([*name.split("."), ""])[1] for name in graph.find_modules_directly_imported_by(module)}
            imported[package] |= (names & packages) - {package}
    return imported


def holds(package: str) -> str:
    """The first sentence of a package's docstring."""
    text = ast.get_docstring(ast.parse((ROOT / "kvbench" / package / "__init__.py").read_text("utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).rstrip(".").replace("`", "")


def table(imported: Mapping[str, set[str]]) -> str:
    """The packages as a Markdown table, the top layer first."""
    order = [package for layer in layers() for package in layer]
    lines = ["| package | holds | imports |", "| :-- | :-- | :-- |"]
    for package in order:
        names = ", ".join(f"`{name}`" for name in order if name in imported[package])
        lines.append(f"| `{package}` | {holds(package)} | {names} |")
    return "\n".join(lines)


def with_table(page: str, imported: Mapping[str, set[str]]) -> str:
    """The page with its table brought up to date."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(imported)}\n{END}{rest.partition(END)[2]}"


def draw() -> Figure:
    """The layers as rows of boxes, in letters that can be read on a telephone."""
    rows = layers()
    figure = Figure(figsize=(8.2, 1.05 * len(rows)))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_xlim(-0.55, WIDTH + 0.05)
    axis.set_ylim(len(rows) + 0.05, -0.1)
    axis.axis("off")
    for row, layer in enumerate(rows):
        share = WIDTH / len(layer)
        for place, package in enumerate(layer):
            _box(axis, package, place * share, (place + 1) * share, row)
    arrow = FancyArrowPatch((-0.22, 0.1), (-0.22, len(rows) - 0.2), arrowstyle="-|>", mutation_scale=20)
    arrow.set(color="#0072B2", linewidth=2)
    axis.add_patch(arrow)
    axis.text(-0.42, len(rows) / 2, "imports", rotation=90, ha="center", va="center", fontsize=14, color="#0072B2")
    return figure


def _box(axis: Axes, package: str, left: float, right: float, row: int) -> None:
    box = FancyBboxPatch(
        (left + GAP, row), right - left - 2 * GAP, HEIGHT, boxstyle="round,pad=0,rounding_size=0.08", linewidth=1.2
    )
    box.set(facecolor="#f4f7fa", edgecolor="#33475b")
    axis.add_patch(box)
    middle = (left + right) / 2
    lines = textwrap.wrap(holds(package), int(CHARACTERS * (right - left)))[:2]
    axis.text(middle, row + 0.2, package, ha="center", va="center", fontsize=15, fontweight="bold")
    for number, line in enumerate(lines):
        axis.text(middle, row + 0.43 + 0.2 * number, line, ha="center", va="center", fontsize=10.5)


def save(picture: Path) -> None:
    """Write the picture: same code, same bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "rooms", "font.family": "DejaVu Sans"}):
        draw().savefig(picture, metadata={"Date": None})


def main() -> None:
    """Bring the picture and the page up to date."""
    save(PICTURE)
    PAGE.write_text(with_table(PAGE.read_text("utf-8"), imports()), "utf-8")


if __name__ == "__main__":
    main()
