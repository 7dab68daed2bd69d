"""A board as a report for the screen, and as a folder for a site: one page without scripts, and its lines as CSV."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvbench.extras.board.ranking import LABELS, SIZES, Place, Ranking, rankings
from kvbench.extras.board.submissions import Submission, read_submissions
from kvbench.report.compare.gate import Gate
from kvbench.report.formats.emit import write_report
from kvbench.report.formats.html import style, template
from kvbench.report.formats.table import Figure, Report, Table, TableRow
from kvbench.report.report_file import text_to
from kvbench.report.selection import Where
from kvbench.report.stats.verdicts import ALPHA
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun, size

PAGE, LINES = "index.html", "board.csv"
HEADS = ("rank", "mean", "- full [95 %]", "groups", "held", "cells")
MOMENTS = {"after": "evicted after the question was read", "before": "evicted before the question is read"}
HOW = (
    "Accuracy in %, every prompt counted once. - full: the paired difference to the full cache in points with its 95 % "
    "interval, not corrected for several lines. Groups: two methods without a common letter differ beyond chance; all "
    "pairs of a table are tested together by sign flips of the same prompts (step-down maximum, {alpha:g}). Rank: the "
    "best and the worst rank that these tests do not exclude.",
    "Equal bytes: a method is measured at the size (to 2 %), or is a mix of its next smaller and next larger cell that "
    "holds as many bytes in the mean; cells are named by their budgets. Nothing is extrapolated.",
)
TEST_MODELS = {
    "reference": "the embedded test model: its ranks say that the code works, not how methods rank on a language model."
}


@dataclass(frozen=True)
class Board:
    """The rankings, what they are made of, the gates between submissions, and the level of the tests."""

    rankings: tuple[Ranking, ...]
    submissions: tuple[Submission, ...]
    gates: tuple[Gate, ...]
    alpha: float

    @property
    def how(self) -> tuple[str, ...]:
        """How to read it, and which of its models rank nothing."""
        tests = sorted({*TEST_MODELS} & {ranking.model.split(" ")[0] for ranking in self.rankings})
        return (
            *(text.format(alpha=self.alpha) for text in HOW),
            *(f"Model {model} is {TEST_MODELS[model]}" for model in tests),
        )


def board(
    sources: Sequence[str],
    warn: Callable[[str], None],
    where: Where | None = None,
    sizes: Sequence[float] = SIZES,
    alpha: float = ALPHA,
) -> Board:
    """Read submissions and rank their methods. Raises what `read_submissions` and `rankings` raise.

    ``sizes``: shares of the full cache's bytes, 0..1. ``alpha``: the chance of any false difference in a table.
    """
    rows, describe, submissions, gates = read_submissions(sources, warn, where)
    return Board(tuple(rankings(rows, describe, warn, sizes, alpha)), tuple(submissions), tuple(gates), alpha)


def report_of(board: Board) -> Report:
    """Return a board as tables, and as a record for each line."""
    return Report(
        title="Methods at equal measured bytes",
        tables=tuple(_table(ranking) for ranking in board.rankings),
        notes=(*board.how, *(_described(submission) for submission in board.submissions)),
        records=[_record(ranking, place) for ranking in board.rankings for place in ranking.places],
    )


def write_board(board: Board, out: Path) -> None:
    """Write the page and its lines into a folder. Raises UserError where ``out`` is a file or cannot be made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: not a folder that can be written: {error.strerror}") from error
    from markupsafe import Markup

    css = Markup(style())
    leagues: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for ranking in board.rankings:
        leagues.setdefault((ranking.model, ranking.moment), []).append(_drawn(ranking))
    page = template("kvbench.extras.board", "board.html.j2")
    with text_to(out / PAGE) as file:
        file.write(page.render(board=board, leagues=leagues, moments=MOMENTS, css=css, described=_described))
    write_report(report_of(board), "csv", out / LINES)


def _described(submission: Submission) -> str:
    gate = {"": "no cell in common with those before"}.get(
        submission.verdict, f"gate on {count_noun(submission.gated, 'common cell')}: {submission.verdict}"
    )
    return f"{submission.name}: {count_noun(submission.rows, 'row')}, root {submission.root}, {gate}"


def method(place: Place, varying: Sequence[str] = LABELS) -> str:
    """Policy and score of a place, and of its other labels those that vary and are not the usual ones."""
    schedule = (place.schedule or "").partition(" ")[2]  # its first word says before or after the question
    layout = "" if place.layout == "kv_heads" else place.layout
    others = {"variant": place.variant, "layout": layout, "schedule": schedule}
    told = (others[name] for name in others if name in varying)
    return " ".join(filter(None, (place.policy, place.score, *told, place.setting)))


def _varying(ranking: Ranking) -> list[str]:
    """Return the labels, and the submission, that have several values in a table."""
    methods = [place for place in ranking.places if not place.is_full]
    return [name for name in ("submission", *LABELS) if len({getattr(place, name) for place in methods}) > 1]


def title(ranking: Ranking) -> str:
    """Return the model, the size, and when is evicted."""
    return f"{ranking.model}, {_share(ranking)} of the bytes, {MOMENTS[ranking.moment]}"


def _caption(ranking: Ranking) -> str:
    tasks = ", ".join(f"{name} ({count})" for name, count in ranking.tasks.items())
    contexts = "" if ranking.contexts == ranking.n else f" about {count_noun(ranking.contexts, 'context')}"
    return f"{count_noun(ranking.n, 'prompt')}{contexts}: {tasks}"


def _table(ranking: Ranking) -> Table:
    varying = _varying(ranking)
    labels = ["method", *(["submission"] if "submission" in varying else [])]
    lines = []
    for place in ranking.places:
        names = [method(place, varying), *([place.submission] if "submission" in varying else [])]
        figures = [Figure(text) for text in _texts(place).values()]
        lines.append(TableRow(tuple(names), tuple(figures), reference=place.is_full))
    notes = [f"Not ranked, other tasks or too few prompts: {', '.join(ranking.unranked)}"] * bool(ranking.unranked)
    return Table.of(labels, HEADS, lines, title=title(ranking), caption=(_caption(ranking),), notes=tuple(notes))


def _share(ranking: Ranking) -> str:
    return f"{100 * ranking.size:g} %"


def _texts(place: Place) -> dict[str, str]:
    """Return the texts of ``HEADS``."""
    limits = "" if place.low is None or place.high is None else f" [{100 * place.low:+.1f}, {100 * place.high:+.1f}]"
    rank = str(place.first) if place.first == place.last else f"{place.first}-{place.last}"
    difference = "" if place.is_full else f"{100 * place.difference:+.1f}{limits}"
    texts = (rank, f"{100 * place.mean:.1f}", difference, place.group, size([place.bytes]), " ".join(place.budgets))
    return dict(zip(HEADS, texts, strict=True))


def _drawn(ranking: Ranking) -> dict[str, Any]:
    """Return a table of the page: each line with its texts, and its interval in % of the width from ``left`` to
    ``right``.
    """
    ends = [
        value for place in ranking.places for value in (place.low, place.high, place.difference) if value is not None
    ]
    left, right = min(*ends, 0.0), max(*ends, 0.0)

    def at(value: float) -> float:
        return round(100 * (value - left) / ((right - left) or 1.0), 2)

    varying = _varying(ranking)
    lines = [
        {
            "method": method(place, varying),
            "submission": place.submission if "submission" in varying else "",
            "texts": _texts(place),
            "is_full": place.is_full,
            "dot": at(place.difference),
            "limits": None if place.low is None or place.high is None else (at(place.low), at(place.high)),
        }
        for place in ranking.places
    ]
    return {
        "ranking": ranking,
        "caption": _caption(ranking),
        "share": _share(ranking),
        "lines": lines,
        "zero": at(0.0),
    }


def _record(ranking: Ranking, place: Place) -> dict[str, Any]:
    of_ranking = {
        "model": ranking.model,
        "evicted": f"{ranking.moment} the question",
        "size": ranking.size,
        "n": ranking.n,
    }
    return of_ranking | asdict(place) | {"tasks": " ".join(ranking.tasks), "budgets": " ".join(place.budgets)}
