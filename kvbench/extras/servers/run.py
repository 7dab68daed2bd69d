"""The backend of models that servers answer: the samples, jobs, rows and resume of every other run, no model."""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from kvbench.extras.servers.client import Client, KeyRefused
from kvbench.extras.servers.completions import Answer, Server
from kvbench.extras.servers.endpoint import endpoint_of
from kvbench.extras.servers.identity import identity
from kvbench.extras.servers.tokenizer import Tokenizer
from kvbench.models.loading.spec import ModelSpec, check_model_unchanged
from kvbench.models.prompts.build import build
from kvbench.models.prompts.chat import check_chat, check_ends
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.raw_text import begin
from kvbench.models.prompts.reasoning import final_of_parts, final_of_text, joined, turn_before
from kvbench.records import Curve, KeptDetail, PromptRecord, ResultsFolder, environment
from kvbench.run.cell import Cell
from kvbench.run.plan import PrefillGroup, PrefillJob
from kvbench.run.procedure import Procedure, Samples
from kvbench.run.progress import Progress, RunStats
from kvbench.run.rows import JobResult, answer_columns, unmeasured_row, with_second_answer
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun
from kvbench.tasks.task import Final, InvalidSample, Sample, Task

UNLIMITED = 2**62
"""Tokens of a prompt and its answer where only the server has a limit."""


class Source(Protocol):
    """Where answers come from: a server, or a file of answers made elsewhere."""

    @property
    def device(self) -> dict[str, Any]:
        """Device that answered, for the environment of rows."""
        ...

    def answer(self, prompt: Prompt, sample: Sample, cell: Cell) -> tuple[Prompt, Answer]:
        """Return the answer, and the prompt as it was read. Raises ValueError for a sample that has none."""
        ...

    def nll(self, prompt: Prompt) -> list[float]:
        """Negative log-likelihoods, in nats, of all tokens but the first. Raises ValueError where there are none."""
        ...

    @property
    def remark(self) -> str:
        """A line to tell after all is asked; blank: nothing."""
        ...


Open = Callable[[Cell, Tokenizer, ExitStack], Source]
"""Opens the source of a cell; what it holds open is closed with the stack."""


class Asked:
    """The answers of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.device = identity(server)

    def answer(self, prompt: Prompt, sample: Sample, cell: Cell) -> tuple[Prompt, Answer]:
        return self._server.answer(prompt, sample, cell.task, _seed(cell, sample))

    def nll(self, prompt: Prompt) -> list[float]:
        return self._server.nll(prompt)

    @property
    def remark(self) -> str:
        is_whole = self._server.endpoint.stream and self._server.client.streams is False
        return "the server sends no answer piece by piece: its rows have no times" if is_whole else ""


def ask(cell: Cell, tokenizer: Tokenizer, stack: ExitStack) -> Asked:
    """Return the server of a cell, in the way that it can be asked. Raises what `Server.choose_way` raises."""
    endpoint = endpoint_of(cell)
    client = stack.enter_context(Client(endpoint))
    return Asked(Server(client, endpoint, cell.model, tokenizer).choose_way())


@dataclass(frozen=True)
class Prepared:
    """A model, as far as it is read here."""

    tokenizer: Tokenizer


class Servers:
    """The backend of models whose tokenizer alone is read here. source: opens what answers."""

    def __init__(self, source: Open = ask) -> None:
        self._source = source

    def prepare(self, spec: ModelSpec) -> Prepared:
        return Prepared(read_tokenizer(spec))

    def check(self, prepared: Prepared, group: PrefillGroup) -> None:
        _check_group(prepared.tokenizer, group)

    def open(self, prepared: Prepared, results: ResultsFolder, progress: Progress) -> "Asking":
        return Asking(prepared.tokenizer, self._source, progress)

    def devices(self, spec: ModelSpec) -> set[Any]:
        return set()

    def procedure_of(self, task: Task) -> type[Procedure]:
        return Requests


@dataclass(frozen=True)
class Asking:
    """Servers are asked group by group. work: nothing that is counted here."""

    tokenizer: Tokenizer
    source: Open
    progress: Progress
    work: RunStats = field(default_factory=RunStats)

    @contextmanager
    def procedure(self, group: PrefillGroup, results: ResultsFolder, kept: KeptDetail) -> Iterator[Procedure]:
        """Open the server of the one cell of a group."""
        (cell,) = group.cells
        endpoint = endpoint_of(cell)
        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(endpoint.concurrency))
            self.progress.loading(endpoint.server or endpoint.url)
            source = self.source(cell, self.tokenizer, stack)
            self.progress.noted(f"{source.device['name']}, asked by {source.device['api']}")
            named = results.write_environment(environment(source.device))
            yield Requests(self.tokenizer, cell, pool, source, named)
            if source.remark:
                self.progress.noted(source.remark)


@dataclass(frozen=True)
class Requests:
    """The procedure of a server: the prompts of a job are asked together.

    What one request cannot do becomes a row with its `error`. Raises UserError for a server that answers nobody.
    """

    tokenizer: Tokenizer
    cell: Cell
    pool: ThreadPoolExecutor
    source: Source
    environment_id: str
    num_waiting: int = 0

    @classmethod
    def when(cls, group: PrefillGroup) -> str:
        return "answered by a server"

    @classmethod
    def cost(cls, group: PrefillGroup) -> str:
        return f"to ask: {count_noun(group.rows_to_do, 'prompt')}"

    def make(self, job: PrefillJob, samples: Samples, most_waiting: int) -> Iterator[JobResult]:
        yield _run_job(self.tokenizer, self.cell, job, samples, self.pool, self.source, self.environment_id)

    def finish(self) -> Iterator[JobResult]:
        yield from ()


def read_tokenizer(model: ModelSpec) -> Tokenizer:
    """Return the tokenizer of a model, its chat template tried. Raises UserError or MissingFile where it cannot be
    used.
    """
    tokenizer = Tokenizer.read(model.folder())
    if tokenizer.chat_template is not None and model.chat != "never":
        check_ends(tokenizer, model.system, f"model.path={model.path}")
    check_chat(tokenizer, model.chat, model.system)
    return tokenizer


def prompt_for(tokenizer: Any, cell: Cell, sample: Sample) -> Prompt:
    """Return the prompt of a sample as our own models read it whole. Raises UserError for one that cannot be built."""
    if cell.task.scores_text:
        return begin(tokenizer, sample.context, (cell.task.context_length or 0) + 1)
    spec, most = cell.model, (cell.model.max_length or UNLIMITED) - sample.max_new_tokens
    return build(tokenizer, sample, cell.task, most, spec.chat, spec.system)


def _check_group(tokenizer: Any, group: PrefillGroup) -> None:
    """Make every sample once and drop it: raises ValueError for a task that cannot be asked of the model."""
    length, limit = group.task.context_length, group.model.max_length
    if length is not None and limit is not None and length > limit:
        raise UserError(f"task.context_length={length}: allowed: at most {limit} tokens (model.max_length)")
    for cell in group.cells:
        check_model_unchanged(cell.model, cell.description["model"]["tokenizer_sha256"])
        _ = cell.code  # as it is now: files may be edited while the run goes on
    for _ in group.samples(tokenizer):
        pass


def _run_job(
    tokenizer: Tokenizer,
    cell: Cell,
    job: PrefillJob,
    samples: Samples,
    pool: ThreadPoolExecutor,
    source: Source,
    environment_id: str,
) -> JobResult:
    """Return the rows of a job; its prompts are asked together."""
    result, prompts = JobResult(job, environment_id), dict[int, Prompt]()
    for sample in samples:
        if isinstance(sample, InvalidSample):
            result.fail(sample, sample.error)
            continue
        try:
            prompts[sample.id] = prompt_for(tokenizer, cell, sample)
        except ValueError as error:
            result.fail(sample, str(error))
    readable = [sample for sample in samples if isinstance(sample, Sample) and sample.id in prompts]
    make = _add_likelihood if cell.task.scores_text else _add_answer

    def attempt(sample: Sample) -> JobResult:
        part, prompt = result.part(), prompts[sample.id]
        try:
            make(part, tokenizer, cell, sample, prompt, source)
        except KeyRefused:
            raise
        except ValueError as error:
            part.fail(sample, str(error), [cell], prompt)
        return part

    for part in pool.map(attempt, readable):
        result.add(part)
    result.sort()
    return result


def _add_answer(
    part: JobResult, tokenizer: Tokenizer, cell: Cell, sample: Sample, prompt: Prompt, source: Source
) -> None:
    """Add the row of an answer; of two requests, the second one's answer is scored."""
    sent, answer = source.answer(prompt, sample, cell)
    text, final = _read(tokenizer, cell, sample, prompt, answer)
    columns, tokens, kept_fraction = answer_columns(answer.ended, final), answer.tokens, answer.kept_fraction
    times = answer.times
    scored = sample
    if final.text is not None and (second := cell.task.follow_up(sample, final.text)):
        prompt, scored = prompt_for(tokenizer, cell, second), second
        _, answer = source.answer(prompt, second, cell)
        last, final = _read(tokenizer, cell, second, prompt, answer)
        columns = with_second_answer(columns, answer_columns(answer.ended, final))
        text = f"{text}\n\n{last}"
        tokens = None if tokens is None or answer.tokens is None else tokens + answer.tokens
        times = None if times is None or answer.times is None else times.then(answer.times)
    columns |= {"prediction": text, "value": cell.task.value(final.text, scored)}
    columns |= {"new_tokens": tokens, "kept_fraction": kept_fraction}
    if times is not None:
        columns |= {"first_token_seconds": times.first_token, "decode_seconds": times.decode}
    part.rows.append(unmeasured_row(cell, sample, sent, part.environment, **columns))
    part.prompts.append(PromptRecord.of(sent.sha256, sample.prompt, sample.references, None))


def _read(tokenizer: Tokenizer, cell: Cell, sample: Sample, prompt: Prompt, answer: Answer) -> tuple[str, Final]:
    """Return the whole text of an answer, its reasoning included, and its final part."""
    setting = cell.task.reasoning
    if answer.reasoning is None:
        turn = turn_before(prompt, sample, answer.ended, answer.is_raw)
        text, final = answer.text, final_of_text(tokenizer, setting, turn, answer.text)
    else:
        rest = answer.text if answer.text.strip() else None
        text = joined(tokenizer, answer.reasoning, rest) if answer.reasoning else answer.text
        final = Final(text) if setting == "keep" else final_of_parts(tokenizer, answer.reasoning, rest)
    is_counted = answer.reasoning_tokens is not None and final.tokens is not None
    return text, replace(final, tokens=answer.reasoning_tokens) if is_counted else final


def _add_likelihood(
    part: JobResult, tokenizer: Tokenizer, cell: Cell, sample: Sample, prompt: Prompt, source: Source
) -> None:
    """Add the row of a text, and its curve."""
    values = source.nll(prompt)
    measured = {"new_tokens": len(values), "value": math.fsum(values) / len(values)}
    part.rows.append(unmeasured_row(cell, sample, prompt, part.environment, **measured))
    part.curves.append(Curve.over(cell.id, sample.id, cell.task.metric, values, cell.task.context_length or 1))


def _seed(cell: Cell, sample: Sample) -> int:
    """Return the seed of a drawn answer of a server."""
    return cell.task.seed * 1_000_003 + sample.id
