"""Recorded runs of agents: what a file says, which calls are asked for, when a call is the recorded one."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.extras.trajectories.tests.runs import THREE, row, run_of, task_of
from kvbench.extras.trajectories.tool_calls import calls_in, match, same_json
from kvbench.extras.trajectories.trajectory import Call
from kvbench.tasks.task import Sample

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS: Any = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)


def samples_of(task: Any) -> list[Sample]:
    return list(task.generate(len, range(task.samples)))


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


def test_every_call_after_the_first_turn_is_a_sample(tmp_path: Path) -> None:
    task = task_of(tmp_path, samples=9)
    second, third = samples_of(task)
    assert (task.samples, task.name, task.metric) == (2, "trajectories/calls/mine", "call_match")
    assert [sample.question_number for sample in (second, third)] == [2, 3]
    assert second.references == ('{"name": "take", "arguments": {"id": 7, "all": true}}',)
    assert third.question.startswith("User: Output of the tool:\nout 1\n\nThen do 1.")
    assert third.context.startswith(second.context + second.question.removesuffix("Assistant:"))
    assert third.context.endswith("Assistant: " + second.references[0] + "\n\n")


def test_the_distance_counts_the_turns_that_ended_since_the_needed_message(tmp_path: Path) -> None:
    run = run_of(task_of(tmp_path))
    assert run.points == (2, 3) and [run.distance(turn) for turn in run.points] == [1, 1]
    own = row(("look", {}, None), ("take", {}, 1), ("drop", {}, 5))
    run = run_of(task_of(tmp_path, own))  # the first call itself, and the output that the last turn reads
    assert [run.distance(turn) for turn in run.points] == [1, 0]
    for distance, turns in ((None, [2, 3]), (0, [3]), (1, [2])):
        task = task_of(tmp_path, own, distance=distance)
        assert [sample.question_number for sample in samples_of(task)] == turns
    assert task_of(tmp_path, own, distance=1).described() != task_of(tmp_path, own).described()
    with pytest.raises(ValueError, match=r"has no recorded call with task\.distance=4"):
        _ = task_of(tmp_path, own, distance=4).data_sha256


def test_the_form_of_the_api_is_the_same_run(tmp_path: Path) -> None:
    """Calls in `function`, with arguments as a text."""
    nested = json.loads(json.dumps(THREE))
    for message in nested["messages"]:
        for call in message.get("tool_calls", ()):
            text = json.dumps(call.pop("arguments"))
            call |= {"id": "1", "type": "function", "function": {"name": call.pop("name"), "arguments": text}}
    assert run_of(task_of(tmp_path, nested)) == run_of(task_of(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": []}, "its messages are"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no call of it has a turn before it"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "message 0: its role is 'robot': allowed: system, user"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "system only as the first, then user"),
        ({"messages": [*THREE["messages"], {"role": "assistant", "content": "x"}]}, "the assistant answers itself"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "of the assistant only"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"name": "x"}]}]}, 'a call is {"name": TEXT'),
        ({"messages": [{"role": "user", "content": " "}]}, "message 0: its content is empty"),
        ({"messages": row(("a", {}, None), ("b", {}, 4))["messages"]}, "message 4: its needs is 4: the number of an"),
        ({"tools": ["look"]}, "its tools are"),
    ],
)
def test_a_line_that_is_no_run_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mine\.jsonl: line 2: ") as caught:
        task_of(tmp_path, THREE, THREE | change)
    assert message in str(caught.value)


def test_settings_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    for fields in ({"distance": -1}, {"truncation": "left", "max_prompt_tokens": 9}, {"measure": "pass"}):
        with pytest.raises(ValueError, match=r"task\.(distance|truncation|measure)="):
            task_of(tmp_path, **fields)
    with pytest.raises(ValueError, match=r"generates no answer: use task\.stop=\[\]"):
        task_of(tmp_path, measure="likelihood", stop=("x",))


@given(ARGUMENTS)
def test_a_call_equals_itself_whatever_its_form(arguments: dict[str, Any]) -> None:
    recorded = (Call("look", json.dumps(arguments)),)
    written = reversed_keys(arguments)
    for answer in (
        json.dumps({"name": "look", "arguments": arguments}),
        json.dumps({"arguments": written, "name": "look"}, indent=2),
        json.dumps({"name": "look", "parameters": written}),
        json.dumps({"name": "look", "arguments": json.dumps(written)}),
        f"<tool_call>\n{json.dumps({'name': 'look', 'arguments': written})}\n</tool_call>",
        f"I will {{try}}: [{json.dumps({'type': 'function', 'function': {'name': 'look', 'arguments': written}})}]",
    ):
        assert match(answer, recorded), answer
    assert not match(json.dumps({"name": "lock", "arguments": arguments}), recorded)
    assert not match(json.dumps({"name": "look", "arguments": arguments | {"more-than-4": 1}}), recorded)


@given(VALUES, VALUES)
def test_values_are_equal_if_their_canonical_json_is(first: Any, second: Any) -> None:
    """With whole floats written as integers, which is the one equality beyond the text."""

    def canonical(value: Any) -> str:
        def plain(part: Any) -> Any:
            if isinstance(part, float) and part.is_integer():
                return int(part)
            if isinstance(part, dict):
                return {key: plain(inner) for key, inner in part.items()}
            return [plain(inner) for inner in part] if isinstance(part, list) else part

        return json.dumps(plain(value), sort_keys=True)

    assert same_json(first, second) == (canonical(first) == canonical(second))
    assert same_json(first, json.loads(json.dumps(first)))


def test_what_is_no_equal_call() -> None:
    recorded = (Call("look", '{"at": 1}'),)
    assert match('{"name": "look", "arguments": {"at": 1.0}} {"name": "more", "arguments": {}}', recorded)
    for answer in (
        '{"name": "look", "arguments": {"at": true}}',
        '{"name": "look", "arguments": {"at": "1"}}',
        '{"name": "look", "arguments": {"at": 1, "at": 1}}',
        '{"name": "look", "arguments": [1]}',
        '{"name": "other", "arguments": {}} {"name": "look", "arguments": {"at": 1}}',
        '{"name": "look", "arguments": {"at": 1}',
        "{" * 5000,
        "",
    ):
        assert not match(answer, recorded), answer
    two = (*recorded, Call("take", "{}"))
    both = '{"name": "look", "arguments": {"at": 1}} {"name": "take", "arguments": {}}'
    assert match(both, two) and not match(both[:50], two) and len(calls_in(both)) == 2
