"""What `mkdocs build` does beside mkdocs.yml: no page is left out, links into the repository become plain words, and
addresses of pages that moved lead on.
"""

import os
import re
from pathlib import Path
from typing import Any

MOVED = Path(__file__).with_name("moved_pages.tsv")
"""Lines of a former page and of what has its contents now, `PAGE` or `PAGE#HEADING`; below docs/, without `.md`."""
STUB = """<!doctype html>
<meta charset="utf-8"><title>Moved</title>
<meta http-equiv="refresh" content="0; url={0}"><link rel="canonical" href="{0}">
<a href="{0}">This page moved.</a>
"""
BOOSTS = {"": 3.0, "findings": 1.0, "develop": 1.0, "notebooks/": 2.0, "reference/": 1.0, "reference/api/": 0.25}
"""How much search prefers pages whose address begins so; the longest beginning counts."""
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]+)(?:#[^)\s]*)?\)")


def boost_of(page: str) -> float:
    """How much search prefers a page: the guide explains what the reference lists, and the API names."""
    folders = [(folder, boost) for folder, boost in BOOSTS.items() if page.startswith(folder)]
    return max(folders)[1]


def named(nav: Any) -> set[str]:
    """All pages that a navigation names."""
    if isinstance(nav, str):
        return {nav}
    return {page for part in (nav.values() if isinstance(nav, dict) else nav) for page in named(part)}


def on_config(config: Any) -> Any:
    """Add what `nav` lacks under `More`, so that a new page is never left out."""
    docs = Path(config["docs_dir"])
    left = sorted({path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - named(config["nav"]))
    if left:
        config["nav"] = [*config["nav"], {"More": left}]
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rank the page in search, and leave the words of links into the repository, which the site does not have.

    A wrong link stays, and fails.
    """
    page.meta.setdefault("search", {"boost": boost_of(page.file.src_uri)})
    docs, here = Path(config["docs_dir"]), Path(page.file.abs_src_path).parent

    def plain(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        return link[1] if target.exists() and not target.is_relative_to(docs) else link[0]

    return LINK.sub(plain, markdown)


def moved() -> dict[str, str]:
    """The page, or its heading, that has the contents of each former page."""
    return dict(line.split("\t") for line in MOVED.read_text("utf-8").splitlines())


def on_post_build(config: Any) -> None:
    """Write a page at every former address that leads to the new one."""
    site = Path(config["site_dir"])
    for former, now in moved().items():
        stub = site / f"{former}.html"
        stub.parent.mkdir(parents=True, exist_ok=True)
        page, mark, heading = now.partition("#")
        stub.write_text(STUB.format(os.path.relpath(site / f"{page}.html", stub.parent) + mark + heading), "utf-8")
