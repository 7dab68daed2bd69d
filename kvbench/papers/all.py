"""`kvbench paper all`: every item one after the other; what one of them lacks stops none of the others."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from kvbench.cli.errors import Exit
from kvbench.cli.paper import FORMATS
from kvbench.cli.terminal import tell
from kvbench.config.overrides import parse
from kvbench.papers.compose import item_of, names
from kvbench.papers.run import check_here, check_used, render
from kvbench.report.output import file_to
from kvbench.support.errors import UserError


def every(words: Sequence[str], flags: argparse.Namespace) -> int:
    """Render all items. Exit code 4 where one of them lacks data, a model, or has samples that failed.

    Raises ValueError for a setting that no item has, and for `--out` that is no folder.
    """
    if flags.plot is not None:
        raise UserError("paper all draws every figure into the folder of --out: leave --plot out")
    if flags.out is not None and flags.out.exists() and not flags.out.is_dir():
        raise UserError(f"--out {flags.out} is a file: paper all writes a page an item into a folder")
    asked = parse(words)
    check_here(asked)
    unused = {one.key for one in asked}
    short: dict[str, str] = {}
    took: dict[str, float] = {}
    for name in names():
        item, start = item_of(name), time.perf_counter()
        page, picture = _files(flags.out, name, FORMATS[flags.format], item.picture is not None or item.kind == "probe")
        tell(name)
        try:
            rendered = render(item, asked, flags, page, picture, strict=False)
        except (FileNotFoundError, ValueError) as error:
            short[name] = " ".join(str(error).split())
            tell(f"{name} left out: {short[name]}")
            continue
        finally:
            took[name] = time.perf_counter() - start
        unused &= rendered.unused
        if rendered.short:
            short[name] = rendered.short
        if page is sys.stdout:
            print("\n" + "=" * 120 + "\n")
    if flags.out is not None:
        lines = [f"{name},{seconds:.1f},{name not in short}\n" for name, seconds in took.items()]
        file_to(flags.out / "seconds.csv", lambda path: path.write_text("item,seconds,whole\n" + "".join(lines)))
    if not short:
        check_used(unused, asked, "any item")
    _sum_up(short)
    return Exit.INCOMPLETE if short else Exit.OK


def _files(folder: Path | None, name: str, suffix: str, figure: bool) -> tuple[TextIO | Path, Path | None]:
    """Where a page and its picture go."""
    if folder is None:
        return sys.stdout, None
    page = folder / f"{name}{suffix}"
    page.parent.mkdir(parents=True, exist_ok=True)
    return page, page.with_suffix(".png") if figure else None


def _sum_up(short: dict[str, str]) -> None:
    total = len(names())
    tell(f"{total - len(short)} of {total} items are whole")
    for name, why in short.items():
        tell(f"{name}: {why}")
