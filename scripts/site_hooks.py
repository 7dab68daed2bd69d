"""What `mkdocs build` does beside mkdocs.yml: a page that the navigation does not name stands at its end."""

from pathlib import Path
from typing import Any


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
