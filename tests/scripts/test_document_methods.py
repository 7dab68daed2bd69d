"""The pages of methods against conf: what is made is current, what is cited exists, what is said can be run."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvbench.cli.list import print_list
from kvbench.config.entries import class_of, load_entry, options
from kvbench.config.overrides import parse
from kvbench.run.cell import Cell
from kvbench.support.annotations import help_of
from kvbench.work.planned import checked
from scripts.document_methods import EVIDENCE, PARTS, composed, entry, written

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
FILES = [(group, name) for group in ("policy", "score") for name in options(group)]


def rows() -> list[list[str]]:
    """The table of disagreements, a list of columns a row."""
    _, _, rest = EVIDENCE.read_text("utf-8").partition("<!-- disagreements -->")
    lines = rest.partition("<!-- end of disagreements -->")[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def defaults() -> dict[str, list[str]]:
    """The table of defaults: the columns here, paper, code and kvpress by policy."""
    lines = (
        EVIDENCE.read_text("utf-8").partition("<!-- defaults -->")[2].partition("<!-- end")[0].strip().splitlines()[2:]
    )
    columns = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {re.findall(r"\[(\w+)\]", name)[0]: [here, *elsewhere] for name, here, _, *elsewhere in columns}


def cell_of(words: Sequence[str]) -> Cell:
    (cell,) = checked(parse(words), print)[1]
    return cell


@pytest.mark.parametrize("page", PARTS, ids=lambda page: page.stem)
def test_a_page_is_what_conf_says(page: Path) -> None:
    assert written(page) == page.read_text("utf-8"), "stale: run make pages"


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
            assert cell_of(named).eviction.policy_label == sides[-1].eviction.policy_label
            assert cell_of(named).id == sides[-1].id
    assert sides[0].id != sides[1].id
    assert sum(text.startswith("**") for text in row[3:]) <= 1


def test_every_row_that_a_file_cites_is_in_the_table() -> None:
    names = [row[0] for row in rows()]
    known, cited = set(names), set()
    assert len(known) == len(names)
    for group, name in (*FILES, *(("allocation", name) for name in options("allocation"))):
        method = entry(group, name)
        target = class_of(group, load_entry(group, name))
        texts = [method.says, *method.elsewhere.values(), *method.notes.values(), *help_of(target).values()]
        cited |= set(re.findall(r"\b([A-Z]\d{1,2})\b(?! norm)", " ".join(texts)))
    assert cited <= known, f"not in docs/reference/disagreements.md: {sorted(cited - known)}"
    assert known <= cited, f"cited by no file: {sorted(known - cited)}"


@pytest.mark.parametrize(("group", "name"), FILES, ids="-".join)
def test_what_a_method_was_verified_against_exists(group: str, name: str) -> None:
    verified = " ".join(entry(group, name).verified.split()).removesuffix(".")
    golden, _, tests = verified.partition("; ")
    assert tests and all((ROOT / path).exists() for path in tests.split(", ")), tests
    for case in golden.removeprefix("golden ").split(", ") if golden != "no published numbers" else ():
        assert [*GOLDEN.glob(f"*/{case}.npz"), *GOLDEN.glob(f"{case}.json")], case


def test_every_golden_case_verifies_a_score() -> None:
    named = " ".join(entry("score", name).verified for name in options("score"))
    patterns = re.sub(r"[;,]", " ", named).split()
    cases = sorted(GOLDEN.glob("*/*.npz"))
    assert [path for path in cases if not any(path.match(f"{pattern}.npz") for pattern in patterns)] == []


def test_every_policy_with_a_budget_has_its_defaults_in_four_columns() -> None:
    """Window, recent tokens, pool with its kernel, and budget; `here` is what the file sets."""
    table = defaults()
    assert set(table) == set(options("policy")) - {"full"}
    for name, cells in table.items():
        assert len(cells) == 4
        for cell in cells:
            assert cell == "none" or re.fullmatch(r"window .+, recent .+, (no pool|(max|avg) pool \d+); .+", cell), cell
        tree = composed(f"policy={name}")["policy"]
        window, recent, pool = re.findall(r"window (\S+), recent (.+?), (.+?);", cells[0])[0]
        kept = "half of the budget" if isinstance(tree["recent"], dict) else str(tree["recent"])
        assert window in (str(tree["window"]), "none") and recent in (kept, "the rest")
        kernel = "no pool" if tree["pool"] is None else f"{tree['pool']['kind']} pool {tree['pool']['size']}"
        assert pool == kernel


@pytest.mark.parametrize(
    ("policy", "column", "facts"),
    [
        # kvpress 0.5.5: window_size = 64, kernel_size = 5 (avg_pool1d), alpha_safeguard = 0.20, beta = 20, n_sink = 4
        ("snapkv", 3, ["window 64, recent 64, avg pool 5", "SnapKVPress"]),
        ("pyramidkv", 3, ["window 64, recent 64, avg pool 5", "beta 20"]),
        ("ada_snapkv", 3, ["AdaKVPress", "alpha 0.2"]),
        ("streaming_llm", 3, ["n_sink 4"]),
        ("kvzip", 3, ["4 sinks", "chunks of 2048"]),
        ("h2o", 3, ["ObservedAttentionPress", "recent 0"]),
        # OBCache, C.2.1: NIAH 16, LongBench 5 % of the prompt; KVCache-Factory, run_longbench.py: window_sizes = 8
        ("h2o_obcache", 1, ["window 16 (LongBench: 5 % of the prompt)", "OBCache"]),
        ("pyramidkv", 2, ["window 8, recent 8, max pool 7", "run_longbench.py"]),
        # KVzip, appendix: kernel 7, window 32; LAVa, Section 5.1: maxpool, kernel 7; AdaKV, config_compress: 32, 7
        ("snapkv", 1, ["window 32, recent 32, max pool 7"]),
        ("lava", 1, ["window not stated", "max pool 7"]),
        ("ada_snapkv", 2, ["window 32, recent 32, max pool 7"]),
    ],
)
def test_defaults_elsewhere_are_those_of_papers_and_code(policy: str, column: int, facts: list[str]) -> None:
    assert all(fact in defaults()[policy][column] for fact in facts)


def test_h2o_says_which_paper_it_is_of_wherever_policies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    print_list("policy")
    listed = " ".join(capsys.readouterr().out.split())
    assert "h2o_obcache H2O of the OBCache paper" in listed and "H2O of its own paper is policy=h2o" in listed
    assert "h2o H2O of its paper" in listed
    assert "`h2o_obcache` is H2O of the OBCache paper" in EVIDENCE.read_text("utf-8")
