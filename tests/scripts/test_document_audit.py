"""kvbench/extras/audit/audit.md against the papers' numbers: its tables are current, and its prose is short."""

import re

from scripts.document_audit import PAGE, PARTS
from scripts.parts import with_parts


def test_the_page_is_what_the_numbers_say() -> None:
    page = PAGE.read_text("utf-8")
    assert with_parts(page, PARTS) == page, "stale: run python scripts/document_audit.py"


def test_the_prose_fits_a_page() -> None:
    prose = re.sub(r"<!-- (\w+) -->.*?<!-- end of \1 -->", "", PAGE.read_text("utf-8"), flags=re.DOTALL)
    assert len(prose.split()) <= 900
