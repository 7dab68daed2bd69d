"""The report of `kvbench recommend`: what each method loses and takes, what is decided, and what was assumed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from kvbench.report.formats.table import Figure, Report, Table, TableRow
from kvbench.report.stats.verdicts import INCONCLUSIVE, NOT_WORSE, WORSE, extreme
from kvbench.support.quantity import count_noun, duration, size

Verdict = Literal["not worse", "inconclusive", "not needed", "worse", "failed", "too large"]
"""Shown to lose no more than is tolerated; neither shown; inconclusive, and a method that is not worse takes no more
memory; shown to lose more; without an answer; with a peak above the limit, so that it was not run."""
ORDER: tuple[Verdict, ...] = (NOT_WORSE, INCONCLUSIVE, "not needed", WORSE, "failed", "too large")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A method. Rates in 0..1, bytes, and seconds per prompt; None: not measured.

    n: independent prompts; those that share a context count once. loss: of the mean, against the full cache on the same
    prompts; low, high: its limits. prefill_bytes, decode_bytes, peak_bytes: as
    `kvbench.run.request_memory.RequestMemory` says, the peak with all requests that are wanted at a time. requests: how
    many fit into the memory. seconds: of prefill, eviction and answer. more: prompts until it is decided, at the
    present rate; None where that is not to be expected. setting: what else tells it from methods of the same names.
    """

    policy: str
    score: str | None
    budget: str
    schedule: str
    setting: str | None = None
    cell: str
    verdict: Verdict
    n: int = 0
    failed: int = 0
    mean: float | None = None
    loss: float | None = None
    low: float | None = None
    high: float | None = None
    kept: float | None = None
    prefill_bytes: int
    decode_bytes: int
    peak_bytes: int
    requests: int | None
    evict_seconds: float | None = None
    seconds: float | None = None
    more: int | None = None

    @property
    def name(self) -> str:
        """How a sentence calls it."""
        return " ".join(filter(None, (self.policy, self.score, "at", self.budget, self.setting)))


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Result. tolerated: the loss, as a share. memory: the limit in bytes, if there is one. requests: wanted at
    a time. prompts: that were run, of `available`. full: the full cache. assumed: sentences.
    """

    model: str
    task: str
    metric: str
    tolerated: float
    alpha: float
    memory: int | None
    requests: int
    weight_bytes: int
    prompt_tokens: int
    prompts: int
    available: int
    full: Measured
    methods: tuple[Measured, ...]
    assumed: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the full cache does."""
        return self.memory is None or self.full.peak_bytes <= self.memory

    @property
    def tells_nothing(self) -> str | None:
        """Why no method can be recommended by these answers; None if one can."""
        return extreme(self.full.mean, (line.mean for line in self.methods))

    @property
    def best(self) -> Measured | None:
        """The method that takes least memory while it answers, of the methods that are not worse; None if none is."""
        return min((line for line in self.methods if line.verdict == NOT_WORSE), key=_cheapest, default=None)

    @property
    def likely(self) -> Measured | None:
        """The same among inconclusive methods that have lost no more than is tolerated so far."""
        able = [each for each in self.methods if each.verdict == INCONCLUSIVE and (each.loss or 0.0) <= self.tolerated]
        return min((each for each in able if each.loss is not None), key=_cheapest, default=None)


def _cheapest(line: Measured) -> tuple[float, ...]:
    return line.decode_bytes, line.loss or 0.0, line.seconds or 0.0


_COMMON = (
    *("model", "task", "metric", "tolerated", "alpha", "memory"),
    *("requests", "weight_bytes", "prompt_tokens", "prompts", "available"),
)


def report_of(result: Recommendation) -> Report:
    """Return the report: one table for readers, every method for programs."""
    lines = sorted(result.methods, key=lambda line: (ORDER.index(line.verdict), *_cheapest(line)))
    records = [asdict(line) for line in (result.full, *lines)]
    best, likely = result.best, result.likely
    tree = {
        **{name: getattr(result, name) for name in _COMMON},
        "recommended": None if best is None else asdict(best),
        "likely": None if best is not None or likely is None else asdict(likely),
        "full_fits": result.fits,
        "full": records[0],
        "methods": records[1:],
        "assumed": list(result.assumed),
    }
    limit = "no limit of memory" if result.memory is None else f"{size([result.memory])} of memory"
    load = f", {result.requests} requests at a time" if result.requests > 1 else ""
    prompts = f"{count_noun(result.prompts, 'prompt')} of at most {result.prompt_tokens} tokens"
    return Report(
        title=f"model {result.model}, task {result.task}, {prompts}",
        head=(
            f"{result.metric} in %; tolerated loss {_points(result.tolerated)}, {limit}{load}, of which weights take "
            f"{size([result.weight_bytes])}",
            *_advice(result),
        ),
        tables=(_table(result, lines),),
        notes=(*_meanings(result), *result.assumed),
        records=records,
        tree=tree,
    )


def _advice(result: Recommendation) -> list[str]:
    best, likely, texts = result.best, result.likely, list[str]()
    if best is not None:
        texts.append(f"Recommended: {best.name}. {_described(result, best)}")
    elif likely is not None:
        more = f" About {count_noun(likely.more, 'more prompt')} would decide it." if likely.more else ""
        texts.append(f"Inconclusive. Most likely: {likely.name}. {_described(result, likely)}{more}")
    else:
        texts.append(f"No method is known to lose at most {_points(result.tolerated)}: the full cache stays.")
    if result.memory is not None:
        fits = "fits too" if result.fits else "does not fit"
        texts.append(f"The full cache {fits}: {size([result.full.peak_bytes])} at its peak.")
    return texts


def _described(result: Recommendation, line: Measured) -> str:
    assert line.loss is not None and line.low is not None and line.high is not None
    interval = f"[{100 * line.low:.1f}, {100 * line.high:.1f}]"
    return (
        f"Loss {100 * line.loss:.1f} {interval} points; an answer holds {size([line.decode_bytes])} instead of "
        f"{size([result.full.decode_bytes])}, the peak is {size([line.peak_bytes])} instead of "
        f"{size([result.full.peak_bytes])}."
    )


def _table(result: Recommendation, lines: Sequence[Measured]) -> Table:
    heads = ["n", "mean", "loss [95 %]", "to read", "to answer", "peak", "at once", "evict", "in all", "verdict"]
    if result.memory is None:
        heads.remove("at once")
    labels = ("policy", "score", "budget", *(["setting"] if any(line.setting for line in lines) else []))
    shown = [_line(result, result.full, len(labels), reference=True)]
    shown += [_line(result, line, len(labels)) for line in lines]
    align = "r" * (len(heads) - 1) + "l"
    return Table.of(labels, heads, shown, align=align, rules=(0, 1))


def _line(result: Recommendation, line: Measured, labels: int, reference: bool = False) -> TableRow:
    low, high = ("", "") if line.low is None or line.high is None else (f"{100 * x:.1f}" for x in (line.low, line.high))
    figures = [
        Figure(str(line.n)),
        Figure("" if line.mean is None else f"{100 * line.mean:.1f}"),
        Figure() if reference or line.loss is None else Figure(f"{100 * line.loss:.1f}", low, high),
        *(Figure(size([count])) for count in (line.prefill_bytes, line.decode_bytes, line.peak_bytes)),
        *([Figure(str(line.requests))] if result.memory is not None else []),
        *(Figure("" if value is None else duration([value])) for value in (line.evict_seconds, line.seconds)),
        Figure(_verdict(line, reference, result.fits), tone=_tone(line, reference)),
    ]
    names = (line.policy, line.score or "", "" if reference else line.budget, line.setting or "")
    return TableRow(names[:labels], tuple(figures), reference=reference)


def _verdict(line: Measured, reference: bool, fits: bool) -> str:
    if reference:
        return "" if fits else "too large"
    failed = f", {line.failed} failed" if line.failed else ""
    if line.verdict == INCONCLUSIVE:
        return f"{INCONCLUSIVE}: {f'{line.more} more' if line.more else 'no end in sight'}{failed}"
    return f"{line.verdict}{failed}"


def _tone(line: Measured, reference: bool) -> str:
    return "" if reference else {NOT_WORSE: "good", WORSE: "bad"}.get(line.verdict, "")


def _meanings(result: Recommendation) -> list[str]:
    share, others = f"{100 * result.alpha:g} %", count_noun(result.requests - 1, "request")
    together = f"one request being read while {others} are answered" if result.requests > 1 else "the larger of the two"
    return [
        f"worse, not worse: shown to lose more than {_points(result.tolerated)} against the full cache, or at most so "
        f"much; any false one of either kind has a chance of {share}, over all rounds and methods.",
        "inconclusive: about so many more prompts would decide it. not needed: inconclusive, and a method that is not "
        "worse takes no more memory.",
        f"Bytes are computed. to read, to answer: beside the weights, with activations. peak: weights and {together}. "
        "Seconds are per prompt, measured here.",
    ]


def _points(share: float) -> str:
    return f"{100 * share:g} point{'s' * (share != 0.01)}"
