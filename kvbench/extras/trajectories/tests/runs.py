"""Recorded runs of agents for tests."""

import json
from pathlib import Path
from typing import Any

from kvbench.extras.trajectories.trajectories import RecordedTrajectories
from kvbench.extras.trajectories.trajectory import Trajectory

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def row(*calls: tuple[str, dict[str, Any], int | None], **more: Any) -> dict[str, Any]:
    """A run that calls tools one after the other; the output of call n is `out n`."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Start with a."}]
    for number, (name, arguments, needs) in enumerate(calls):
        recorded = {"role": "assistant", "tool_calls": [{"name": name, "arguments": arguments}]}
        messages.append(recorded if needs is None else recorded | {"needs": needs})
        messages += [{"role": "tool", "content": f"out {number}"}, {"role": "user", "content": f"Then do {number}."}]
    return {"tools": TOOLS, "messages": messages[:-2], **more}


THREE = row(("look", {"at": "a"}, None), ("take", {"id": 7, "all": True}, 0), ("drop", {"where": ["x", None]}, 2))
"""Three turns: the second call needs the first message, the third one the output that the second turn reads."""


def write(path: Path, *rows: Any) -> None:
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in rows), "utf-8")


def task_of(path: Path, *rows: Any, measure: Any = "calls", **fields: Any) -> RecordedTrajectories:
    """The task of a file with these lines."""
    write(path / "mine.jsonl", *(rows or (THREE,)))
    return RecordedTrajectories(path=str(path / "mine.jsonl"), name="trajectories", measure=measure, **fields)


def run_of(task: RecordedTrajectories, number: int = 0) -> Trajectory:
    run = task._runs[number]
    assert isinstance(run, Trajectory)
    return run
