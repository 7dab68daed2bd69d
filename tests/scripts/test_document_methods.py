"""docs/methods.md against conf: what is made is current, what is cited exists, what is said can be run."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvbench.config.compose import options
from kvbench.config.overrides import parse
from kvbench.config.sweep import checked
from kvbench.run.plan import Cell
from kvbench.support import paths
from scripts.document_methods import PAGE, header, written

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "eviction"
FILES = [(group, name) for group in ("policy", "score") for name in options(group)]


def rows() -> list[list[str]]:
    """The table of disagreements, a list of columns a row."""
    _, _, rest = PAGE.read_text("utf-8").partition("<!-- disagreements -->")
    lines = rest.partition("<!-- end of disagreements -->")[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def cell_of(words: Sequence[str]) -> Cell:
    (cell,) = checked(parse(words), print)[1]
    return cell


def test_the_page_is_what_conf_says() -> None:
    page = PAGE.read_text("utf-8")
    assert written(page) == page, "stale: run python scripts/document_methods.py"


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_both_sides_of_a_disagreement_can_be_run(row: list[str], tmp_path: Path) -> None:
    """They are allowed, two different cells, and what stands in bold is the default."""
    assert len(row) == 5
    sides = []
    for text in row[3:]:
        match = re.search(r"`(policy=[^`]*)`", text)
        assert match is not None, text
        words = [*match[1].split(), f"results.dir={tmp_path}"]
        sides.append(cell_of(words))
        if text.startswith("**"):
            named = [word for word in words if word.split("=")[0] in ("policy", "score", "results.dir")]
            assert cell_of(named).policy_label == sides[-1].policy_label
            assert cell_of(named).id == sides[-1].id
    assert sides[0].id != sides[1].id
    assert sum(text.startswith("**") for text in row[3:]) <= 1


def test_every_row_that_a_file_cites_is_in_the_table() -> None:
    known = {row[0] for row in rows()}
    cited = set()
    for group, name in FILES:
        text = (paths.conf() / group / f"{name}.yaml").read_text("utf-8")
        comments = " ".join(part for line in text.splitlines() for part in line.split("#")[1:])
        cited |= set(re.findall(r"\b([A-Z]\d{1,2})\b(?! norm)", comments))
    assert cited <= known, f"not in docs/methods.md: {sorted(cited - known)}"
    assert known <= cited, f"cited by no file: {sorted(known - cited)}"


@pytest.mark.parametrize(("group", "name"), FILES, ids="-".join)
def test_what_a_method_was_verified_against_exists(group: str, name: str) -> None:
    verified = header(paths.conf() / group / f"{name}.yaml")[1].removesuffix(".")
    golden, _, tests = verified.partition("; ")
    assert tests and all((ROOT / path).exists() for path in tests.split(", ")), tests
    for case in golden.removeprefix("golden ").split(", ") if golden != "no published numbers" else ():
        assert list(GOLDEN.glob(f"{case}.npz")), case


def test_every_golden_case_verifies_a_score() -> None:
    named = " ".join(header(paths.conf() / "score" / f"{name}.yaml")[1] for name in options("score"))
    patterns = re.sub(r"[;,]", " ", named).split()
    left = [path.stem for path in GOLDEN.glob("*.npz") if not any(path.match(f"{one}.npz") for one in patterns)]
    assert left == []
