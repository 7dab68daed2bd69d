"""Methods ranked by their paired difference to the full cache where they hold equally many measured bytes.

A league is the prompts of one model that are answered before, or after, its question is read; a method, its cells that
differ in nothing but task and budget. A size is a share of the
bytes of the full cache, as measured. What a method answers at a size is, task by task, the answer of its cell with so
many bytes (to 2 %), else a mix of its next smaller and next larger cell, prompt by prompt: w of the larger and 1 - w of
the smaller, with w so that the bytes of the mix are the size. Whoever draws one of the two cells for each prompt with
these chances holds that many bytes in the mean and has that accuracy in the mean: nothing is read off a curve that was
not measured. Nothing is extrapolated either: a method without cells on both sides of a size is not ranked there.

Methods are compared on common prompts. A task takes part if more than half of the methods that reach the size answer
it; a method takes part if it answers, of each of these tasks, at least half of the prompts that most methods answer.
Every prompt counts once. The difference to the full cache has the interval of `kvbench.report.stats.intervals`, and all
pairs of methods, the full cache among them, are tested together: `kvbench.extras.board.all_pairs`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.extras.board.all_pairs import all_pairs, letters, pairs_told_apart
from kvbench.extras.board.submissions import LABELS
from kvbench.records.rows import Describe
from kvbench.report.experiments import ASKED, Experiments
from kvbench.report.stats.intervals import interval
from kvbench.report.stats.paired import NO_CONTEXT, Paired, scale_of
from kvbench.report.stats.verdicts import ALPHA
from kvbench.support.errors import NothingSelected, UserError

if TYPE_CHECKING:
    import pandas

SIZES = (1 / 32, 0.05, 1 / 16, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Shares of the bytes of the full cache; one of 32 and one of 16 as kvpress' leaderboard asks for."""
SAME = 0.02
"""Relative difference of bytes up to which a cell has the size that is asked for."""
FULL = "full"
METHOD = ("submission", *LABELS, "setting")
_MEASURED = ("value", "held_bytes")
TASK = ("task", "task_version", "context_length", "seed")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A method at a size.

    ``setting``: what else tells it from methods of the same labels. ``first last``: its best and worst rank that the
    tests leave open. ``mean difference low high``: rates in 0..1, the last three of method - full cache. ``p``: of that
    difference, corrected for all pairs. ``group``: its letters. ``bytes``: of its cache, a mean over prompts.
    ``budgets``: of the cells that it is made of.
    """

    submission: str
    policy: str
    score: str | None
    variant: str | None
    layout: str | None
    schedule: str | None
    setting: str | None
    first: int
    last: int
    mean: float
    difference: float
    low: float | None
    high: float | None
    p: float
    group: str
    bytes: float
    budgets: tuple[str, ...]

    @property
    def is_full(self) -> bool:
        """Whether this is the full cache, the reference of all others."""
        return self.policy == FULL


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The places of a league at a size, best first, and the methods that reach the size but lack tasks or prompts.

    ``tasks``: name and number of prompts. ``n contexts``: prompts, and how many different contexts they have.
    """

    model: str
    moment: str
    size: float
    tasks: Mapping[str, int]
    n: int
    contexts: int
    places: tuple[Place, ...]
    unranked: tuple[str, ...]


def rankings(
    rows: "pandas.DataFrame",
    describe: Describe,
    warn: Callable[[str], None],
    sizes: Sequence[float] = SIZES,
    alpha: float = ALPHA,
) -> list[Ranking]:
    """Return every league at every size at which at least two methods can be compared, by model.

    ``rows describe``: of `kvbench.extras.board.submissions.read_submissions`. Rows without measured bytes, or
    whose metric is no share of which more is better, go to ``warn``. Raises NothingSelected if nothing can be ranked,
    UserError if two cells of a submission have the same labels and budget on one prompt.
    """
    measured: Any = _measured(rows, describe, warn)  # Any: the stubs of pandas know few of its overloads
    is_full = measured.policy == FULL
    full = measured[is_full].drop_duplicates("prompt").set_index("prompt")
    methods = measured[~is_full & measured.prompt.isin(full.index)]
    ranked = []
    for (model, moment), league in methods.groupby(["model", "moment"], sort=True, observed=True):
        cells = {
            label: members[[*_MEASURED, "share", "place", "budget", "prompt"]]
            for label, members in league.groupby([*METHOD], dropna=False, sort=True, observed=True)
        }
        candidates = (_ranking(str(model), str(moment), size, cells, full, alpha) for size in sizes)
        ranked += [ranking for ranking in candidates if ranking is not None]
    if not ranked:
        raise NothingSelected(
            "no two methods can be compared: each needs measured bytes around a size (at=), and the rows of the full "
            "cache on its prompts"
        )
    return ranked


def _measured(rows: Any, describe: Describe, warn: Callable[[str], None]) -> "pandas.DataFrame":
    """Return rows that can be ranked, with ``prompt``, ``context``, ``moment`` and ``place``, the name of the task."""
    import pandas  # late: it takes half a second

    rows = rows[rows.value.notna()]
    is_rate = pandas.Series(False, index=rows.index)
    for metric, members in rows.groupby("metric", dropna=False):
        units, better = (set(members[name].dropna()) for name in ("unit", "better"))
        name = metric if isinstance(metric, str) else None
        scale = scale_of(name, units, better, members.value.to_numpy(float))
        is_rate[members.index] = scale.rate and scale.higher
    is_ranked = is_rate & rows.held_bytes.notna() & rows.full_held_bytes.gt(0)
    if unranked := int((~is_ranked).sum()):
        warn(f"{unranked} of {len(rows)} rows are not ranked: no measured bytes, or no share to be raised")
    rows = told_apart(rows[is_ranked].copy(), describe)
    question = [rows[name].astype(str) for name in (*TASK, "sample")]
    prompt = rows.prompt_sha256.fillna(question[0].str.cat(question[1:], sep=" "))
    prompt = prompt.str.cat(rows.place, sep=" ")
    context = rows.context_sha256.where(rows.context_sha256 != NO_CONTEXT).fillna(prompt)
    rows["prompt"], rows["context"] = (
        rows.model.str.cat(names, sep=" ").factorize(sort=True)[0] for names in (prompt, context)
    )
    rows["moment"] = np.where(rows.schedule.fillna("").str.match(r"context\b"), "before", "after")
    rows = rows.astype(dict.fromkeys((*METHOD, "model", "moment", "place", "budget", "cell"), "category"))
    rows["share"] = rows.held_bytes / rows.full_held_bytes
    key = [*METHOD, "budget", "prompt"]
    if (again := rows[rows.policy.ne(FULL) & rows.duplicated(key, keep=False)]).size:
        two = again.drop_duplicates("cell").cell.head(2)
        label = " ".join(str(again.iloc[0][name]) for name in (*LABELS, "budget") if again.iloc[0][name] is not None)
        raise UserError(
            f"{again.iloc[0].submission}: two cells have the labels {label} on one prompt: {' and '.join(two)}; name "
            "fewer files, or select by a setting, such as policy.window=16"
        )
    return rows


def told_apart(rows: Any, describe: Describe) -> Any:
    """Return the rows with `place` and `setting`: a model, task or method of several experiments is several.

    Of a cell without a description the columns say the seed and the version of the task.
    """
    import pandas  # late: it takes half a second

    cells = rows.drop_duplicates("cell").set_index("cell")
    length = cells.context_length.map(lambda tokens: "" if tokens != tokens or tokens is None else f" {tokens:.0f}")
    cells["place"] = cells.task + length

    def described(cell: str) -> Mapping[str, Any]:
        of_columns = {"seed": cells.seed[cell], "task": {"version": cells.task_version[cell]}}
        return describe(cell) or of_columns

    def words(experiments: Experiments, *columns: str) -> Mapping[str, str | None]:
        names = zip(*(map(str, cells[column]) for column in columns), strict=True)
        return experiments.told_apart(dict(zip(cells.index, names, strict=True)))

    def named(column: str, words: Mapping[str, str | None]) -> list[str]:
        return [" ".join(filter(None, (cells[column][cell], words[cell]))) for cell in rows.cell]

    setting = words(Experiments(("budget", *ASKED), described), *METHOD[:-1])
    return rows.assign(
        model=named("model", words(Experiments((), described, ("model",)), "model")),
        place=named("place", words(Experiments((), described, ("task", "seed")), "model", "place")),
        setting=pandas.Series([setting[cell] for cell in rows.cell], rows.index, object),
    )


@dataclass(frozen=True)
class _Mixed:
    """A method at a size: the value and bytes of each prompt, by task, and the budgets of the cells."""

    values: Mapping[str, "pandas.Series"]
    bytes: Mapping[str, "pandas.Series"]
    budgets: tuple[str, ...]


def _ranking(
    model: str,
    moment: str,
    size: float,
    cells: Mapping[tuple, "pandas.DataFrame"],
    full: "pandas.DataFrame",
    alpha: float,
) -> Ranking | None:
    mixed = {label: _mixed(rows, size) for label, rows in cells.items()}
    mixed = {label: method for label, method in mixed.items() if method.values}
    named = sorted({task for method in mixed.values() for task in method.values})
    tasks = [task for task in named if 2 * sum(task in method.values for method in mixed.values()) > len(mixed)]
    usual = {
        task: float(np.median([len(method.values[task]) for method in mixed.values() if task in method.values]))
        for task in tasks
    }
    ranked = {
        label: method
        for label, method in mixed.items()
        if all(task in method.values and len(method.values[task]) >= usual[task] / 2 for task in tasks)
    }
    if not tasks or len(ranked) < 2:
        return None
    prompts = {
        task: sorted(set.intersection(*({*method.values[task].index} for method in ranked.values()))) for task in tasks
    }
    if not all(prompts.values()):
        return None
    every = [prompt for task in tasks for prompt in prompts[task]]
    reference = full.loc[every]
    values = np.stack(
        [
            reference.value.to_numpy(float),
            *(np.concatenate([method.values[t].loc[prompts[t]] for t in tasks]) for method in ranked.values()),
        ]
    )
    numbers: dict[int, int] = {}
    cluster = np.array([numbers.setdefault(context, len(numbers)) for context in reference.context.tolist()])
    places = _places(values, cluster, alpha, [*_labels(reference, ranked)], tasks, prompts, ranked, reference)
    return Ranking(
        model=model,
        moment=moment,
        size=size,
        tasks={task: len(prompts[task]) for task in tasks},
        n=len(every),
        contexts=len(numbers),
        places=places,
        unranked=tuple(" ".join(_words(label[1:])) for label in mixed if label not in ranked),
    )


def _labels(reference: "pandas.DataFrame", ranked: Mapping[tuple, _Mixed]) -> Iterator[dict[str, str | None]]:
    first = reference.iloc[0]
    yield {**{name: None for name in METHOD}, "submission": first.submission, "policy": FULL}
    for label in ranked:
        yield {name: value if isinstance(value, str) else None for name, value in zip(METHOD, label, strict=True)}


def _words(label: Sequence[object]) -> list[str]:
    return [text for text in label if isinstance(text, str)]


def _places(
    values: np.ndarray,
    cluster: np.ndarray,
    alpha: float,
    labels: Sequence[Mapping[str, str | None]],
    tasks: Sequence[str],
    prompts: Mapping[str, Sequence[int]],
    ranked: Mapping[tuple, _Mixed],
    reference: "pandas.DataFrame",
) -> tuple[Place, ...]:
    """Return the places, best first; the first of ``values [1 + methods, prompts]`` is the full cache."""
    order = np.argsort(-values.mean(axis=1), kind="stable")
    p = all_pairs(values[order], cluster)
    apart = pairs_told_apart(p, alpha)
    groups = letters(apart, len(order))
    full = int(np.flatnonzero(order == 0)[0])
    mean_bytes = [
        float(reference.held_bytes.mean()),
        *(float(np.concatenate([m.bytes[t].loc[prompts[t]] for t in tasks]).mean()) for m in ranked.values()),
    ]
    budgets = [("1.0",), *(method.budgets for method in ranked.values())]
    places = []
    for rank, i in enumerate(order):
        limits = interval(Paired(values[0], values[i], cluster)) if i else None
        places.append(
            Place(
                **labels[i],  # type: ignore[arg-type]
                first=1 + sum(second == rank for _, second in apart),
                last=len(order) - sum(first == rank for first, _ in apart),
                mean=float(values[i].mean()),
                difference=float((values[i] - values[0]).mean()),
                low=limits.low if limits else None,
                high=limits.high if limits else None,
                p=float(p[rank, full]),
                group=groups[rank],
                bytes=mean_bytes[i],
                budgets=budgets[i],
            )
        )
    return tuple(places)


def _mixed(rows: "pandas.DataFrame", size: float) -> _Mixed:
    """Return a method at a size, for the tasks in which its cells reach it."""
    values, bytes_of, budgets = {}, {}, {}
    for task, cells in rows.groupby("place", sort=True, observed=True):
        shares = cells.groupby("budget", observed=True).share.mean().sort_values(kind="stable")
        near = shares[np.abs(shares / size - 1) <= SAME]
        below, above = shares[shares < size], shares[shares > size]
        if len(near):
            nearest, weight = [str((near - size).abs().idxmin())] * 2, 0.0
        elif len(below) and len(above):
            nearest = [str(below.index[-1]), str(above.index[0])]
            weight = float((size - below.iloc[-1]) / (above.iloc[0] - below.iloc[-1]))
        else:
            continue
        small, large = (cells[cells.budget == budget].set_index("prompt") for budget in nearest)
        common = small.index.intersection(large.index)
        mix = [(1 - weight) * small.loc[common, name] + weight * large.loc[common, name] for name in _MEASURED]
        values[str(task)], bytes_of[str(task)] = mix
        budgets |= dict.fromkeys(nearest)
    return _Mixed(values, bytes_of, tuple(budgets))
