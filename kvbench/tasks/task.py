"""A benchmark task: its settings, its samples and their scores."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol, get_args

from kvbench.support.annotations import Help
from kvbench.support.errors import UserError
from kvbench.support.facts import ASKED, TURNS, Claim
from kvbench.support.grouped import grouped

Truncation = Literal["refuse", "middle", "left", "right", "middle_tokens"]
Reasoning = Literal["auto", "strip", "keep"]
Ending = Literal["end", "limit", "stop"]
"""Why an answer ended: an end token of the model, `max_new_tokens`, or a text of `task.stop`."""
GAP = "\n\n"
"""Between instruction and context, and between context and question."""


@dataclass(frozen=True)
class Final:
    """text: the final part of an answer; None if the answer ended within its reasoning.

    tokens: of the reasoning without its marks; None if the answer was not searched for any.
    """

    text: str | None
    tokens: int | None = None


@dataclass(frozen=True)
class Turn:
    """A question before the one of a sample, and the answer to it; None: the model's own, of `max_new_tokens` at most.

    answer_prefix: begins the answer, as in `Sample`.
    """

    question: str
    answer: str | None
    max_new_tokens: int
    answer_prefix: str = ""


@dataclass(frozen=True)
class Sample:
    """One prompt with its right answers, text only.

    A chat template wraps context and question; the answer prefix follows it, as the beginning of the answer.
    choices: the possible answers (classes, options), if the metric must know them. question_number: counts from 1 if
    several questions are asked about one context. kind: the type of the question in a mixed task. context_prefix: the
    text that begins every context of the task, such as an instruction; its tokens are a part of `Prompt.prefix_tokens`.
    messages: turns of a conversation before the question, as role and text, for a chat template; without one `context`
    is read.
    earlier: the turns before the question in one conversation about the context.
    second: the request that follows, which `Task.follow_up` completes with the answer. drawn: tokens that the request
    before this one could have, whose random numbers are used up. text_in_common: the part of the context that other
    samples have too; empty: all of it.
    """

    id: int
    task: str
    context: str
    question: str
    answer_prefix: str
    references: tuple[str, ...]
    max_new_tokens: int
    choices: tuple[str, ...] = ()
    question_number: int | None = None
    kind: str = ""
    context_prefix: str = ""
    messages: tuple[tuple[str, str], ...] = ()
    earlier: tuple[Turn, ...] = ()
    second: "Sample | None" = None
    drawn: int = 0
    text_in_common: str = ""

    @property
    def own_tokens(self) -> int:
        """The most tokens that the model generates: its answer, and answers of earlier turns that are its own."""
        return self.max_new_tokens + sum(turn.max_new_tokens for turn in self.earlier if turn.answer is None)

    @property
    def prompt(self) -> str:
        """All before the answer, with right answers to earlier questions, as models without a chat template read it."""
        earlier = "".join(turn.question + turn.answer_prefix + (turn.answer or "") for turn in self.earlier)
        return self.context + earlier + self.question + self.answer_prefix

    @property
    def context_sha256(self) -> str:
        """Hash that dependent samples share: of the context, or of the text in it."""
        return hashlib.sha256((self.text_in_common or self.context).encode()).hexdigest()


@dataclass(frozen=True)
class InvalidSample:
    """A sample whose row in a data file is invalid (`error`: place and reason): recorded without an answer."""

    id: int
    task: str
    error: str
    question_number: int | None = None


class TokenCounter(Protocol):
    """The model's tokenizer as tasks see it. Most tasks only count tokens.

    Two objects for the same tokenizer are equal and have equal hashes.
    """

    def __call__(self, text: str, /) -> int:
        """Return number of tokens of a text, without special tokens."""
        ...

    def encode(self, text: str, special: bool) -> list[int]:
        """Token ids; with the special tokens that the tokenizer adds around a text if `special`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens spelled out."""
        ...

    def starts(self, text: str) -> list[int]:
        """Return the character at which each token of a text starts, also those that the tokenizer adds around it."""
        ...


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """Base class of tasks: the settings that define how prompts become tokens and how answers end.

    truncation, max_prompt_tokens: `middle` and `refuse` count context and question, `left` and `right` only the
    context, `middle_tokens` what is read before the eviction, special tokens included. `middle` truncates to the
    model's own limit if that is smaller. stop: besides the model's stop tokens, and none of them before
    `min_new_tokens`. temperature: tokens are drawn from softmax(logits / temperature).

    Every task raises UserError for settings with invalid values.
    """

    chat: Annotated[bool, Help("false: the protocol sends prompts without a chat template, whatever the model has")] = (
        True
    )
    truncation: Annotated[
        Truncation,
        Help("which part of a prompt that is too long is removed: middle (LongBench), left, right, or refuse"),
    ] = "refuse"
    max_prompt_tokens: Annotated[
        int | None, Help("of context and question (middle, refuse) or of the context (left, right)")
    ] = None
    stop: Annotated[tuple[str, ...], Help('texts of one token that end an answer, e.g. ["\\n"]')] = ()
    min_new_tokens: Annotated[int, Help("tokens that an answer has before it may end")] = 0
    temperature: Annotated[
        float, Help("0: the most likely token; above: tokens are drawn, the same for every cell of a prompt and seed")
    ] = 0.0
    top_p: Annotated[
        float, Help("tokens are drawn from the fewest most likely ones whose probabilities reach this sum")
    ] = 1.0
    samples_per_prompt: Annotated[int, Help("answers drawn to each prompt")] = 1
    reasoning: Annotated[
        Reasoning,
        Help("strip: metrics see what follows the reasoning; keep: all; auto: strip where the model marks reasoning"),
    ] = "auto"
    stop_replaces = False  # a setting of few tasks: end answers at `stop` and the end of sequence, no other stop token
    decodes_joined = False  # after truncation in the middle decode both ends together, not each alone
    keeps_odd = False  # truncation in the middle to an odd limit keeps that many tokens, not one fewer
    tokenises_alone = False  # what is read after the eviction is tokenised as texts of their own, one per question
    wraps_context = False  # the chat template wraps the context; question and its end are a text of their own (kvpress)
    ends_answers = False  # without a chat template, the end of sequence follows each answer of the model's own
    shared_length = False  # all such tasks of a command have the longest of their context lengths, if it names none
    turns = "none"  # a setting of few tasks: what precedes a question in one conversation
    turn_divider = ""  # module:function that divides prompts into turns, for `schedule.prefill_block=turn`
    forces_answers = False  # the recorded answer is read, and the value of a row is its negative log-likelihood
    has_prompts = True  # whether a sample is a prompt of a known length, with an answer to it
    scores_text = False  # in place of an answer, the tokens of a text are scored while the cache is evicted from
    given_tokens = 0  # of a scored text: how many tokens are read at most before those that are scored
    spare_pairs = 0  # KV pairs that a budget leaves free for the token that is read
    own_prefills = 0  # prompts that each row reads for itself; 0: rows share their prefills

    def __post_init__(self) -> None:
        if self.max_prompt_tokens is None and self.truncation != "refuse":
            raise UserError(f"task.truncation={self.truncation} needs a limit: set task.max_prompt_tokens=N (now null)")
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 2:
            raise UserError(
                f"task.max_prompt_tokens={self.max_prompt_tokens}: allowed: 2 or more, or null for no limit"
            )
        if any(not text for text in self.stop):
            raise UserError('task.stop lists an empty text: give texts of one token, such as ["\\n"]')
        if self.min_new_tokens < 0:
            raise UserError(f"task.min_new_tokens={self.min_new_tokens}: allowed: 0 or more")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(
                f"task.temperature={self.temperature}: allowed: 0 (the most likely token) or more, such as 0.6"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"task.top_p={self.top_p}: allowed: above 0 and at most 1 (all tokens), such as 0.95")
        if self.samples_per_prompt < 1:
            raise UserError(f"task.samples_per_prompt={self.samples_per_prompt}: allowed: an integer above 0")
        if self.reasoning not in get_args(Reasoning):
            raise UserError(f"task.reasoning={self.reasoning}: allowed: {', '.join(get_args(Reasoning))}")
        if self.temperature == 0 and (self.samples_per_prompt > 1 or self.top_p < 1):
            raise UserError(
                f"task.samples_per_prompt={self.samples_per_prompt} task.top_p={self.top_p} are for drawn answers: set "
                "task.temperature above 0, such as 0.6"
            )

    def context_of(self, sample: int) -> int:
        """Return a number that samples with the same context share, and no others; known without reading the sample."""
        return sample


class Task(TaskSettings, ABC):
    """A benchmark task at one prompt length: a frozen dataclass.

    name: for example "ruler/niah_single_1". version: names the protocol; any change of a prompt or a score
    gets another; `FromFiles.data_sha256` names the data files. metric: its name in rows and reports. unit: of its
    values; a share is in 0..1 and printed in %. better: which of two values is.
    context_length: in tokens as the protocol counts them, None if texts have their own lengths.
    samples: how many are requested. seed: the protocol's.
    """

    name: str
    version: str
    metric: str
    unit: str = "share"
    better: Literal["higher", "lower"] = "higher"
    context_length: int | None
    samples: int
    seed: int
    max_new_tokens: int
    report: ClassVar[str] = "run"
    """The report that shows its rows after a run."""
    left_out: ClassVar[tuple[str, ...]] = ("samples", "repeats", "root")
    """Fields on which no number of a sample depends."""
    contexts = None  # a setting of few tasks: at most so many different contexts
    has_pred_lines = False  # whether the benchmark's own pred.py writes a line for each row of its file

    @abstractmethod
    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        """Yield the samples of `indices` in ascending order; an invalid row of a file becomes an `InvalidSample`.

        Sample i does not depend on the other indices or on `samples`.

        Raises:
            UserError: a setting cannot be met, such as a prompt that cannot be that short, or an index does not exist.
            MissingFile: a data file is not under `data.root`.
        """

    @abstractmethod
    def score(self, prediction: str, sample: Sample) -> float:
        """Score of an answer to `sample`, in 0..1."""

    @property
    def procedure(self) -> str:
        """Return what makes rows of its samples, a `kvbench.run.procedure.Procedure`, as module:class."""
        return "kvbench.run.conversations:Conversations" if self.turns == "own" else "kvbench.run.answers:Answers"

    def claims(self) -> Iterator[Claim]:
        """Return what its protocol needs of other settings, and what it makes untrue for them."""
        if not self.turn_divider:
            fix = "a number of tokens, or a task whose prompts have turns"
            yield Claim(f"task {self.name}", fix, breaks={TURNS: "has no turns"})
        if self.forces_answers:
            broken = {ASKED: "scores recorded answers, whose tokens a server does not score"}
            yield Claim(f"task {self.name}", "the member calls", breaks=broken)
        if self.turns == "own":
            broken = {ASKED: "is a conversation whose cache goes on from turn to turn"}
            yield Claim(f"task.turns={self.turns} of {self.name}", "task.turns=gold", breaks=broken)

    def described(self) -> dict[str, Any]:
        """Return what names it in cells: not its number of samples or the folder of its data, but the hash of its data.
        Raises MissingFile.
        """
        fields = asdict(self)
        description = {"name": self.name} | {name: value for name, value in fields.items() if name not in self.left_out}
        return description | self.identity() | {"version": self.version}

    def identity(self) -> dict[str, Any]:
        """Name what samples depend on besides the fields: the SHA-256 of files. Raises MissingFile."""
        return {}

    def check_unchanged(self) -> None:
        """Raise MissingFile if its data is no longer what `identity` said first."""

    def job_number(self, sample: int, evict_after: str) -> int:
        """Return a number that samples have in common if one prefill serves them.

        evict_after: what is read before an eviction, as in `kvbench.eviction.schedule.Schedule`.
        """
        prompt = sample // self.samples_per_prompt
        # truncation in the middle depends on the question too
        is_shared = (evict_after == "context" or self.turns != "none") and self.truncation != "middle"
        return self.context_of(prompt) if is_shared else prompt

    def has_full_cache(self, in_blocks: bool) -> bool:
        """Return whether a row of the full cache is comparable, where others read in blocks or not."""
        return True

    def value(self, final: str | None, sample: Sample) -> float:
        """Score of the final part of an answer; 0 for one that ended within its reasoning, which has none.

        A metric of which less is better scores that as an empty answer.
        """
        if final is None and self.better == "higher":
            return 0.0
        return self.score(final or "", sample)

    def follow_up(self, sample: Sample, answer: str) -> Sample | None:
        """Return the second request of a protocol with two, a prompt that holds the first answer; None if there is no
        other.

        It is read, evicted from and answered as a prompt of its own, and its answer is the one that is scored.
        """
        return None

    @property
    def num_answers(self) -> int:
        """Rows of a cell: `samples` prompts with `samples_per_prompt` answers each."""
        return self.samples * self.samples_per_prompt

    def numbered_answers(
        self, count_tokens: TokenCounter, indices: Collection[int]
    ) -> Iterator[Sample | InvalidSample]:
        """Yield a sample for each answer: prompt i has the numbers from i x samples_per_prompt on."""
        answers = grouped(sorted(indices), lambda index: index // self.samples_per_prompt)
        for sample in self.generate(count_tokens, answers):
            yield from (replace(sample, id=index) for index in answers[sample.id])


def require_positive(task: Any, *settings: str) -> None:
    """Raise UserError if one of these settings of a task is below 1; null passes."""
    for setting in settings:
        value = getattr(task, setting)
        if value is not None and value < 1:
            raise UserError(f"task.{setting}={value} of {task.name}: allowed: an integer above 0")


def require_samples(task: Any, indices: Collection[int], available: int) -> None:
    """Raise UserError if one of `indices` is no sample of a task that has `available` ones."""
    beyond = [index for index in indices if not 0 <= index < available]
    if beyond:
        raise UserError(f"task.samples={task.samples}: {task.name} has {available} samples, none is {max(beyond)}")


def refuse_prompt_settings(task: TaskSettings) -> None:
    """Raise UserError if a task without questions has settings of prompts or answers."""
    if task.chat or task.truncation != "refuse" or task.max_prompt_tokens is not None:
        raise UserError(
            "this task reads its text unchanged: use task.chat=false task.truncation=refuse "
            "task.max_prompt_tokens=null; task.context_length sets how much is read"
        )
    if task.stop or task.min_new_tokens or task.temperature or task.reasoning != "auto":
        raise UserError(
            "this task generates no answer: use task.stop=[] task.min_new_tokens=0 task.temperature=0 "
            "task.reasoning=auto"
        )


def require_choice(task: Any, setting: str, allowed: Collection[str]) -> None:
    """Raise UserError if a setting of a task is not one of the allowed values."""
    value = getattr(task, setting)
    if value not in allowed:
        raise UserError(f"task.{setting}={value} of {task.name}: allowed: {', '.join(allowed)}")
