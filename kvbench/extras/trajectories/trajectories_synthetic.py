"""Runs of an agent made up here, in any length: later calls need values of earlier outputs, at known distances.

    user        List the tickets of queue billing.
    assistant   {"name": "list_tickets", "arguments": {"queue": "billing"}}
    tool        {"tickets": [{"ticket": "T-48213", "subject": "quiet amber harbor"}, ...]}
    user        Give the ticket "quiet amber harbor" the priority 2.
    assistant   {"name": "assign_ticket", "arguments": {"ticket": "T-48213", "priority": 2}}
    tool        {"done": true, "tickets": [...]}      new records, which later calls may need

Every output lists as many records as `context_length` has room for; a call names one of them by a random number that
only its output says. How many turns before it was read (`distance`) is drawn from all that are possible in its turn.
Messages and calls are as in `kvbench.extras.trajectories.trajectories`, in the form of
https://platform.openai.com/docs/guides/function-calling.
"""

import json
import random
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

from kvbench.extras.trajectories.trajectories import Trajectories
from kvbench.extras.trajectories.trajectory import Call, Message, Trajectory, plain_text, plain_turns
from kvbench.support.errors import UserError
from kvbench.tasks.task import TokenCounter

FIRST, SECOND, THIRD = (
    words.split()
    for words in (
        "quiet late early narrow broad heavy light plain bright faded rapid slow north south upper lower open hidden "
        "spare double single round square frozen warm rough smooth hollow solid local remote annual",
        "amber azure black brown copper coral crimson cyan gold green grey indigo ivory jade lemon lilac maroon mint "
        "navy ochre olive orange pearl pink purple red rose ruby silver teal violet white",
        "anchor barrel basket bridge candle canyon carpet castle cellar circle desert engine forest garden hammer "
        "harbor island ladder lantern marble meadow mirror orchard pepper pillar planet ribbon saddle tunnel valley "
        "violin window",
    )
)
"""Of which the words of a record are made."""


@dataclass(frozen=True)
class World:
    """World of an agent. records, key, label: names of the records, of their numbers and of their words.

    form: of a number; "#" is a digit. listing, place: the tool that lists records, and its argument with its values.
    action, detail: the tool that takes a record, and its other argument with its values. ask_listing, ask_action: the
    user's words for both.
    """

    records: str
    key: str
    label: str
    form: str
    listing: str
    place: str
    places: Sequence[str]
    ask_listing: str
    action: str
    detail: str
    details: Sequence[Any]
    ask_action: str

    @property
    def tools(self) -> str:
        """Both tools, as a list of JSON."""
        kind = {str: "string", int: "integer", float: "number"}[type(self.details[0])]
        arguments_of = ((self.listing, {self.place: "string"}), (self.action, {self.key: "string", self.detail: kind}))
        functions = [
            {
                "name": name,
                "description": f"{name.replace('_', ' ').capitalize()}.",
                "parameters": {
                    "type": "object",
                    "properties": {argument: {"type": type_} for argument, type_ in arguments.items()},
                    "required": list(arguments),
                },
            }
            for name, arguments in arguments_of
        ]
        return json.dumps([{"type": "function", "function": function} for function in functions])


WORLDS = (
    World(
        *("tickets", "ticket", "subject", "T-#####", "list_tickets", "queue", ("billing", "repairs", "returns")),
        "List the tickets of queue {}.",
        *("assign_ticket", "priority", (1, 2, 3, 4, 5), 'Give the ticket "{}" the priority {}.'),
    ),
    World(
        *("files", "path", "title", "/data/####/##.txt", "list_files", "folder", ("drafts", "reports", "scans")),
        "List the files of folder {}.",
        *("move_file", "folder", ("archive", "public", "review"), 'Move the file "{}" to folder {}.'),
    ),
    World(
        *("items", "sku", "name", "SKU-####-#", "list_items", "shelf", ("A3", "B7", "C1")),
        "List the items of shelf {}.",
        *("order_item", "amount", (5, 10, 20, 50), 'Order the item "{}", amount {}.'),
    ),
    World(
        *("events", "event", "title", "ev_######", "list_events", "room", ("Oslo", "Quito", "Seoul")),
        "List the events in room {}.",
        *("move_event", "hour", (9.5, 11.0, 14.5, 16.0), 'Move the event "{}" to hour {}.'),
    ),
)
MOST = len(FIRST) * len(SECOND) * len(THIRD)
"""Records that have words of their own."""


@dataclass(frozen=True, kw_only=True)
class SyntheticTrajectories(Trajectories):
    """num_turns: of a run, each with one call; its samples are the turns from the second on.

    context_length: of the last prompt of a run at most, in the plain form, with the limit of the answer and what a chat
    template puts around a prompt for each message.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("root",)
    num_turns: int = 6
    context_length: int
    version = "trajectories_synthetic.1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_turns < 2:
            raise UserError(f"task.num_turns={self.num_turns} of {self.name}: allowed: 2 or more")
        if self.distance is not None and self.distance > self.num_turns - 2:
            raise UserError(
                f"task.distance={self.distance} of {self.name}: a run of {self.num_turns} turns has calls at distances "
                f"0 to {self.num_turns - 2}: use one of these, or more task.num_turns"
            )

    @property
    def files(self) -> tuple[str, ...]:
        return ()

    def points(self, samples: Collection[int]) -> dict[int, tuple[int, int]]:
        if any(sample < 0 for sample in samples):
            raise UserError(f"sample indices start at 0, got {min(samples)}")
        numbered = enumerate(self._all_points())
        last, places = max(samples, default=-1), dict[int, tuple[int, int]]()
        while last >= len(places):
            sample, place = next(numbered)
            places[sample] = place
        return {sample: places[sample] for sample in samples}

    def _all_points(self) -> Iterator[tuple[int, int]]:
        for number in count():
            for turn, distance in self._distances(number).items():
                if self.distance in (None, distance):
                    yield number, turn

    def _distances(self, number: int) -> dict[int, int]:
        """Return how many turns before each turn of a run its call needs, from the second turn on."""
        draw = random.Random(f"distances {self.seed} {number}")
        return {turn: draw.randrange(turn - 1) for turn in range(2, self.num_turns + 1)}

    def run(self, number: int, tokens: TokenCounter) -> Trajectory:
        """Return a run with as many records in each output as fit."""
        template: int = getattr(tokens, "template", 0)
        beside = self.max_new_tokens + template * (1 + 2 * self.num_turns)

        def length(records: int) -> int:
            run = self._run(number, records)
            return tokens(plain_text(plain_turns(run.messages[:-1], run.tools))) + beside

        records, most = 1, MOST // self.num_turns
        if length(records) > self.context_length:
            raise UserError(
                f"task.context_length={self.context_length} cannot hold run {number} of {self.name}, which has at "
                f"least {length(1)} tokens: use more, or fewer task.num_turns"
            )
        while 2 * records <= most and length(2 * records) <= self.context_length:
            records *= 2
        sizes = range(records, min(2 * records, most))
        return self._run(number, records + bisect_right(sizes, self.context_length, key=length) - 1)

    def _run(self, number: int, records: int) -> Trajectory:
        """Return a run with `records` records in each output."""
        world, draw = WORLDS[number % len(WORLDS)], random.Random(f"run {self.seed} {number}")
        place = draw.choice(world.places)
        outputs, numbers_of_words = list[list[dict[str, str]]](), draw.sample(range(MOST), records * self.num_turns)
        numbers = set[str]()
        for turn in range(self.num_turns - 1):
            words = map(_words, numbers_of_words[turn * records : (turn + 1) * records])
            outputs.append([{world.key: _number(world.form, draw, numbers), world.label: label} for label in words])
        first = Call(world.listing, json.dumps({world.place: place}))
        messages = [Message("user", world.ask_listing.format(place)), Message("assistant", calls=(first,))]
        for turn, distance in self._distances(number).items():
            source = turn - distance - 1  # the call whose output was read in the turn that is needed
            record, detail = draw.choice(outputs[source - 1]), draw.choice(world.details)
            call = Call(world.action, json.dumps({world.key: record[world.key], world.detail: detail}))
            output = {world.records: outputs[turn - 2]}
            messages += [
                Message("tool", json.dumps(output if turn == 2 else {"done": True} | output)),
                Message("user", world.ask_action.format(record[world.label], detail)),
                Message("assistant", calls=(call,), needs=3 * source - 1),
            ]
        return Trajectory(tuple(messages), world.tools)


def _words(number: int) -> str:
    first, rest = divmod(number, len(SECOND) * len(THIRD))
    return f"{FIRST[first]} {SECOND[rest // len(THIRD)]} {THIRD[rest % len(THIRD)]}"


def _number(form: str, draw: random.Random, used: set[str]) -> str:
    """Return a number in this form that is not used yet."""
    while (text := "".join(str(draw.randrange(10)) if sign == "#" else sign for sign in form)) in used:
        pass
    used.add(text)
    return text
