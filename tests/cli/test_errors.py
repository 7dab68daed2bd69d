"""Bad input: one line on stderr that names the bad value and a legal one, exit 2 or 3, nothing written."""

from pathlib import Path

import pytest

from tests.cli.conftest import Command

BAD = {
    "policy": (["policy=snapvk"], 2, "unknown policy snapvk: did you mean snapkv?"),
    "score": (["score=obcache_jiont"], 2, "unknown score obcache_jiont: did you mean obcache_joint?"),
    "task": (["task=ruler/niah_single_9"], 2, "unknown task ruler/niah_single_9: did you mean ruler/niah_single_1?"),
    "model": (["model=refrence"], 2, "unknown model refrence: did you mean reference?"),
    "one of a list": (["policy=h2o,snapvk"], 2, "unknown policy snapvk"),
    "parameter": (["policy.windw=32"], 2, "unknown setting policy.windw: did you mean policy.window?"),
    "swept parameter": (["policy.windw=8,16"], 2, "unknown setting policy.windw: did you mean policy.window?"),
    "setting": (["bugdet=0.1"], 2, "unknown setting bugdet: did you mean budget?"),
    "added parameter": (["+policy.extra=1"], 2, "unknown setting policy.extra"),
    "no value": (["policy"], 2, "cannot read 'policy'"),
    "grammar": (["budget=[0.1"], 2, "cannot read 'budget=[0.1'"),
    "budget 0": (["budget=0"], 2, "budget=0 keeps nothing: a fraction of the prompt in (0, 1]"),
    "budget 0.0": (["budget=0.0"], 2, "budget=0.0 is out of range"),
    "budget negative": (["budget=-0.1"], 2, "budget=-0.1 is out of range"),
    "budget negative tokens": (["budget=-5"], 2, "budget=-5 keeps nothing"),
    "budget 1.7": (["budget=1.7"], 2, "budget=1.7 is out of range"),
    "budget abc": (["budget=abc"], 2, "budget=abc is not a number"),
    "budget in a list": (["budget=0.1,1.7"], 2, "budget=1.7 is out of range"),
    "protected tokens": (["policy=h2o", "budget=15"], 2, "budget=15 cannot hold the 16 protected tokens of h2o"),
    "pool size": (["policy.pool.size=4"], 2, "pool.size=4 has no middle: use an odd number such as 5"),
    "pool size 0": (["policy.pool.size=0"], 2, "pool.size=0 has no middle"),
    "pool kind": (["policy.pool.kind=median"], 2, "policy.pool.kind=median: legal: 'max' or 'avg'"),
    "window": (["policy.window=0"], 2, "policy.window=0: at least one query must vote"),
    "window abc": (["policy.window=abc"], 2, "policy.window=abc: legal: a valid integer"),
    "sink": (["policy.sink=-1"], 2, "policy.sink=-1"),
    "group": (["policy.group=none"], 2, "policy.group=none keeps one cache per query head"),
    "heads": (["policy.heads=flatt"], 2, "policy.heads.kind=flatt: legal: 'uniform'"),
    "samples": (["task.samples=0"], 2, "task.samples=0"),
    "negative samples": (["task.samples=-3"], 2, "task.samples=-3"),
    "length": (["task.context_length=0"], 2, "task.context_length=0"),
    "schedule": (["schedule.evict_after=never"], 2, "schedule.evict_after=never: legal: 'prompt'"),
    "dtype": (["model.dtype=int8"], 2, "model.dtype=int8: legal: 'auto'"),
    "era": (["task.era=1999"], 2, "1999"),
    "two folders": (["results.dir=a,b"], 2, "results.dir lists 2 folders"),
    "no model path": (["model=hf"], 2, "model.path has no default: add model.path=VALUE"),
    "model folder": (["model=hf", "model.path=/no/such/folder"], 3, "model.path=/no/such/folder: no such folder"),
    "model file": (["model=hf", "model.path=."], 3, "model.path=.: the folder holds no config.json"),
    "results folder": (["results.dir=/proc/nowhere"], 2, "'/proc/nowhere' cannot be written"),
    "command flag": (["--cfg", "job", "policy=a,b"], 2, "unknown policy a"),
}


@pytest.mark.parametrize(
    ("command", "name"), [("run", name) for name in BAD] + [("plan", name) for name in BAD if name != "command flag"]
)
def test_bad_input_is_one_line_and_writes_nothing(kvbench: Command, tmp_path: Path, command: str, name: str) -> None:
    arguments, code, message = BAD[name]
    finished = kvbench(command, *arguments)
    assert finished.code == code, finished.err
    assert message in finished.err
    assert finished.err.startswith("kvbench: ") and finished.err.count("\n") == 1
    assert finished.out == "" and list(tmp_path.iterdir()) == []


def test_a_context_too_short_for_the_task_names_the_smallest(kvbench: Command, tmp_path: Path) -> None:
    finished = kvbench("run", "task.context_length=140")
    assert finished.code == 2 and "smallest context_length" in finished.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "unknown command rnu: did you mean run?"),
        (["report", "tabel"], "unknown report tabel: did you mean table?"),
        (["report", "table", "--format", "pdf"], "there is no format 'pdf'"),
        (["report", "table", "--fromat", "csv"], "--fromat"),
        (["report", "rows", "cols=budget"], "unknown setting cols=budget"),
        (["list", "polices"], "cannot list polices: did you mean policies?"),
        (["plan", "--now"], "plan has no flag --now"),
        (["doctor", "now"], "doctor takes no arguments"),
    ],
)
def test_other_commands_say_what_is_wrong(kvbench: Command, arguments: list[str], message: str) -> None:
    finished = kvbench(*arguments)
    assert finished.code == 2 and message in finished.err and finished.err.count("\n") == 1


def test_a_report_without_rows_is_missing_data(kvbench: Command) -> None:
    finished = kvbench("report", "table", "--results", "nowhere")
    assert finished.code == 3 and "'nowhere' does not exist" in finished.err
