"""Write the tables of kvbench/extras/audit/audit.md from printed numbers and claims of papers, between their markers.

python scripts/document_audit.py
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from kvbench.extras.audit.pair_tests import ALPHA, p_value
from kvbench.extras.audit.pairs import LEVELS, Pair
from kvbench.extras.audit.paper_claims import Audited, audited, claims_of
from kvbench.extras.audit.printed import SCALES, LinePair, against_own, bests, printed_lines, swaps
from kvbench.extras.audit.table import shown_p
from kvbench.extras.audit.verdicts import Verdict
from kvbench.report.stats.paired_tests import holm
from kvbench.support import paths
from kvbench.support.grouped import grouped
from scripts.parts import with_parts

PAGE = Path(__file__).parents[1] / "kvbench" / "extras" / "audit" / "audit.md"
PAPERS = {"obcache": "OBCache", "lava": "LAVa", "caote": "CAOTE"}
OTHERS = ("kvzip", "kvpress", "kvcache_factory", "rkv", "triattention")
"""Sources of few claims, which share a table."""


@cache
def verdicts() -> tuple[Audited, ...]:
    """Every claim with its verdict, in the order of the file."""
    return tuple(audited(claim, paths.papers()) for claim in claims_of(paths.papers()))


@cache
def lost() -> frozenset[str]:
    """The decided claims that Holm's correction over all tested ones does not keep."""
    tested = [claim for claim in verdicts() if claim.decisive is not None]
    corrected = holm([claim.decisive for claim in tested if claim.decisive is not None])
    pairs = zip(tested, corrected, strict=True)
    return frozenset(claim.claim.id for claim, p in pairs if claim.verdict is Verdict.DECIDED and p > ALPHA)


def counts() -> str:
    """How many claims have each verdict, by paper."""
    by_paper = grouped(verdicts(), lambda claim: PAPERS.get(claim.claim.paper, "KVzip and neighbours"))
    rows = [[paper, *(str(sum(c.verdict is v for c in claims)) for v in Verdict)] for paper, claims in by_paper.items()]
    totals = Counter(claim.verdict for claim in verdicts())
    rows.append(["**all**", *(str(totals[verdict]) for verdict in Verdict)])
    tested = sum(claim.decisive is not None for claim in verdicts())
    kept = totals[Verdict.DECIDED] - len(lost())
    note = f"{len(verdicts())} claims. Holm's correction over the {tested} tested ones keeps {kept} of the decided ones"
    return f"{_table(['claims of', *Verdict], rows)}\n\n{note}; the others have a †."


def differences() -> str:
    """How many printed differences are shown at each level, and of how many columns the best is."""
    rows = []
    for paper, name in PAPERS.items():
        lines = [line for line in printed_lines(paper, paths.papers()) if line["task"] != "longbench"]
        pairs = [pair for pair in swaps(lines) or against_own(lines, paper) if pair.pair(suppose=True) is not None]
        for benchmark, members in grouped(pairs, _benchmark).items():
            rows.append([f"{name}, {benchmark}", *_shown(members)])
    columns = [
        pair
        for paper in PAPERS
        for pair in bests(printed_lines(paper, paths.papers()))
        if pair.b["unit"] in SCALES and pair.b.prompts is not None and pair.b["task"] != "longbench"
    ]
    rows.append(["the best of a column against the runner-up", *_shown(columns)])
    return _table(["printed differences", "number", "up", "down", *(f"shown at {level}" for level in LEVELS)], rows)


def _benchmark(pair: LinePair) -> str:
    benchmark = {"ruler": "RULER", "longbench": "LongBench", "infinitebench": "InfiniteBench"}
    name = pair.b["task"].partition("/")[0]
    host = " on H2O" if pair.b["paper"] == "caote" and name == "longbench" and "h2o" in pair.b["policy"] else ""
    unknown = " (n not stated; 500 a task)" if pair.b.prompts is not None and pair.b.prompts.n is None else ""
    return f"{benchmark.get(name, name)}{host}{unknown}"


def _shown(pairs: Sequence[LinePair]) -> list[str]:
    numbers = [pair.pair(suppose=True) for pair in pairs]
    found = [number for number in numbers if number is not None]
    judged: list[Pair] = [number for number in found if number.judged]
    shown = (sum(p_value(number, level) <= ALPHA for number in judged) for level in LEVELS)
    ups = sum(number.difference > 0 for number in found), sum(number.difference < 0 for number in found)
    return [str(count) for count in (len(found), *ups, *shown)]


def claims_table(*papers: str) -> str:
    """What the papers claim, what the printed numbers show, and the verdict."""
    rows = [
        [
            claim.claim.says,
            claim.claim.at,
            claim.shows,
            _p(claim),
            "" if claim.tasks_p is None else shown_p(claim.tasks_p),
            _verdict(claim),
        ]
        for claim in verdicts()
        if claim.claim.paper in papers
    ]
    return _table(["claim", "where", "printed", "p best...any", "p tasks", "verdict"], rows)


def _p(claim: Audited) -> str:
    if claim.p is None or claim.verdict is Verdict.FALSE:
        return ""
    return f"{shown_p(claim.p['best'])}...{shown_p(claim.p['any'])}"


def _verdict(claim: Audited) -> str:
    text = f"**{claim.verdict}**{'†' * (claim.claim.id in lost())}"
    if claim.claim.suppose:
        text += " if n is 500 a task"
    if claim.verdict is Verdict.DEPENDS and claim.need is not None:
        text += f"; settled by {claim.need:,.0f} times the prompts" if claim.need > 1 else ""
    return text


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


PARTS = {
    "counts": counts,
    "differences": differences,
    "obcache": partial(claims_table, "obcache"),
    "lava": partial(claims_table, "lava"),
    "caote": partial(claims_table, "caote"),
    "kvzip": partial(claims_table, *OTHERS),
}
"""What is made of the page, by its markers."""


if __name__ == "__main__":
    PAGE.write_text(with_parts(PAGE.read_text("utf-8"), PARTS), "utf-8")
