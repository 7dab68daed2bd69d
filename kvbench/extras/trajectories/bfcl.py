"""BFCL's multi-turn long context: the next call of the benchmark's own runs, whose outputs its simulators give.

    {"id": "multi_turn_long_context_1", "question": [[{"role": "user", "content": "Go to workspace ..."}], ...],
     "initial_config": {"GorillaFileSystem": {"root": {...}}}, "involved_classes": ["GorillaFileSystem"]}
    {"id": "multi_turn_long_context_1", "ground_truth": [["cd(folder='workspace')", "ls(a=True)"], ...]}

Berkeley Function Calling Leaderboard v4, https://github.com/ShishirPatil/gorilla, `bfcl_eval/data`. A run is the user's
words and the calls of the ground truth, each answered by what the simulators return. Every call from the second on is a
sample, as in `kvbench.extras.trajectories.trajectories`, whose measures are these and one more:

    state        the calls that the model generates are run instead of the recorded ones, after the same earlier ones; 1
                 if BFCL's rule holds (`kvbench.extras.trajectories.bfcl_simulators`)
"""

import ast
import inspect
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from kvbench.extras.trajectories.bfcl_simulators import Simulators, require_package
from kvbench.extras.trajectories.tool_calls import calls_in
from kvbench.extras.trajectories.trajectories import MEASURES, Trajectories
from kvbench.extras.trajectories.trajectory import Call, Message, Trajectory, TrajectorySample
from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import limit_samples, remembered
from kvbench.tasks.task import Sample, TokenCounter, require_samples

Value = TypeVar("Value")
QUESTIONS = "bfcl/BFCL_v4_multi_turn_long_context.json"
ANSWERS = "bfcl/possible_answer/BFCL_v4_multi_turn_long_context.json"
TOOLS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
"""The classes, and their files of descriptions."""


@dataclass(frozen=True, kw_only=True)
class LongContextBFCL(Trajectories):
    """The runs in the order of the file. measure: calls, likelihood or state.

    Raises MissingFile where there are no files, UserError for those that cannot be read and without the package.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("distance",)
    context_length = None  # runs have their own lengths
    version = "bfcl.1"  # names the protocol; `data_sha256` names the runs
    measures: ClassVar = {**MEASURES, "state": ("state_match", "share", "higher")}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distance is not None:
            raise UserError(f"task.distance={self.distance}: the runs of {self.name} do not say what a call needs")
        limit_samples(self, lambda: len(self._points))

    @property
    def files(self) -> tuple[str, ...]:
        return (ANSWERS, QUESTIONS, *map(_described, TOOLS))

    def hash_data(self) -> str | None:
        started, recorded = _started(self.root, QUESTIONS), _recorded(self.root, ANSWERS)
        if [(run.id, len(run.words)) for run in started] != [(run.id, len(run.turns)) for run in recorded]:
            raise UserError(f"{QUESTIONS} and {ANSWERS} hold other runs or turns: take both from one release of BFCL")
        require_package()
        return super().hash_data()

    @cached_property
    def _points(self) -> tuple[tuple[int, int], ...]:
        return tuple(
            (number, turn)
            for number, run in enumerate(_recorded(self.root, ANSWERS))
            for turn in range(2, 1 + sum(map(len, run.turns)))
        )

    def points(self, samples: Collection[int]) -> dict[int, tuple[int, int]]:
        require_samples(self, samples, len(self._points))
        return {sample: self._points[sample] for sample in samples}

    def run(self, number: int, tokens: TokenCounter) -> Trajectory:
        start, simulators = self._start(number)
        messages, unanswered = list[Message](), list[str]()
        for words, texts in zip(start.words, _recorded(self.root, ANSWERS)[number].turns, strict=True):
            unanswered.append(words)
            for text in texts:  # a few turns have none, whose words the next turn begins with
                call = _call(text, simulators)
                messages += [Message("user", "\n\n".join(unanswered))] if unanswered else []
                messages.append(Message("assistant", calls=(call,)))
                messages.append(Message("tool", simulators.call(call.name, json.loads(call.arguments))))
                unanswered.clear()
        tools = [tool for name in start.classes for tool in _tools(self.root, _described(name))]
        return Trajectory(tuple(messages), json.dumps(tools, ensure_ascii=False))

    def _start(self, number: int) -> "tuple[Start, Simulators]":
        start = _started(self.root, QUESTIONS)[number]
        return start, Simulators(start.classes, start.config)

    def score(self, prediction: str, sample: Sample) -> float:
        """Of `state`: whether the first generated call does what the recorded one does, by BFCL's rule."""
        if self.measure != "state":
            return super().score(prediction, sample)
        assert isinstance(sample, TrajectorySample)
        number, _ = self._points[sample.id // self.samples_per_prompt]
        *earlier, recorded = (call for message in sample.trajectory.messages for call in message.calls)
        (_, own), (_, expected) = self._start(number), self._start(number)
        outputs = [own.call(call.name, json.loads(call.arguments)) for call in earlier]
        for call in (*earlier, recorded):
            required = expected.call(call.name, json.loads(call.arguments))
        generated = calls_in(prediction)[:1]
        outputs += [own.call(name, arguments) for name, arguments in generated]
        return float(bool(generated) and own.agree(expected, outputs, [required]))


@dataclass(frozen=True)
class Start:
    """A run without its calls. words: of the user, for each turn. classes, config: as in `Simulators`."""

    id: str
    words: tuple[str, ...]
    classes: tuple[str, ...]
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Recorded:
    """The ground truth of a run: for each of the user's turns its calls, as texts of Python."""

    id: str
    turns: tuple[tuple[str, ...], ...]


def _read(root: str | None, name: str, parse: Callable[[jsonl.Row], Value]) -> tuple[Value, ...]:
    """Return the rows of a file. Raises UserError that names the line of one that has another form."""
    rows = []
    for line in jsonl.rows(root, name):
        try:
            rows.append(parse(line.read()))
        except UserError as error:
            raise UserError(f"{line.place}: {error}") from None
        except (TypeError, KeyError, AttributeError):
            form = "kvbench/extras/trajectories/bfcl.py"
            raise UserError(f"{line.place}: it is no row of BFCL v4, as in {form}") from None
    return tuple(rows)


@remembered
def _started(root: str | None, name: str) -> tuple[Start, ...]:
    return _read(root, name, _start)


def _start(row: jsonl.Row) -> Start:
    words = ("\n\n".join(message["content"] for message in turn) for turn in jsonl.field(row, "question"))
    classes = jsonl.texts(row, "involved_classes")
    if unknown := [name for name in classes if name not in TOOLS]:
        raise UserError(f"its involved_classes have {unknown[0]!r}: allowed: {', '.join(TOOLS)}")
    return Start(jsonl.text(row, "id"), tuple(words), classes, jsonl.field(row, "initial_config"))


@remembered
def _recorded(root: str | None, name: str) -> tuple[Recorded, ...]:
    return _read(
        root, name, lambda row: Recorded(jsonl.text(row, "id"), tuple(map(tuple, jsonl.field(row, "ground_truth"))))
    )


@remembered
def _tools(root: str | None, name: str) -> tuple[dict[str, Any], ...]:
    """Return the tools of a class, each in the form of https://platform.openai.com/docs/guides/function-calling."""
    return _read(root, name, lambda row: {"type": "function", "function": dict(row)})


def _described(name: str) -> str:
    return f"bfcl/multi_turn_func_doc/{TOOLS[name]}.json"


def _call(text: str, simulators: Simulators) -> Call:
    """Return the call that a text of Python writes; arguments without names get the names of the method. Raises
    UserError.
    """
    try:
        node = ast.parse(text, mode="eval").body
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        names = inspect.signature(simulators.methods[node.func.id]).parameters
        arguments = {name: ast.literal_eval(value) for name, value in zip(names, node.args, strict=False)}
        arguments |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
        return Call(node.func.id, json.dumps(arguments, ensure_ascii=False))
    except (ValueError, SyntaxError, TypeError, KeyError, AssertionError):
        raise UserError(f"{ANSWERS} has {str(text)[:80]!r}: a call of BFCL's tools with values as arguments") from None
