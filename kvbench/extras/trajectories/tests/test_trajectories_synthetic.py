"""Runs that are made up: every call can be answered from the one message that it needs, and from no other."""

import json
from typing import Any

import pytest

from kvbench.extras.trajectories.trajectories_synthetic import WORLDS, SyntheticTrajectories
from kvbench.extras.trajectories.trajectory import TrajectorySample


def words(text: str) -> int:
    return len(text.split())


def task_of(**fields: Any) -> SyntheticTrajectories:
    return SyntheticTrajectories(
        **({"name": "made", "measure": "calls", "context_length": 900, "samples": 20} | fields)
    )


def generated(task: SyntheticTrajectories) -> list[TrajectorySample]:
    tokens: Any = words
    return [sample for sample in task.generate(tokens, range(task.samples)) if isinstance(sample, TrajectorySample)]


def test_the_needed_message_alone_holds_the_value() -> None:
    for sample in generated(task_of()):
        run = sample.trajectory
        *history, recorded = run.messages
        (call,), needs = recorded.calls, recorded.needs
        number = next(iter(json.loads(call.arguments).values()))
        asked = history[-1].content.split('"')[1]
        holding = [place for place, message in enumerate(history) if number in message.text]
        assert holding[0] == needs and history[holding[0]].role == "tool"
        assert all(history[place].role == "assistant" for place in holding[1:])  # earlier calls of the same record
        records = next(value for value in json.loads(history[holding[0]].content).values() if isinstance(value, list))
        assert [next(iter(record.values())) for record in records if list(record.values())[1] == asked] == [number]


def test_runs_fill_their_length_and_do_not_depend_on_samples() -> None:
    samples = generated(task_of())
    last = [sample for sample in samples if sample.question_number == 6]
    for sample in last:
        assert 700 < words(sample.prompt) + sample.max_new_tokens <= 900
    assert {sample.trajectory.tools for sample in last} == {world.tools for world in WORLDS}
    some = list(task_of().generate(words, [3, 17]))  # type: ignore[arg-type]
    assert some == [samples[3], samples[17]] and generated(task_of(samples=5)) == samples[:5]
    assert generated(task_of(seed=1))[0].context != samples[0].context


def test_calls_of_one_run_are_not_independent() -> None:
    samples = generated(task_of())
    runs = task_of().points(range(len(samples)))
    contexts = {(runs[sample.id][0], sample.context_sha256) for sample in samples}
    assert len(contexts) == len({run for run, _ in contexts}) == len({context for _, context in contexts}) > 1


@pytest.mark.parametrize("distance", [0, 1, 4])
def test_a_distance_selects_calls(distance: int) -> None:
    places = task_of().points(range(300)).values()
    run = [task_of()._distances(number) for number in range(60)]
    expected = [(number, turn) for number, turn in places if run[number][turn] == distance]
    chosen = task_of(distance=distance, samples=2)
    assert list(chosen.points(range(len(expected))).values()) == expected
    for sample in generated(chosen):
        assert sample.question_number is not None
        assert sample.trajectory.distance(sample.question_number) == distance


def test_distances_are_spread() -> None:
    """Of turn t each of the t - 1 possible ones, about as often."""
    of_last = [task_of()._distances(number)[6] for number in range(1000)]
    assert all(150 < of_last.count(distance) < 250 for distance in range(5))


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(ValueError, match=r"task\.distance=5 .* distances 0 to 4"):
        task_of(distance=5)
    with pytest.raises(ValueError, match=r"task\.num_turns=1"):
        task_of(num_turns=1)
    with pytest.raises(
        ValueError, match=r"task\.context_length=100 cannot hold run 0 .* at least (\d+) tokens"
    ) as made:
        generated(task_of(context_length=100))
    least = int(str(made.value).split("at least ")[1].split()[0])
    with pytest.raises(ValueError, match="cannot hold"):
        generated(task_of(context_length=least - 1, samples=1))
    assert len(generated(task_of(context_length=least, samples=1))) == 1
