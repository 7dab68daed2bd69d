"""The tables of the pages of claims in docs/reference, from the committed rows; and whether they are still true.

A table stands between marks, and the mark says what is compared:

    <!-- compare
    label | FILE SELECTION | FILE SELECTION
    -->
    | ... | n | A | B | B - A | p | p equivalent | verdict |
    <!-- end -->

    <!-- digits TASK,TASK FILE
    label | FILE SELECTION
    -->
    how many digits of a needle's number are right, of tasks whose full cache is in FILE
    <!-- end -->

    <!-- card FILE -->
    what the full cache answers, by task and length, with the number of prompts
    <!-- end -->

    <!-- codes FOLDER -->
    how many versions of the code made the rows of each file
    <!-- end -->

    <!-- lines PAGE
    label
    label | n
    -->
    lines of a page of claims of docs/reference, each with the p of that page
    <!-- end -->

    <!-- table FILE key=value key=value -->
    what `kvbench report table` prints
    <!-- end -->

    <!-- claims FOLDER -->
    what `kvbench claims check` prints of the claims and the rows of a folder of results
    <!-- end -->

A FILE is the name of one in results/reference, or `smollm2/main` for one of results/smollm2, a SELECTION as of `kvbench
compare`. Every line is that command's line for all paired rows. Two p are corrected by Holm over all lines of a page:
that of a difference, and that of equality within a margin (`kvbench.report.stats.equivalence`). Of texts A and B are
perplexities, and B - A is the change in percent.
"""

import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from pathlib import Path
from statistics import mean

import pyarrow as pa

from kvbench.extras.claims.answers import Answers
from kvbench.extras.claims.file import ClaimsFile
from kvbench.extras.claims.page import report_of
from kvbench.records import Row
from kvbench.records.rows import Describe, rows_of
from kvbench.report.compare.compare import ALPHA, Difference, compare
from kvbench.report.compare.paired_rows import Side, pair
from kvbench.report.formats.emit import emitted
from kvbench.report.rows import describer, load_table
from kvbench.report.selection import conditions, select
from kvbench.report.stats.equivalence import p_not_within
from kvbench.report.stats.paired import Paired
from kvbench.report.stats.paired_tests import holm
from kvbench.report.stats.verdicts import BETTER, INCONCLUSIVE, WORSE, equivalent, inconclusive
from kvbench.report.tables.table import View, print_table
from kvbench.support.grouped import grouped
from reference_results.digits import HEAD as DIGITS_HEAD
from reference_results.digits import digits_line, right_numbers
from reference_results.sweeps import REFERENCE, RESULTS, TOP

DOCS = TOP / "docs"
PAGES = (
    *(DOCS / "reference" / f"{name}.md" for name in ("claims", "sensitivity", "smollm2-claims", "confirm")),
    TOP / "kvbench" / "extras" / "readers" / "readers.md",
    RESULTS / "smollm2" / "README.md",
    DOCS / "findings.md",  # the last: it has lines of the others
)
BLOCK = re.compile(r"(<!-- compare\n(.*?)-->\n)(.*?)(<!-- end -->)", re.DOTALL)
DIGITS = re.compile(r"(<!-- digits (\S+) (\S+)\n(.*?)-->\n)(.*?)(<!-- end -->)", re.DOTALL)
CARD = re.compile(r"(<!-- card (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
CODES = re.compile(r"(<!-- codes (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
TABLE = re.compile(r"(<!-- table (\S+)(.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
LINES = re.compile(r"(<!-- lines (\S+)\n(.*?)-->\n)(.*?)(<!-- end -->)", re.DOTALL)
CLAIMS = re.compile(r"(<!-- claims (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
HEAD = (
    "| | n | A | B | B - A [95 %] | p Holm | p equivalent | verdict |\n"
    "| :-- | --: | --: | --: | --: | --: | --: | :-- |\n"
)
RELEVANT, RELEVANT_PERPLEXITY, FLOOR = 0.05, 0.02, 0.15


@dataclass(frozen=True)
class Comparison:
    """One line of a table: its label and its two sides."""

    label: str
    a: str
    b: str


def lines_of(page: str) -> list[Comparison]:
    """All comparisons of a page, in order."""
    return [comparison for block in BLOCK.finditer(page) for comparison in comparisons_of(block[2])]


@dataclass(frozen=True)
class Judged:
    """A line with its two p, corrected over all lines of its page.

    p: of a difference. p_equivalent: of equivalence within 5 points, or within 2 % of a perplexity.
    """

    line: Difference
    p: float
    p_equivalent: float

    @property
    def verdict(self) -> str:
        """What one of the two p decides; below 15 % nothing can show."""
        assert None not in (self.line.difference, self.line.mean_a, self.line.mean_b)
        if self.p <= ALPHA:
            return BETTER if ((self.line.difference or 0.0) > 0) != _is_of_texts(self.line) else WORSE
        if not _is_of_texts(self.line) and max(self.line.mean_a or 0.0, self.line.mean_b or 0.0) < FLOOR:
            return inconclusive("floor")
        return equivalent(_margin(self.line)[1]) if self.p_equivalent <= ALPHA else INCONCLUSIVE


def difference(comparison: Comparison) -> Difference:
    """All paired rows of a comparison as one line. Raises ValueError if none has two values."""
    return _paired_line(comparison)[0]


def judged(comparisons: Sequence[Comparison]) -> list[Judged]:
    """The lines of a page, whose comparisons are the family of both corrections. Raises ValueError as `difference`."""
    lines = list(map(_paired_line, comparisons))
    p = holm([line.p if line.p is not None else 1.0 for line, _ in lines])
    p_equivalent = holm([p_not_within(Paired.of(rows), *_margin(line)[0]) for line, rows in lines])
    return list(map(Judged, (line for line, _ in lines), p, p_equivalent))


def rewritten(page: str) -> str:
    """The page with its tables generated again."""
    comparisons = lines_of(page)
    texts = dict(zip(comparisons, map(_line, comparisons, judged(comparisons)), strict=True))
    page = BLOCK.sub(
        lambda block: f"{block[1]}{HEAD}{''.join(texts[key] for key in comparisons_of(block[2]))}{block[4]}", page
    )
    page = DIGITS.sub(lambda block: f"{block[1]}{_digits(*block.group(2, 3, 4))}{block[6]}", page)
    page = CODES.sub(lambda block: f"{block[1]}{_codes(block[2])}{block[4]}", page)
    page = CARD.sub(lambda block: f"{block[1]}{_card(block[2])}{block[4]}", page)
    page = LINES.sub(lambda block: f"{block[1]}{quoted(block[2], block[3])}{block[5]}", page)
    page = CLAIMS.sub(lambda block: f"{block[1]}{_claims(RESULTS / block[2])}{block[4]}", page)
    return TABLE.sub(lambda block: f"{block[1]}{_table(block[2], block[3].split())}{block[5]}", page)


@cache
def _paired_line(comparison: Comparison) -> tuple[Difference, list[tuple[Row, Row]]]:
    """The line of a comparison, and its paired rows. Raises ValueError if none has two values."""
    a, b = _side(comparison.a), _side(comparison.b)
    pairing = pair(a, b)
    compared = compare(a, b, pairing=pairing)
    line = compared.overall or compared.lines[0]
    if not line.n:
        raise ValueError(f"{comparison.label}: nothing to compare")
    return line, [both for match in pairing.matches for both in match.rows]


def _margin(line: Difference) -> tuple[tuple[float, float], str]:
    """The limits of what counts as equal, in the unit of the values, and their name."""
    if _is_of_texts(line):
        return (math.log1p(-RELEVANT_PERPLEXITY), math.log1p(RELEVANT_PERPLEXITY)), "2 %"
    return (-RELEVANT, RELEVANT), "5 points"


def _is_of_texts(line: Difference) -> bool:
    """Whether a comparison is of negative log-likelihoods, in nats, of which less is better."""
    return line.metric == "nll"


def _share(line: Difference, difference: float) -> float:
    """A difference as a share: of all answers, or of the perplexity."""
    return math.expm1(difference) if _is_of_texts(line) else difference


def write_pages(only_check: bool, pages: Iterable[Path] = PAGES) -> int:
    """Write the tables, or name the pages that are stale (exit code 1)."""
    code = 0
    for path in pages:
        before = path.read_text("utf-8")
        after = rewritten(before)
        if after != before and only_check:
            print(f"{path}: the rows say otherwise; run scripts/reference.py pages", file=sys.stderr)
            code = 1
        elif after != before:
            path.write_text(after, "utf-8")
    return code


def comparisons_of(block: str) -> list[Comparison]:
    """The comparisons that the mark of one table names."""
    comparisons = []
    for line in filter(str.strip, block.splitlines()):
        label, a, b = (part.strip() for part in line.split(" | "))
        comparisons.append(Comparison(label, a, b))
    return comparisons


@cache
def _rows(file: Path) -> tuple[pa.Table, Describe, dict[int, Row]]:
    """The rows of a file as columns, the descriptions of its cells, and by their lines the rows made of it so far."""
    return load_table(file, warn=lambda words: None), describer(file), {}


def _file(name: str) -> Path:
    return (RESULTS if "/" in name else REFERENCE) / f"{name}.parquet"


def _side(text: str) -> Side:
    name, _, selection = text.partition(" ")
    table, describe, rows = _rows(_file(name))
    selected = select(table, conditions(selection), describe, lambda words: None)
    lines = selected["line"].to_pylist()
    new = pa.array([line not in rows for line in lines])
    rows |= zip(selected.filter(new)["line"].to_pylist(), rows_of(selected.filter(new)), strict=True)
    return Side(text, [rows[line] for line in lines], text, describe)


def _table(name: str, words: list[str]) -> str:
    file, out = _file(name), StringIO()
    settings = dict(word.split("=", 1) for word in words)
    view = View(settings.pop("rows", None), settings.pop("cols", None))
    where = {key: value.split(",") for key, value in settings.items()}
    print_table(file if file.is_file() else file.with_suffix(""), "markdown", out, view, where=where)
    return out.getvalue()


def _claims(folder: Path) -> str:
    """What the packed rows of a folder say of its claims; without any, what is planned."""
    return f"\n{emitted(replace(report_of(*claims_of(folder)), title=''), 'markdown')}\n"


@cache
def claims_of(folder: Path) -> tuple[ClaimsFile, Answers]:
    """Return the claims of a folder, and its packed rows as far as they ask for them."""
    file = ClaimsFile(folder / "claims.yaml")
    return file, Answers.read(file.claims, folder / "rows.parquet", lambda words: None)


def _digits(tasks: str, full: str, block: str) -> str:
    numbers = right_numbers(_side(f"{full} policy=full,task={tasks}").rows)
    labelled = [line.split(" | ") for line in block.splitlines() if line.strip()]
    lines = (digits_line(label, _side(f"{text},task={tasks}").rows, numbers) for label, text in labelled)
    return f"{DIGITS_HEAD}{''.join(lines)}"


def quoted(name: str, block: str) -> str:
    """The lines of a page of claims that begin so, below the head of their table. Raises ValueError where none or
    several begin so, and for lines of tables with other heads.
    """
    (file,) = (page for page in PAGES if page.stem == name)
    lines = file.read_text("utf-8").splitlines()
    chosen, heads = list[str](), set[tuple[str, ...]]()
    for label in filter(None, map(str.strip, block.splitlines())):
        found = [place for place, line in enumerate(lines) if line.startswith(f"| {label} | ")]
        if len(found) != 1:
            raise ValueError(f"{name}.md has {len(found)} lines of {label!r}, allowed: one")
        rule = max(place for place in range(found[0]) if lines[place].startswith("| :--"))
        heads.add(tuple(lines[rule - 1 : rule + 1]))
        chosen.append(lines[found[0]])
    if len(heads) > 1:
        raise ValueError(f"lines of {name}.md have {len(heads)} heads, allowed: one")
    return "".join(f"{line}\n" for line in (*heads.pop(), *chosen))


def _codes(folder: str) -> str:
    """A line for each file: its rows, the versions of the code that made them, and cells whose rows are of several."""
    head = "| file | rows | versions of the code | cells | cells of several |\n| :-- | --: | --: | --: | --: |\n"
    return head + "".join(map(_codes_line, sorted((RESULTS / folder).glob("*.parquet"))))


def _codes_line(file: Path) -> str:
    rows = load_table(file, ["cell", "code"], warn=lambda words: None)
    codes_of = grouped(zip(rows["cell"].to_pylist(), rows["code"].to_pylist(), strict=True), lambda pair: pair[0])
    versions = {code for pairs in codes_of.values() for _, code in pairs} - {None}
    several = sum(len({*pairs}) > 1 for pairs in codes_of.values())
    return f"| `{file.name}` | {rows.num_rows} | {len(versions)} | {len(codes_of)} | {several} |\n"


def _card(name: str) -> str:
    values: dict[str, dict[int, list[float]]] = {}
    for row in _side(f"{name} policy=full").rows:
        if row.value is not None and row.context_length is not None:
            values.setdefault(row.task, {}).setdefault(row.context_length, []).append(100 * row.value)
    lengths = sorted({length for of_task in values.values() for length in of_task})
    head = f"| full cache, in % (n) | {' | '.join(map(str, lengths))} |\n| :-- |{' --: |' * len(lengths)}\n"
    lines = (
        " | ".join(f"{mean(found):.0f} ({len(found)})" if (found := of_task.get(length)) else "" for length in lengths)
        for of_task in values.values()
    )
    return head + "".join(f"| {task} | {line} |\n" for task, line in zip(values, lines, strict=True))


def _line(comparison: Comparison, judged: Judged) -> str:
    line = judged.line
    assert None not in (line.mean_a, line.mean_b, line.difference, line.low, line.high)
    is_of_texts, numbers = _is_of_texts(line), [line.mean_a or 0.0, line.mean_b or 0.0]
    means = [f"{math.exp(mean):.2f}" if is_of_texts else f"{100 * mean:.1f}" for mean in numbers]
    change, low, high = (100 * _share(line, number or 0.0) for number in (line.difference, line.low, line.high))
    changed = f"{change:+.1f}{' %' if is_of_texts else ''} [{low:+.1f}, {high:+.1f}]"
    p, p_equivalent = ("<0.001" if p < 0.001 else f"{p:.3f}" for p in (judged.p, judged.p_equivalent))
    cells = (comparison.label, line.n, *means, changed, p, p_equivalent, judged.verdict)
    return f"| {' | '.join(map(str, cells))} |\n"
