"""What `mkdocs build` does beside mkdocs.yml: pages that lie beside extras are in the reference, no page is left out,
links into the repository become plain words, and addresses of pages that moved lead on.
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
LINK = re.compile(r"(!?\[[^\]]*\])\((\.\./[^)#\s]+)((?:#[^)\s]*)?)\)")
ROOT = Path(__file__).resolve().parents[1]


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
    """Add the pages of extras under `Extras`, and what `nav` lacks under `More`, so that no page is left out."""
    docs = Path(config["docs_dir"])
    (of_extras,) = (part["Extras"] for part in config["nav"] if "Extras" in part)
    of_extras += pages_of_extras().values()
    left = sorted({path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - named(config["nav"]))
    if left:
        config["nav"] = [*config["nav"], {"More": left}]
    return config


def pages_of_extras() -> dict[Path, str]:
    """The address of each page that lies beside the code of an extra, by its file."""
    return {page: f"reference/extras/{page.name}" for page in sorted((ROOT / "kvbench" / "extras").glob("*/*.md"))}


def on_files(files: Any, config: Any) -> Any:
    """Put the pages of extras into the reference."""
    from mkdocs.structure.files import File

    for page, address in pages_of_extras().items():
        files.append(File.generated(config, address, abs_src_path=str(page)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rank the page in search, lead links to where pages are in the site, and leave the words of links into the
    repository, which the site does not have.

    A wrong link stays, and fails.
    """
    page.meta.setdefault("search", {"boost": boost_of(page.file.src_uri)})
    docs, here, addresses = Path(config["docs_dir"]), Path(page.file.abs_src_path).parent, pages_of_extras()

    def in_site(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        if not target.exists():
            return link[0]
        if target not in addresses and not target.is_relative_to(docs):
            return link[1].lstrip("!")[1:-1]
        address = addresses.get(target) or target.relative_to(docs).as_posix()
        return f"{link[1]}({os.path.relpath(address, os.path.dirname(page.file.src_uri) or '.')}{link[3]})"

    return LINK.sub(in_site, markdown)


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
