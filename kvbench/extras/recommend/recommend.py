"""Which methods are worth it for a model, prompts and a memory: run in rounds, until it is decided what each loses.

Before anything is run, methods whose memory does not fit are left out. Then all others answer the first 8 prompts, 16,
32 and so on, beside the full cache and from the same prefill. After each round those leave that are decided
(`kvbench.extras.recommend.elimination`), and those that need as much memory as one that is good enough. A round is a
sweep: its rows are as of `kvbench run`, so that an interrupted command continues, and a larger one begins where it
ended.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import NoReturn

import numpy as np

from kvbench.config.overrides import format_value, parse
from kvbench.extras.recommend.anytime_tests import confidence, more_prompts
from kvbench.extras.recommend.elimination import Evidence, decisions, next_levels
from kvbench.extras.recommend.recommendation import Measured, Recommendation, Verdict
from kvbench.records import Row, file_sizes
from kvbench.records.row import SHARE
from kvbench.report.experiments import Experiments
from kvbench.report.selection import differences
from kvbench.report.stats.paired import Paired
from kvbench.report.stats.verdicts import INCONCLUSIVE, NOT_WORSE
from kvbench.run.cell import Cell
from kvbench.run.lengths import Lengths, lengths_of
from kvbench.run.plan import PrefillGroup, plan
from kvbench.run.request_memory import RequestMemory, request_memory
from kvbench.run.runner import Opened
from kvbench.run.stale import SETTLED, Stale, settled
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun, parse_size, shortened, size
from kvbench.work.planned import Sweep, plan_sweep, refuse_around
from kvbench.work.sweep import RunOutput, make, rows_of_sweep

POLICIES = ("streaming_llm", "snapkv", "pyramidkv", "ada_snapkv", "cake", "lava", "kvzip")
IN_BLOCKS = ("streaming_llm", "snapkv", "tova_obcache")
"""Policies that are tried if the command names none: evicting after the prompt, and while it is read."""
BUDGETS = ("0.1", "0.2", "0.4")
BLOCK = 512
"""Tokens between two evictions where the prompt does not fit at once."""
FIRST = 8
"""Prompts of the first round; each further round has twice as many."""
SETTINGS = {"memory": None, "loss": "2", "requests": "1", "alpha": "0.05"}
"""The settings of a recommendation beside a run's, with their values where the command does not name them."""


_LISTED = 6
TIMES = ("prefill_seconds", "evict_seconds", "decode_seconds")


@dataclass(frozen=True)
class Need:
    """Needs of a user. memory: bytes for weights, prompt and answers of all requests; None: no limit. loss: what is
    tolerated of the mean, in 0..1. requests: at a time, of which one is being read. alpha: as in `decisions`.
    """

    memory: int | None = None
    loss: float = 0.02
    requests: int = 1
    alpha: float = 0.05


def need_of(settings: Mapping[str, str]) -> Need:
    """Return the need of `SETTINGS` as a command line writes them. Raises UserError for values that are not allowed."""
    memory = settings.get("memory")
    memory_bytes = None if memory is None else parse_size(memory)
    if memory is not None and not memory_bytes:
        raise UserError(f"memory={memory}: allowed: bytes with a unit, such as memory=2GiB or memory=600MiB")
    loss = _number("loss", settings, "points of the mean from 0 to below 100, such as loss=2", 0, 100)
    alpha = _number("alpha", settings, "a number between 0 and 1, such as alpha=0.05", 0, 1)
    if alpha == 0:
        raise UserError("alpha=0: allowed: a number between 0 and 1, such as alpha=0.05")
    requests = settings.get("requests", SETTINGS["requests"]) or ""
    if not requests.isdecimal() or not 0 < int(requests) <= 10**6:
        raise UserError(f"requests={requests}: allowed: a number of requests at a time, from 1 to 1000000")
    return Need(memory_bytes, loss / 100, int(requests), alpha)


def _number(name: str, settings: Mapping[str, str], allowed: str, low: float, high: float) -> float:
    text = settings.get(name, SETTINGS[name]) or ""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not low <= value < high:
        raise UserError(f"{name}={text}: allowed: {allowed}")
    return value


@dataclass
class Candidate:
    """A method, what it takes, and what is known of it so far. reference: the full cache that it is held against."""

    cell: Cell
    reference: Cell
    memory: RequestMemory
    evidence: Evidence = field(default_factory=Evidence)
    verdict: Verdict = INCONCLUSIVE
    rows: Sequence[Row] = ()
    losses: np.ndarray = field(default_factory=lambda: np.empty(0))


def recommend(
    words: Sequence[str], data: str | None, need: Need, screen: RunOutput, stale: Stale = "stop"
) -> Recommendation:
    """Recommend methods for the settings of a run, `words`, and a file of prompts, `data`, unless they name a task.

    stale: as in `plan_sweep`.

    Raises UserError for settings that do not go with a recommendation, and where no method fits into the memory; else
    as `plan_sweep` and `kvbench.run.runner.run` do.
    """
    words, assumed = _with_defaults(words, data)
    refuse_around(parse(words), "kvbench recommend")

    def candidates_of(words: Sequence[str]) -> tuple[Sweep, list[Candidate], Lengths]:
        sweep = plan_sweep(words, screen.tell, quiet=True, stale=stale)
        _check(sweep)
        return sweep, *_candidates(sweep, need)

    sweep, candidates, lengths = candidates_of(words)
    named = {override.key for override in parse(words)}
    if not _running(candidates) and "policy" in assumed and not named & {"score", "schedule.prefill_block"}:
        in_blocks = [f"policy={','.join(IN_BLOCKS)}", f"schedule.prefill_block={BLOCK}"]
        words = [*(word for word in words if not word.startswith("policy=")), *in_blocks]
        sweep, candidates_in_blocks, lengths = candidates_of(words)
        candidates += candidates_in_blocks
        assumed["policy"] = (
            f"No method that evicts after the prompt fits, so {', '.join(IN_BLOCKS)} evict while it is read, after "
            f"every {BLOCK} tokens (schedule.prefill_block), and share no prefill."
        )
    running = _running(candidates)
    if not running:
        smallest = min(candidates, key=lambda candidate: candidate.memory.peak(need.requests))
        peak, method = size([smallest.memory.peak(need.requests)]), smallest.cell.eviction
        raise UserError(
            f"memory={size([need.memory or 0])} is too small: weights take {size([smallest.memory.weights])}, and the "
            f"least peak is {peak} ({method.policy_label} at budget={method.budget}): give more, a "
            f"smaller budget, shorter prompts or schedule.prefill_block={BLOCK}"
        )
    fit = f"{len(running)} of {count_noun(len(candidates), 'method')} fit"
    screen.tell(f"{fit}, at most {count_noun(_total(sweep), 'prompt')}; results in {sweep.results.path}")
    full, prompts = _rounds(sweep, running, need, screen)
    return _recommendation(sweep, candidates, full, prompts, lengths, need, (*assumed.values(), *_always(sweep)))


def _with_defaults(words: Sequence[str], data: str | None) -> tuple[list[str], dict[str, str]]:
    """Return words of the sweep, and a sentence for each setting that was assumed. Raises UserError without prompts."""
    words, named_keys, assumed = list(words), {override.key for override in parse(words)}, dict[str, str]()
    if data is not None:
        if beside := [word for word in words if word.startswith(("task=", "task.path="))]:
            raise UserError(f"data={data} and {beside[0]} both say what is read: leave one of them out")
        words += ["task=jsonl", f"task.path={format_value(data)}"]
        if "task.samples" not in named_keys:
            words.append(f"task.samples={10**6}")  # as many as the file has
    elif "task" not in named_keys:
        raise UserError("what is read? data=FILE.jsonl, with lines as of task=jsonl, or task=NAME: kvbench list tasks")
    if "policy" not in named_keys:
        words.append(f"policy={','.join(POLICIES)}")
        own = "" if "score" in named_keys else ", each with the score that it was published with"
        assumed["policy"] = f"Tried: {', '.join(POLICIES)}{own}; policy= and score= name others."
    if "budget" not in named_keys:
        words.append(f"budget={','.join(BUDGETS)}")
        assumed["budget"] = f"Budgets {', '.join(BUDGETS)} of the prompt; budget= names others."
    if "schedule.evict_after" not in named_keys:
        words.append("schedule.evict_after=prompt")
        assumed["schedule"] = (
            "Evicted after the whole prompt, its question included; where one context serves many questions, use "
            "schedule.evict_after=context."
        )
    return words, assumed


def _always(sweep: Sweep) -> Iterator[str]:
    task = sweep.plan.cells[0].task
    yield (
        "Prompts are taken in their order, as if drawn at random from those that will come: shuffle a file that is "
        f"sorted. Answers have at most {task.max_new_tokens} tokens (task.max_new_tokens) and are scored by "
        f"{task.metric}."
    )


def _check(sweep: Sweep) -> None:
    """Raise UserError for a sweep that is more than one question, or has no answers to compare."""
    cells = sweep.plan.cells
    if not all(cell.model.runs_here for cell in cells):
        raise UserError(f"model={cells[0].model.name}: it evicts elsewhere; recommend compares methods that run here")
    for task in {cell.task.name: cell.task for cell in cells}.values():
        if task.unit != SHARE:
            raise UserError(
                f"task={task.name} gives {task.metric}, but a loss is one of answers with a score: use data=FILE or "
                "another task (kvbench list tasks)"
            )
    for name in ("model", "task", "seed"):
        if differing := differences([{name: cell.description[name]} for cell in cells]):
            raise UserError(
                f"{name} has several values here, which differ in {shortened(sorted(differing), _LISTED)}: a "
                f"recommendation is for one {name}; name one value of each"
            )
    if lengths_of(PrefillGroup((cells[0],), ())) is None:
        raise UserError(
            f"task={cells[0].task.name}: no prompt is short enough for {cells[0].model.label}: use shorter ones, or "
            "task.truncation=middle task.max_prompt_tokens=N"
        )


def _candidates(sweep: Sweep, need: Need) -> tuple[list[Candidate], Lengths]:
    """Return the cells that evict, with what they take and whether that fits, and the lengths of the prompts.

    Raises UserError where there is none, or no full cache.
    """
    full = [cell for cell in sweep.plan.cells if "budget" not in cell.policy.accepts]
    candidates, longest = list[Candidate](), Lengths(0, 0)
    for cell in sweep.plan.cells:
        if "budget" not in cell.policy.accepts:
            continue
        reference = next((each for each in full if each.schedule.evict_after == cell.schedule.evict_after), None)
        if reference is None:
            raise UserError("reference=none: the loss is one against the full cache: leave it out")
        lengths = lengths_of(PrefillGroup((cell,), ()))
        assert lengths is not None
        memory = request_memory(cell, lengths)
        fits = need.memory is None or memory.peak(need.requests) <= need.memory
        candidates.append(Candidate(cell, reference, memory, verdict=INCONCLUSIVE if fits else "too large"))
        longest = max(longest, lengths, key=lambda each: each.read)
    if not candidates:
        raise UserError("policy=full evicts nothing: name policies that take a budget (kvbench list policies)")
    return candidates, longest


def _running(candidates: Sequence[Candidate]) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate.verdict != "too large"]


def _total(sweep: Sweep) -> int:
    return sweep.plan.cells[0].task.samples


def rounds(sweep: Sweep) -> Iterator[int]:
    """Prompts after each round; a round ends with a context where its questions follow each other."""
    task, total, number = sweep.plan.cells[0].task, _total(sweep), FIRST
    while number < total:
        while number < total and task.context_of(number) == task.context_of(number - 1):
            number += 1
        if number < total:
            yield number
        number *= 2
    yield total


def _rounds(
    sweep: Sweep, candidates: Sequence[Candidate], need: Need, screen: RunOutput
) -> tuple[Mapping[str, list[Row]], int]:
    """Run rounds until nothing is open. Returns the rows of the full cache by cell, and the number of prompts."""
    opened, full_rows, prompts = Opened(), dict[str, list[Row]](), 0
    warnings = RunOutput(lambda text: screen.tell(text) if text.startswith("warning") else None, screen.progress)
    for prompts in rounds(sweep):
        running = [candidate for candidate in candidates if candidate.verdict == INCONCLUSIVE]
        cells = {cell.id: cell for candidate in running for cell in (candidate.reference, candidate.cell)}
        part = _round(sweep, [*cells.values()], prompts)
        make(part, (), _no_part, warnings, opened)
        rows = {name: list[Row]() for name in cells}
        for row in rows_of_sweep(part):
            rows[row.cell].append(row)
        full_rows |= {candidate.reference.id: rows[candidate.reference.id] for candidate in running}
        for candidate in running:
            candidate.rows = rows[candidate.cell.id]
            candidate.losses = _losses(full_rows[candidate.reference.id], candidate.rows)
            candidate.evidence = candidate.evidence.looked(candidate.losses, need.loss)
        _decide(candidates, need)
        counts = Counter(candidate.verdict for candidate in candidates)
        screen.tell(
            f"{count_noun(prompts, 'prompt')}: {', '.join(f'{count} {name}' for name, count in counts.items())}"
        )
        if not counts[INCONCLUSIVE]:
            break
    return full_rows, prompts


def _round(sweep: Sweep, cells: Sequence[Cell], prompts: int) -> Sweep:
    """Return the sweep of these cells on the first prompts, with what of it is recorded now."""
    cells = [replace(cell, task=replace(cell.task, samples=prompts)) for cell in cells]
    since, empty = file_sizes(sweep.results), replace(sweep, plan=plan(cells, set()))
    done, replaced = settled(empty.rows(SETTLED), cells, sweep.results, sweep.retry, sweep.stale, lambda text: None)
    words = [word for word in sweep.arguments if not word.startswith("task.samples=")]
    arguments = (*words, f"task.samples={prompts}")
    return replace(sweep, plan=plan(cells, done), since=since, arguments=arguments, quiet=False, replaced=replaced)


def _losses(full: Sequence[Row], rows: Sequence[Row]) -> np.ndarray:
    """Full cache minus method, one number in -1..1 for each context, of the samples that both have a value of."""
    values = {row.sample: row for row in full if row.value is not None}
    pairs = [(row, values[row.sample]) for row in rows if row.value is not None and row.sample in values]
    sums, sizes = Paired.of(pairs).gain().sums()
    return sums / sizes


def _decide(candidates: Sequence[Candidate], need: Need) -> None:
    decided = decisions([candidate.evidence for candidate in candidates], need.alpha)
    for candidate, decision in zip(candidates, decided, strict=True):
        if candidate.verdict == INCONCLUSIVE:
            candidate.verdict = decision if len(candidate.losses) else "failed"
    within = [candidate.memory for candidate in candidates if candidate.verdict == NOT_WORSE]
    for candidate in candidates:
        if candidate.verdict == INCONCLUSIVE and any(
            memory.decode <= candidate.memory.decode and memory.prefill <= candidate.memory.prefill for memory in within
        ):
            candidate.verdict = "not needed"


def _recommendation(
    sweep: Sweep,
    candidates: Sequence[Candidate],
    full: Mapping[str, list[Row]],
    prompts: int,
    lengths: Lengths,
    need: Need,
    assumed: tuple[str, ...],
) -> Recommendation:
    running = _running(candidates)
    levels, reference = next_levels([candidate.evidence for candidate in running], need.alpha), running[0].reference
    memory = request_memory(reference, lengths)
    fits = need.memory is None or memory.peak(need.requests) <= need.memory
    measured = partial(_measured, need=need)
    cells = {candidate.cell.id: candidate.cell for candidate in candidates}
    methods = {name: cell.eviction for name, cell in cells.items()}
    experiments = Experiments((), lambda cell: cells[cell].description)
    words = experiments.told_apart(
        {name: (m.policy_label, m.score_label, str(m.budget)) for name, m in methods.items()}
    )
    task = reference.task
    return Recommendation(
        model=reference.model.label,
        task=task.name,
        metric=task.metric,
        tolerated=need.loss,
        alpha=need.alpha,
        memory=need.memory,
        requests=need.requests,
        weight_bytes=memory.weights,
        prompt_tokens=lengths.read,
        prompts=prompts,
        available=_total(sweep),
        full=measured(reference, memory, NOT_WORSE if fits else "too large", full[reference.id], np.empty(0), None),
        methods=tuple(
            replace(
                measured(
                    candidate.cell,
                    candidate.memory,
                    candidate.verdict,
                    candidate.rows,
                    candidate.losses,
                    _more(candidate, need, levels),
                ),
                setting=words[candidate.cell.id],
            )
            for candidate in candidates
        ),
        assumed=assumed,
    )


def _more(candidate: Candidate, need: Need, levels: tuple[float, float]) -> int | None:
    if candidate.verdict != INCONCLUSIVE or not len(candidate.losses):
        return None
    return more_prompts(candidate.losses, need.loss, *levels)


def _measured(
    cell: Cell,
    memory: RequestMemory,
    verdict: Verdict,
    rows: Sequence[Row],
    losses: np.ndarray,
    more: int | None,
    need: Need,
) -> Measured:
    valued = [row for row in rows if row.value is not None]
    low, high = confidence(losses) if len(losses) else (None, None)
    return Measured(
        policy=cell.eviction.policy_label,
        score=cell.eviction.score_label,
        budget=str(cell.budget),
        schedule=str(cell.schedule),
        cell=cell.id,
        verdict=verdict,
        n=len(losses) or len(valued),
        failed=len(rows) - len(valued),
        mean=_mean([row.value for row in valued]),
        loss=float(losses.mean()) if len(losses) else None,
        low=low,
        high=high,
        kept=_mean([row.kept_fraction for row in valued]),
        prefill_bytes=memory.prefill,
        decode_bytes=memory.decode,
        peak_bytes=memory.peak(need.requests),
        requests=None if need.memory is None else memory.requests(need.memory),
        evict_seconds=_mean([row.evict_seconds for row in valued]),
        seconds=_mean([sum(getattr(row, name) or 0.0 for name in TIMES) for row in valued]),
        more=more,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def _no_part(part: object) -> NoReturn:
    raise AssertionError("a recommendation runs in this process and has no parts")
