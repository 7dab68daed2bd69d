"""Does a server do what it says? Its answers to prompts with planted needles, held against what must be so.

read      it reads every token of a prompt
own       no answer holds the needle of another prompt
dense     a server that evicts nothing answers as the full cache does here
budget    other budgets of a method give other answers
order     a larger budget of a method finds what a smaller one finds; a method that keeps the newest tokens loses
          old needles before new ones, and finds none that it cannot hold
logprobs  the log-probabilities of a prompt belong to its own words
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations

from kvbench.extras.servers.client import Client, KeyRefused
from kvbench.extras.servers.completions import Server
from kvbench.extras.servers.endpoint import FULL, endpoint_of
from kvbench.extras.servers.run import prompt_for, read_tokenizer
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.raw_text import begin
from kvbench.models.prompts.tokens import samples_of
from kvbench.run.cell import Cell
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun
from kvbench.tasks.task import Sample

NEWEST = ("streaming_llm", "recency", "sliding_window")
"""Methods that keep the newest tokens, and the first few."""
MOST_OUT_OF_ORDER = 0.1
"""Share of needles that a method with scores may find with the smaller of two budgets only: chance, not order."""
SINK, MARGIN = 64, 16
"""The first tokens, which methods may keep beside the newest, and tokens around a border that are not judged."""
TEXT = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "


@dataclass(frozen=True)
class Needle:
    """A prompt with a needle, and what a server answered.

    before: tokens of the prompt before the needle. tokens: of the whole prompt. answer: None with an `error`.
    """

    prompt_sha256: str
    value: str
    before: int
    tokens: int
    answer: str | None
    error: str | None = None

    @property
    def is_found(self) -> bool:
        return self.answer is not None and self.value in self.answer

    @property
    def age(self) -> int:
        """Tokens from the needle to the end of the prompt."""
        return self.tokens - self.before


@dataclass(frozen=True)
class Observed:
    """Answers of a server. `logprobs`: the problem with log-probabilities of prompts; empty for none, None if it gives
    none.
    """

    name: str
    method: str
    budget: str
    needles: tuple[Needle, ...]
    logprobs: str | None = None

    def pairs(self, tokens: int) -> int | None:
        """Return the budget in tokens; None where its words are no number."""
        try:
            number = float(self.budget)
        except ValueError:
            return None
        return round(number * tokens) if "." in self.budget else round(number)


@dataclass(frozen=True)
class Verdict:
    """Result of a check of a server, and the problem: empty if it holds, None if it could not be checked."""

    check: str
    about: str
    problem: str | None


def observe(cell: Cell) -> Observed:
    """Ask a server the prompts of a cell, whose samples each have one right answer in their context.

    Raises what `Server.choose_way` raises, and UserError for a task without needles.
    """
    tokenizer, endpoint = read_tokenizer(cell.model), endpoint_of(cell)
    budget = endpoint.columns["budget"]
    samples = [*samples_of(tokenizer, cell.model, cell.task, range(cell.task.num_answers))]
    planted = [sample for sample in samples if isinstance(sample, Sample) and _planted(sample)]
    if not planted:
        raise UserError(f"task {cell.task.name} hides no answer in its contexts: use task=ruler/niah_single_1")
    with Client(endpoint) as client, ThreadPoolExecutor(endpoint.concurrency) as pool:
        server = Server(client, endpoint, cell.model, tokenizer).choose_way()

        def ask(sample: Sample) -> Needle:
            prompt, value = prompt_for(tokenizer, cell, sample), sample.references[0]
            before = len(tokenizer(sample.context[: sample.context.index(value)]).input_ids)
            try:
                sent, answer = server.answer(prompt, sample, cell.task)
                return Needle(sent.sha256, value, before, prompt.tokens, answer.text)
            except KeyRefused:
                raise
            except UserError as error:
                return Needle(prompt.sha256, value, before, prompt.tokens, None, str(error))

        needles = tuple(pool.map(ask, planted))
        return Observed(
            f"{endpoint.method} {budget} at {endpoint.server or endpoint.url}",
            endpoint.method,
            budget,
            needles,
            _logprobs(server, begin(tokenizer, TEXT * 4, 65)),
        )


def _planted(sample: Sample) -> bool:
    return len(sample.references) == 1 and sample.context.count(sample.references[0]) == 1


def _logprobs(server: Server, prompt: Prompt) -> str | None:
    """Return the problem with log-probabilities of a text, compared with its tokens in reverse; None without any."""
    backwards = Prompt(tuple(reversed(prompt.prefill)), (), "")
    try:
        text, reverse = server.nll(prompt), server.nll(backwards)
    except KeyRefused:
        raise
    except UserError:
        return None
    if sum(text) < sum(reverse):
        return ""
    return "a text is no more likely than its tokens in reverse: they are not those of the prompt"


def verdicts(observed: Sequence[Observed], dense: Mapping[str, str] | None = None) -> Iterator[Verdict]:
    """Yield every check that these servers allow. `dense`: answers of the full cache here, by the hash of the
    prompt.
    """
    for server in observed:
        yield Verdict("read", server.name, _unread(server))
        yield Verdict("own", server.name, _foreign(server))
        if server.method == FULL and dense is not None:
            yield Verdict("dense", server.name, _unlike(server, dense))
        if server.method in NEWEST:
            yield Verdict("order", server.name, _out_of_age(server))
        yield Verdict("logprobs", server.name, server.logprobs)
    for a, b in combinations(observed, 2):
        if FULL not in (a.method, b.method) and a.method != b.method:
            continue
        if a.method == b.method and a.budget == b.budget:
            continue
        smaller, larger = sorted((a, b), key=lambda server: server.pairs(1000) or 0)
        if FULL in (a.method, b.method):
            smaller, larger = (a, b) if b.method == FULL else (b, a)
        about = f"{smaller.name}, {larger.name}"
        yield Verdict("budget", about, _same(smaller, larger))
        yield Verdict("order", about, _out_of_order(smaller, larger))


def _unread(server: Observed) -> str | None:
    failed = [needle for needle in server.needles if needle.error is not None]
    if failed:
        return f"{len(failed)} of {count_noun(len(server.needles), 'prompt')}: {failed[0].error}"
    if server.method != FULL:
        return ""
    lost, kept = ([n.age for n in server.needles if n.is_found is kind] for kind in (False, True))
    if lost and kept and min(lost) > max(kept):
        return (
            f"{count_noun(len(lost), 'needle')} {min(lost)} tokens before the end or more are lost, all newer ones are "
            "found: it reads only the end of a prompt"
        )
    return ""


def _foreign(server: Observed) -> str:
    values = {needle.value for needle in server.needles}
    others = [n for n in server.needles if n.answer and any(v in n.answer for v in values - {n.value})]
    share = f"{len(others)} of {count_noun(len(server.needles), 'answer')}"
    return f"{share} hold the needle of another prompt: it answers from another cache" if others else ""


def _unlike(server: Observed, dense: Mapping[str, str]) -> str | None:
    common = [n for n in server.needles if n.answer is not None and n.prompt_sha256 in dense]
    other = [n for n in common if n.answer != dense[n.prompt_sha256]]
    if not common:
        return None
    return f"{len(other)} of {count_noun(len(common), 'answer')} differ from those of the full cache" if other else ""


def _out_of_age(server: Observed) -> str | None:
    """Of methods that keep the newest tokens: what is found though it cannot be kept."""
    held = [n for n in server.needles if n.is_found and n.before > SINK]
    beyond = [n for n in held if (pairs := server.pairs(n.tokens)) is not None and n.age > pairs + MARGIN]
    if server.pairs(1) is None:
        return None
    if beyond:
        oldest = max(beyond, key=lambda needle: needle.age)
        return (
            f"{count_noun(len(beyond), 'needle')} are found that a budget of {server.budget} cannot hold, one "
            f"{oldest.age} tokens before the end: it keeps more than it says, or other tokens"
        )
    return ""


def _same(smaller: Observed, larger: Observed) -> str | None:
    pairs = _common(smaller, larger)
    if not pairs:
        return None
    if all(a.answer == b.answer for a, b in pairs):
        return (
            f"all {len(pairs)} answers are the same: the budget is ignored, or too large for these prompts to show it"
        )
    return ""


def _out_of_order(smaller: Observed, larger: Observed) -> str | None:
    pairs = _common(smaller, larger)
    if not pairs:
        return None
    inversions = sum(a.is_found and not b.is_found for a, b in pairs)
    if inversions > MOST_OUT_OF_ORDER * len(pairs):
        needles = count_noun(len(pairs), "needle")
        return f"{inversions} of {needles} are found with the smaller budget and lost with the larger"
    return ""


def _common(a: Observed, b: Observed) -> list[tuple[Needle, Needle]]:
    """Answers of both to the same prompt."""
    others = {needle.prompt_sha256: needle for needle in b.needles if needle.answer is not None}
    return [
        (needle, others[needle.prompt_sha256])
        for needle in a.needles
        if needle.answer is not None and needle.prompt_sha256 in others
    ]
