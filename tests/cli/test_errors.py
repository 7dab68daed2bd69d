"""Bad input: one line on stderr that names the bad value and an allowed one, exit 2 or 3, nothing written."""

from pathlib import Path

import pytest

from tests.cli.conftest import Command

BAD = {
    "policy": (["policy=snapvk"], 2, "unknown policy snapvk: did you mean snapkv?"),
    "score": (["score=obcache_jiont"], 2, "unknown score obcache_jiont: did you mean obcache_joint?"),
    "task": (["task=ruler/niah_single_9"], 2, "unknown task ruler/niah_single_9: did you mean ruler/niah_single_"),
    "model": (["model=refrence"], 2, "unknown model refrence: did you mean reference?"),
    "one of a list": (["policy=h2o_obcache,snapvk"], 2, "unknown policy snapvk"),
    "parameter": (["policy.windw=32"], 2, "unknown setting policy.windw: did you mean policy.window?"),
    "swept parameter": (["policy.windw=8,16"], 2, "unknown setting policy.windw: did you mean policy.window?"),
    "setting": (["bugdet=0.1"], 2, "unknown setting bugdet: did you mean budget?"),
    "added parameter": (["+policy.extra=1"], 2, "settings cannot be added or deleted"),
    "forced parameter": (["++policy.window=8"], 2, "settings cannot be added or deleted"),
    "deleted parameter": (["~policy.pool"], 2, "settings cannot be added or deleted"),
    "target": (["policy._target_=os.system"], 2, "policy._target_ is fixed by its file"),
    "target of a part": (["policy.pool={kind:max,size:7,_target_:os.system}"], 2, "policy.pool._target_"),
    "policy name": (["policy.name=mine"], 2, "policy.name is fixed by its file: choose another file with policy=NAME"),
    "score name": (["score.name=mine"], 2, "score.name is fixed by its file"),
    "task name": (["task.name=mine"], 2, "task.name is fixed by its file"),
    "model name": (["model.name=mine"], 2, "model.name is fixed by its file"),
    "accepts": (["policy.accepts=[]"], 2, "policy.accepts is fixed by its file"),
    "setting of no file": (
        ["score=key_norm,recency", "policy=plain", "score.seed=7"],
        2,
        "unknown setting score.seed: key_norm, recency has none",
    ),
    "setting of the own score": (
        ["policy=streaming_llm", "score=random", "score.seed=7"],
        2,
        "unknown setting score.seed: streaming_llm takes no score: it has its own",
    ),
    "part of null": (
        ["policy=h2o_obcache,tova_obcache", "policy.pool.size=7"],
        2,
        "policy.pool is null in h2o_obcache, tova_obcache: set it as one value, policy.pool={kind:max,size:7}",
    ),
    "pool": (["policy.pool=max"], 2, "policy.pool=max: allowed: null, or a kind and an odd size"),
    "pool without size": (
        ["policy=h2o_obcache", "policy.pool={kind:max}"],
        2,
        "policy.pool={kind:max}: allowed: null, or a kind",
    ),
    "pool parameter": (["policy.pool={kidn:max}"], 2, "unknown setting policy.pool.kidn: did you mean kind?"),
    "order": (["policy.order=pool"], 2, "policy.order=pool: allowed: [pool,group] or [group,pool]"),
    "order of one": (["policy.order=[pool]"], 2, "policy.order=[pool]: allowed: [pool,group] or [group,pool]"),
    "order of others": (["policy.order=[pool,heads]"], 2, "policy.order=[pool,heads]: allowed: [pool,group]"),
    "heads number": (["policy.heads=3"], 2, "policy.heads=3: allowed: the name of a kind, such as uniform"),
    "schedule word": (["schedule=prompt"], 2, "schedule=prompt: allowed: its settings"),
    "window null": (["policy.window=null"], 2, "policy.window=null: allowed: an integer"),
    "seed null": (["seed=null"], 2, "kvbench: seed=null: allowed: an integer"),
    "budget null": (["budget=null"], 2, "budget=null is not a number"),
    "policy null": (["policy=null"], 2, "unknown policy null: "),
    "no folder": (["results.dir=null"], 2, "results.dir=null: allowed: a folder, such as results/runs"),
    "empty folder": (["results.dir="], 2, 'results.dir="": allowed: a folder'),
    "folders in a list": (["results.dir=[a,b]"], 2, "results.dir=[a,b]: allowed: a folder"),
    "results": (["results=null"], 2, "results=null: allowed: results.dir=FOLDER"),
    "equals": (["results.dir=a=b"], 2, "marks such as = ( , ~ # ' is quoted: 'results.dir=\"a=b\"'"),
    **{
        f"quotes for {text}": ([f"results.dir={text}"], 2, f"is quoted: 'results.dir=\"{text}\"'")
        for text in ("a~b", "a#b", "größe", "文", "a;b")
    },
    "quotes for a quote": (["results.dir=it's"], 2, "is quoted: 'results.dir=\"it'\"'\"'s\"'"),
    "bracket": (["results.dir=run(1)"], 2, "marks such as = ( , ~ # ' is quoted: 'results.dir=\"run(1)\"'"),
    "comma": (["results.dir=a,"], 2, "a comma stands between two values: write results.dir=a"),
    "numeric model path": (["model=hf", "model.path=123"], 3, "model.path=123: no such folder"),
    "interpolation": (["budget=${bugdet}"], 2, "${bugdet}: no setting bugdet to refer to: did you mean budget?"),
    "hydra": (["hydra.joob.name=x"], 2, "hydra.joob"),
    "launcher": (["hydra/launcher=nope"], 2, "hydra/launcher=nope: settings of Hydra itself change nothing"),
    "part of a number": (
        ["policy.window.x=1"],
        2,
        "did you mean policy.window? allowed: policy.window, ",
    ),
    "no key": (["="], 2, "cannot read '=': the name of the setting is missing"),
    "nothing": ([""], 2, "cannot read ''"),
    "no value": (["policy"], 2, "cannot read 'policy'"),
    "grammar": (["budget=[0.1"], 2, "cannot read 'budget=[0.1'"),
    "budget 0": (["budget=0"], 2, "budget=0 keeps nothing: allowed: a fraction of the prompt in (0, 1]"),
    "budget 0.0": (["budget=0.0"], 2, "budget=0.0 is out of range"),
    "budget negative": (["budget=-0.1"], 2, "budget=-0.1 is out of range"),
    "budget negative tokens": (["budget=-5"], 2, "budget=-5 keeps nothing"),
    "budget 1.7": (["budget=1.7"], 2, "budget=1.7 is out of range"),
    "budget abc": (["budget=abc"], 2, "budget=abc is not a number"),
    "budget in a list": (["budget=0.1,1.7"], 2, "budget=1.7 is out of range"),
    "protected tokens": (
        ["policy=h2o_obcache", "budget=15"],
        2,
        "budget=15 cannot hold the 16 protected tokens of h2o_obcache",
    ),
    "pool size": (["policy.pool.size=4"], 2, "pool.size=4 has no middle: use an odd number such as 5"),
    "pool size 0": (["policy.pool.size=0"], 2, "pool.size=0 has no middle"),
    "pool kind": (["policy.pool.kind=median"], 2, "policy.pool.kind=median: allowed: 'max' or 'avg'"),
    "signed entropy": (
        ["policy=lava", "score=key_norm"],
        2,
        "score key_norm can be negative, but policy.layers=entropy",
    ),
    "signed host": (["score=caote", "score.host=key_diff"], 2, "score.host=key_diff is no weight that sums to one"),
    "own host": (
        ["score=fastcaote", "score.host=caote"],
        2,
        "score.host=caote is a score over a host as fastcaote is",
    ),
    "no host": (["score=caote", "score.host=nope"], 2, "unknown score.host=nope: allowed: attn, attn_max"),
    "fixed host": (["score=caote", "score.host.name=x"], 2, "score.host.name is fixed by its file"),
    "one row": (
        ["policy=tova_obcache", "score=cake"],
        2,
        "policy.window=1: score cake takes a variance over the observed rows",
    ),
    "one row of layers": (
        ["policy=cake", "score=attn", "policy.window=1"],
        2,
        "policy.window=1: policy.layers=preference",
    ),
    "alpha": (
        ["policy=ada_snapkv", "policy.heads.alpha=1.5"],
        2,
        "policy.heads.alpha=1.5: allowed: 0 to 1, a fraction of what a head keeps",
    ),
    "alpha text": (["policy=ada_snapkv", "policy.heads.alpha=x"], 2, "policy.heads.alpha=x: allowed: a number"),
    "beta": (
        ["policy=pyramidkv", "policy.layers.beta=0.5"],
        2,
        "policy.layers.beta=0.5: allowed: 1 or more; the last layer keeps 1/beta",
    ),
    "beta of uniform": (["policy.layers.beta=5"], 2, "unknown setting policy.layers.beta: allowed: kind"),
    "window": (["policy.window=0"], 2, "policy.window=0: allowed: 1 or more observed queries"),
    "window abc": (["policy.window=abc"], 2, "policy.window=abc: allowed: an integer"),
    "sink": (["policy.sink=-1"], 2, "policy.sink=-1"),
    "group": (["policy.group=none"], 2, "policy.group=none keeps one cache per query head"),
    "heads": (["policy.heads=flatt"], 2, "policy.heads.kind=flatt: allowed: uniform, binary, chunks, flat"),
    "samples": (["task.samples=0"], 2, "task.samples=0"),
    "negative samples": (["task.samples=-3"], 2, "task.samples=-3"),
    "length": (["task.context_length=0"], 2, "task.context_length=0"),
    "schedule": (["schedule.evict_after=never"], 2, "schedule.evict_after=never: allowed: 'prompt'"),
    "dtype": (["model.dtype=int8"], 2, "model.dtype=int8: allowed: 'auto'"),
    "era": (["task.era=1999"], 2, "1999"),
    "two folders": (["results.dir=a,b"], 2, "results.dir lists 2 folders"),
    "no model path": (["model=hf"], 2, "model.path has no default: add model.path=FOLDER_OR_HUB_ID to the command"),
    "model folder": (["model=hf", "model.path=/no/such/folder"], 3, "model.path=/no/such/folder: no such folder"),
    "model file": (["model=hf", "model.path=."], 3, "model.path=.: the folder holds no config.json"),
    "results folder": (["results.dir=/proc/nowhere"], 2, "'/proc/nowhere' cannot be written"),
    "range of no step": (["seed=range(0,1,0)"], 2, "cannot expand 'seed=range(0,1,0)': range() arg 3 must not be zero"),
    "endless range": (["seed=range(0,inf,1)"], 2, "lists more than 100000 values"),
    "store of settings": (["store={}"], 2, "unknown store {}: allowed: flat, fp8, int2"),
    "seed of settings": (["seed={}"], 2, "seed={}: allowed: an integer"),
    "kind of settings": (["policy.heads.kind={?:1}"], 2, "policy.heads.kind={?:1}: allowed: uniform, binary"),
    "large seed": (["seed=18446744073709551615"], 2, "seed=18446744073709551615: allowed: integers from"),
    "2^63": (["seed=9223372036854775808"], 2, "from -2^63 to 2^63-1"),
    "below -2^63": (["seed=-9223372036854775809"], 2, "from -2^63 to 2^63-1"),
    "large length": (
        ["task.context_length=99999999999999999999"],
        2,
        "task.context_length=99999999999999999999: allowed",
    ),
    "large part": (["policy.pool={kind:max,size:99999999999999999999}"], 2, "policy.pool.size=99999999999999999999"),
    "large budget": (["budget=99999999999999999999"], 2, "budget=99999999999999999999: allowed: a fraction"),
    "true seed": (["seed=true"], 2, "seed=true: allowed: an integer"),
    "true samples": (["task.samples=true"], 2, "task.samples=true: allowed: a number"),
    "true window": (["policy.window=true"], 2, "policy.window=true: allowed: an integer such as 16, all"),
    "true part": (["policy.window={part:true,of:budget}"], 2, "policy.window.part=true: allowed: a number"),
    "true launcher": (["launcher=local", "launcher.processes=true"], 2, "launcher.processes=true: allowed: a number"),
    "data number": (["data=5"], 2, "data=5: allowed: data.root=FOLDER"),
    "data list": (["data.root=[a]"], 2, "data.root=[a]: allowed: a folder, such as /shared/data, or null"),
    "data parameter": (["data={rot:a}"], 2, "unknown setting data.rot: did you mean root?"),
    "revision": (
        ["model.revision=abc"],
        2,
        "model.revision=abc: model=reference has no revisions; set model.path=HUB_ID too",
    ),
    "short lease": (["results.lease_seconds=1e-9"], 2, "results.lease_seconds=1e-09: allowed: 1 to 1000000 seconds"),
    "endless lease": (["results.lease_seconds=inf"], 2, "results.lease_seconds=inf: allowed: 1 to"),
    "threads": (["model.threads=99999"], 2, "model.threads=99999: allowed: 1 to 1024, or null"),
    "tile": (["model.max_batch=1e9"], 2, "model.max_batch=1000000000: allowed: 1 to 4096 (cells"),
    "project": (
        ["logger=wandb", "logger.project='a/b'"],
        2,
        "logger.project=a/b: allowed: 1 to 128 characters without /",
    ),
}
BAD_FLAGS = {
    "unknown": (["--foo"], "unknown flag --foo: did you mean --cfg? allowed: --cfg, --help, --quiet"),
    "shortened": (["--qui"], "unknown flag --qui: did you mean --quiet?"),
    "multirun": (["--multirun"], "unknown flag --multirun"),
    "config name": (["--config-name", "x"], "unknown flag --config-name"),
    "config path": (["--config-path=x"], "unknown flag --config-path"),
    "config folder": (["--config-dir=x", "policy=h2o_obcache"], "unknown flag --config-dir"),
    "cfg": (["--cfg", "nope"], "--cfg nope: allowed: job"),
    "name": (["--cfg", "job", "policy=a,b"], "unknown policy a"),
    "list": (
        ["--cfg", "job", "policy=h2o_obcache,tova_obcache"],
        "policy=h2o_obcache,tova_obcache lists 2 values: name one",
    ),
    "info": (["--info", "config"], "unknown flag --info"),
    "cfg of Hydra": (["--cfg", "hydra"], "--cfg hydra: allowed: job"),
    "hydra help": (["--hydra-help"], "unknown flag --hydra-help: did you mean --help?"),
    "cfg of a setting": (["--cfg", "job", "policy.windw=8"], "unknown setting policy.windw"),
    "cfg of Hydra's settings": (["--cfg", "job", "hydra.job.name=x"], "hydra.job.name=x: settings of Hydra"),
    "shard": (["--shard", "1/2", "--cfg", "job"], "--shard and --cfg do not go together"),
    "shell": (["--shell-completion", "install=bash"], "unknown flag --shell-completion"),
}


@pytest.mark.parametrize(("command", "name"), [(command, name) for command in ("run", "plan") for name in BAD])
def test_bad_input_is_one_line_and_writes_nothing(kvbench: Command, tmp_path: Path, command: str, name: str) -> None:
    arguments, code, message = BAD[name]
    finished = kvbench(command, *arguments)
    assert finished.code == code, finished.err
    assert message in finished.err
    assert finished.err.startswith("kvbench: ") and finished.err.count("\n") == 1
    assert finished.out == "" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", BAD_FLAGS)
def test_bad_input_beside_a_flag_is_one_line_too(kvbench: Command, tmp_path: Path, name: str) -> None:
    arguments, message = BAD_FLAGS[name]
    finished = kvbench("run", *arguments)
    assert finished.code == 2 and message in finished.err
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
        (["report", "table", "--format", "pdf"], "unknown format 'pdf'"),
        (["report", "table", "--fromat", "csv"], "--fromat"),
        (["report", "rows", "cols=budget"], "rows have no column 'cols'"),
        (["list", "polices"], "cannot list polices: did you mean policies?"),
        (["plan", "--now"], "plan: unknown flag --now"),
        (["doctor", "now"], "doctor takes no arguments"),
    ],
)
def test_other_commands_say_what_is_wrong(kvbench: Command, arguments: list[str], message: str) -> None:
    finished = kvbench(*arguments)
    assert finished.code == 2 and message in finished.err and finished.err.count("\n") == 1


def test_a_report_without_rows_is_missing_data(kvbench: Command) -> None:
    finished = kvbench("report", "table", "--results", "nowhere")
    assert finished.code == 3 and "'nowhere' does not exist" in finished.err
