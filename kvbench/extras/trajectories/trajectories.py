"""Runs of agents with tools: the next recorded call is asked for, after the recorded turns before it.

    {"tools": [{"name": "list_tickets", "parameters": {...}}, ...],
     "messages": [
       {"role": "user", "content": "List the tickets of queue billing."},
       {"role": "assistant", "tool_calls": [{"name": "list_tickets", "arguments": {"queue": "billing"}}]},
       {"role": "tool", "content": "[{\"ticket\": \"T-4821\", \"subject\": \"a late refund\"}, ...]"},
       {"role": "user", "content": "Assign the late refund to Anna."},
       {"role": "assistant", "tool_calls": [{"name": "assign_ticket", "arguments": {"ticket": "T-4821", "to": "Anna"}}],
        "needs": 2}]}

The form of https://platform.openai.com/docs/guides/function-calling, whose calls ({"function": {"name": ...,
"arguments": "{...}"}}) are read too. `needs` is the number of the message, from 0, that holds what a call needs.

A turn ends with a message of the assistant. Every recorded call from the second turn on is a sample: the model reads
the recorded messages before it, whatever it would have answered to earlier ones, so that all methods read the same.

    calls        the model answers; 1 if the first calls of its answer are the recorded ones
    likelihood   the recorded call is read; its mean negative log-likelihood, in nats per token
"""

import json
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from kvbench.extras.trajectories.tool_calls import call_of, match
from kvbench.extras.trajectories.trajectory import Call, Message, Trajectory, TrajectorySample, plain_text, plain_turns
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles, current_sha256, own_file, own_name
from kvbench.tasks.task import Sample, Task, TokenCounter, require_choice, require_positive, require_samples

ROLES = ("system", "user", "assistant", "tool")
CALL_FORM = 'a call is {"name": TEXT, "arguments": {...}}'
FORM = 'a line is {"messages": [...], "tools": [...]}, as in docs/variants.md'
MEASURES = {"calls": ("call_match", "share", "higher"), "likelihood": ("call_nll", "nats per token", "lower")}
"""Metric, unit and direction of what is measured."""


@dataclass(frozen=True, kw_only=True)
class Trajectories(FromFiles, Task):
    """Base class of these tasks. distance: only the calls that need what was read so many turns before; null: all.

    - Protocol: recorded runs with tools; every call from the second turn on is asked for after the recorded turns
      before it. docs/reference/turns.md#runs-of-agents has the form of a file, the definitions and commands.
    - Split: before the last turn, the newest output of a tool and the user's words, which is read after the eviction;
      with `schedule.evict_after=prompt` after it. With `schedule.prefill_block=turn` the cache is evicted from after
      every turn.
    - Source: your file (`trajectories`), runs that are made up in any length (`trajectories_synthetic`), or runs of the
      multi-turn long context of BFCL v4 (`bfcl`), whose simulators, the package bfcl-eval, give the outputs.
    - Metric: `call_match`, whether the answer begins with the recorded calls, compared as values of JSON; `call_nll`,
      the mean negative log-likelihood of the recorded call, in nats per token; `state_match`, whether the first
      generated call leaves BFCL's simulators in the recorded state with the recorded output, by BFCL's own functions.
    - Traps: `call_match` runs no tool: a call that would do the same in other words is no match. BFCL's leaderboard
      counts whole runs, each continued with the model's own calls; `state_match` counts calls after recorded ones, so
      that the two numbers cannot be compared. `task.stop` is empty, so that a model without an end of its turn writes
      on up to `task.max_new_tokens`; only its first calls count.
    """

    measure: str
    distance: int | None = None
    max_new_tokens: int = 128
    turn_divider = "kvbench.extras.trajectories.turn_texts:turn_texts"
    measures: ClassVar[Mapping[str, tuple[str, str, str]]] = MEASURES

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "measure", self.measures)
        require_positive(self, "samples", "max_new_tokens")
        if self.distance is not None and self.distance < 0:
            raise UserError(f"task.distance={self.distance}: allowed: 0 or more turns, or null for all calls")
        if self.truncation != "refuse" or self.max_prompt_tokens is not None:
            raise UserError(
                f"{self.name} reads all turns: use task.truncation=refuse task.max_prompt_tokens=null, and shorter runs"
            )
        if self.forces_answers and (self.stop or self.min_new_tokens or self.temperature):
            raise UserError(
                f"{self.name} generates no answer: use task.stop=[] task.min_new_tokens=0 task.temperature=0"
            )

    @property
    def forces_answers(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.measure == "likelihood"

    @property
    def metric(self) -> str:
        return self.measures[self.measure][0]

    @property
    def unit(self) -> str:
        return self.measures[self.measure][1]

    @property
    def better(self) -> Literal["higher", "lower"]:
        return "lower" if self.forces_answers else "higher"

    @abstractmethod
    def points(self, samples: Collection[int]) -> dict[int, tuple[int, int]]:
        """Return the run and the turn of these samples; known without a tokenizer. Raises as `generate` does."""

    @abstractmethod
    def run(self, number: int, tokens: TokenCounter) -> Trajectory:
        """Return a run. Raises as `generate` does."""

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample]:
        places = self.points(indices)
        for number, samples in grouped(sorted(indices), lambda sample: places[sample][0]).items():
            run = self.run(number, count_tokens)
            for sample in samples:
                yield self._sample(sample, run.until(places[sample][1]), places[sample][1])

    def _sample(self, index: int, run: Trajectory, turn: int) -> TrajectorySample:
        *history, recorded = run.messages
        last = run.answers[-2] + 1
        before, whole = (plain_turns(messages, run.tools) for messages in (history[:last], history))
        return TrajectorySample(
            index,
            self.name,
            plain_text(before),
            plain_text(whole).removeprefix(plain_text(before)) + "Assistant:",
            "",
            tuple(map(str, recorded.calls)),
            self.max_new_tokens,
            question_number=turn,
            text_in_common=run.opening,
            trajectory=run,
        )

    def score(self, prediction: str, sample: Sample) -> float:
        """1 if the first calls of an answer equal the recorded ones."""
        assert isinstance(sample, TrajectorySample)
        return float(match(prediction, sample.trajectory.messages[-1].calls))


@dataclass(frozen=True, kw_only=True)
class RecordedTrajectories(Trajectories):
    """Runs of the file `path`, a line each. In rows the task is called by what is measured and the file's name; its
    cells depend on the contents of the file, not on where it is.

    Raises MissingFile where there is no file, UserError for a line that cannot be read.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("root",)
    path: str
    context_length = None  # runs have their own lengths
    version = "trajectories.1"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "name", f"trajectories/{self.measure}/{Path(self.path).stem}")
        if Path(self.files[0]).is_file():
            object.__setattr__(self, "samples", min(self.samples, max(1, len(self._points))))

    @property
    def files(self) -> tuple[str, ...]:
        return (own_name(self.path),)

    def hash_data(self) -> str | None:
        own_file(self.path, FORM)
        if not self._points:
            distant = "" if self.distance is None else f" with task.distance={self.distance}"
            raise UserError(f"task.path={self.path} has no recorded call{distant}; {FORM}")
        return current_sha256(None, self.files[0])

    @cached_property
    def _runs(self) -> tuple[Trajectory, ...]:
        runs = []
        for line in jsonl.rows(None, self.files[0]):
            try:
                runs.append(read(line.read()))
            except ValueError as error:
                fault = line.place.removeprefix(f"{self.files[0]}:")
                raise UserError(f"task.path={self.path}: line {fault}: {error}; {FORM}") from None
        return tuple(runs)

    @cached_property
    def _points(self) -> tuple[tuple[int, int], ...]:
        return tuple(
            (number, turn)
            for number, run in enumerate(self._runs)
            for turn in run.points
            if self.distance in (None, run.distance(turn))
        )

    def points(self, samples: Collection[int]) -> dict[int, tuple[int, int]]:
        require_samples(self, samples, len(self._points))
        return {sample: self._points[sample] for sample in samples}

    def run(self, number: int, tokens: TokenCounter) -> Trajectory:
        return self._runs[number]


def read(row: jsonl.Row) -> Trajectory:
    """Return the run of a line. Raises UserError for what is not in the form above."""
    messages = jsonl.field(row, "messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise UserError(f"its messages are {json.dumps(messages)[:80]}: a list of at least one object")
    tools = row.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UserError(f"its tools are {json.dumps(tools)[:80]}: a list of objects")
    parsed = []
    for number, each in enumerate(messages):
        try:
            parsed.append(_message(each, number))
        except UserError as error:
            raise UserError(f"message {number}: {error}") from None
    run = Trajectory(tuple(parsed), json.dumps(tools, ensure_ascii=False))
    _check_order(run)
    return run


def _message(each: Mapping[str, Any], number: int) -> Message:
    role, calls, needs = jsonl.text(each, "role"), each.get("tool_calls") or [], each.get("needs")
    if role not in ROLES:
        raise UserError(f"its role is {role!r}: allowed: {', '.join(ROLES)}")
    if not isinstance(calls, list) or (calls and role != "assistant"):
        raise UserError(f"its tool_calls are {json.dumps(calls)[:80]} of role {role}: a list, of the assistant only")
    if needs is not None and (type(needs) is not int or not 0 <= needs < number or not calls):
        raise UserError(f"its needs is {json.dumps(needs)[:80]}: the number of an earlier message, for a call")
    has_text = each.get("content") is not None
    content = jsonl.text(each, "content") if has_text or not calls else ""
    if not calls and not content.strip():
        raise UserError("its content is empty")
    return Message(role, content, tuple(map(_recorded, calls)), needs)


def _recorded(call: Any) -> Call:
    nested = call.get("function", call) if isinstance(call, dict) else None
    parsed = call_of(nested)
    if parsed is None:
        raise UserError(f"its tool_calls hold {json.dumps(call)[:80]}: {CALL_FORM}")
    name, arguments = parsed
    jsonl.text({"name": name}, "name")  # raises for half of a character
    return Call(name, json.dumps(arguments, ensure_ascii=False))


def _check_order(run: Trajectory) -> None:
    roles = [message.role for message in run.messages]
    if "system" in roles[1:] or (roles[1:] if roles[0] == "system" else roles)[:1] != ["user"]:
        raise UserError(f"its messages are by {', '.join(roles[:4])} ...: system only as the first, then user")
    if doubled := [place for place in run.answers if roles[place - 1] == "assistant"]:
        raise UserError(f"message {doubled[0]}: the assistant answers itself: put both into one message")
    if not run.points:
        raise UserError("no call of it has a turn before it: at least two messages of the assistant, one with calls")
