"""What `mkdocs build` does beside mkdocs.yml: no page is left out, and links into the repository become plain words."""

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]+)\)")


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
    """Leave the words of a link into the repository, which the site does not have; a wrong link stays, and fails."""
    docs, here = Path(config["docs_dir"]), Path(page.file.abs_src_path).parent

    def plain(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        return link[1] if target.exists() and not target.is_relative_to(docs) else link[0]

    return LINK.sub(plain, markdown)
