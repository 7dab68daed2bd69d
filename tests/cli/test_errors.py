"""Every way to ask for what is not there or cannot be: what is wrong, the value, what is allowed, the way on, a code.

All in this process, one line each. Ranges of settings are tested with the classes that have them.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.cli.main import commands
from tests.cli.conftest import Command
from tests.cli.test_comparing import folder, rows

PG19 = "run task=pg19 data.root=data policy=h2o_obcache budget=20"
USAGE: dict[str, tuple[str, ...]] = {
    # names
    "rnu": ("unknown command rnu", "did you mean run?", "allowed: run, "),
    "evaluate": ("unknown command evaluate: write kvbench run",),
    "list presses": ("cannot list presses: kvbench list policies",),
    "list polices": ("cannot list polices", "did you mean policies?"),
    "list policies snapvk": ("unknown policy snapvk", "did you mean snapkv?"),
    "report tabel": ("unknown report tabel", "did you mean table?"),
    "data pul pg19": ("unknown data pul", "did you mean pull?"),
    "run policy=h2o_obcache,snapvk": ("unknown policy snapvk: did you mean snapkv?",),
    "run policy=null": ("unknown policy null: ",),
    "run store={}": ("unknown store {}: allowed: flat, fp8, int2",),
    "plan task=ruler/niah_sngle_1": ("did you mean ruler/niah_single_1?", " more"),
    "plan task=longbnch": ("unknown task longbnch", "did you mean longbench?"),
    "plan model=llama3.1-8b": ("did you mean llama3.1-8b-instruct?", "model=hf model.path=FOLDER_"),
    "plan launcher=slrm": ("unknown launcher slrm", "did you mean slurm?"),
    "run policy.windw=8,16": ("unknown setting policy.windw: did you mean policy.window?",),
    "run bugdet=0.1": ("unknown setting bugdet: did you mean budget?",),
    "plan reader=quest reader.pages=3": ("reader.pages", "did you mean reader.page?"),
    "run data={rot:a}": ("unknown setting data.rot: did you mean root?",),
    "run policy.pool={kidn:max}": ("unknown setting policy.pool.kidn: did you mean kind?",),
    "run policy.layers.beta=5": ("unknown setting policy.layers.beta: allowed: kind",),
    "run policy.window.x=1": ("did you mean policy.window? allowed: policy.window, ",),
    "run policy.heads={kind:{?:1}}": ("policy.heads.kind={?:1}: allowed: uniform, binary",),
    "run budget=${bugdet}": ("${bugdet}: no setting bugdet to refer to: did you mean budget?",),
    "plan score=caote score.host=obcache_jont": ("score.host=obcache_jont", "did you mean obcache_joint?"),
    "plan policy=snapkv policy.apply=merge": ("policy.apply.kind=merge", "drop, cam, d2o, nearest, think"),
    "plan snapkv": ("cannot read 'snapkv': did you mean policy=snapkv?",),
    "plan ruler/niah_single_1": ("did you mean task=ruler/niah_single_1?",),
    "plan snapkw": ("cannot read 'snapkw': it has no =; write key=value",),
    "report plot": ("a plot has a kind: kvbench report plot KIND --out FILE", "bars, kept, latency"),
    "report plot bars --results one": ("--out FILE.pdf|.png|.svg",),
    "report table --results one --out x.xlsx": ("--out x.xlsx: unknown suffix .xlsx", ".md, .tex, .txt, or any name"),
    "audit means.csv --out x.doc": ("--out x.doc: unknown suffix .doc", ".csv, .html, .json, .md"),
    "report plot tradeof --out x.png": ("'tradeof'", "did you mean tradeoff?"),
    "report table --results one polcy=h2o_obcache": ("no column 'polcy'", "did you mean policy?", "policy.window"),
    "report table --results one rows=polcy": ("rows=polcy", "did you mean policy?", "policy.window"),
    "report table --results one against=x": ("against=x", "allowed: policy h2o_obcache, snapkv"),
    "report table --results one --average lva": ("lva", "allowed: official, lava, caote"),
    "export --results one --format junit what=speed": ("what=speed", "accuracy, bytes, seconds"),
    "data pull pg20": ("no data pg20", "did you mean pg19?"),
    "data pull longbench/qaspr": ("no part longbench/qaspr", "did you mean longbench/qasper?"),
    "paper obcache/table11": ("obcache/table11", "did you mean obcache/table1?", " more"),
    "paper obcache/table1 polcy=3": ("unknown setting polcy", "did you mean policy?"),
    "probe oracle": ("unknown probe oracle", "did you mean oracle_recall?"),
    "conform --properties": ("score=NAME, policy=NAME", "kvbench list"),
    "conform --properties score=atn": ("unknown score atn", "did you mean attn?"),
    "completion bsh": ("completion for bsh", "did you mean bash?"),
    # flags
    "run --foo": ("unknown flag --foo: did you mean --cfg? allowed: --cfg, --help, --quiet",),
    "run --qui": ("unknown flag --qui: did you mean --quiet?",),
    "run --config-dir=x policy=h2o_obcache": ("unknown flag --config-dir",),
    "run --cfg nope": ("--cfg nope: allowed: job",),
    "run --cfg job policy=h2o_obcache,tova_obcache": ("policy=h2o_obcache,tova_obcache lists 2 values: name one",),
    "run --shard 1/2 --cfg job": ("--shard and --cfg do not go together",),
    "report table --fromat csv": ("unknown flag --fromat", "did you mean --format?", "--help"),
    "report table --results one --format markdwn": ("'markdwn'", "did you mean markdown?", "|csv|"),
    "report rows --results one --format parquet": ("name it with --out FILE.parquet",),
    "report history --out x.html": ("kvbench report history DIR DIR --out history.html",),
    "report html --results one": ("report html: ", "required: --out", "kvbench report --help"),
    "report plot bars --results one --out x.gif": ("'x.gif'", "--out FILE.pdf|.png|.svg"),
    "gate --baseline one": ("required: --current", "kvbench gate --help"),
    "export --results one": ("export: ", "--format", "kvbench export --help"),
    "merge one two": ("required: --out", "kvbench merge --help"),
    "prompts --nothing": ("unknown flag --nothing", "allowed: --help, --out"),
    "paper obcache/table1 --format pdf": ("--format pdf", "allowed: csv, html, json, latex, markdown, text"),
    "status one": ("cannot read one: write --results one", "allowed: --help, --json, --results"),
    "status nowhere": ("cannot read nowhere: allowed: --help, --json, --results",),
    "cancel --jsn": ("unknown flag --jsn", "allowed: --help, --requests, --results"),
    "doctor now": ("got now", "data.root=FOLDER"),
    "recommend task=ruler/vt --json --format csv": ("--json and --format csv",),
    "view one --port 70000": ("--port 70000", "allowed: 0 to 65535"),
    "view one --host 192.0.2.1": ("cannot listen on 192.0.2.1", "name another --port"),
    # what a line can be
    "run +policy.extra=1": ("settings cannot be added or deleted",),
    "run policy._target_=os.system": ("policy._target_ is fixed by its file",),
    "run policy.pool={kind:max,size:7,_target_:os.system}": ("policy.pool._target_",),
    "run policy.name=mine": ("policy.name is fixed by its file: choose another file with policy=NAME",),
    "run score=caote score.host.name=x": ("score.host.name is fixed by its file",),
    "run hydra/launcher=nope": ("hydra/launcher=nope: settings of Hydra itself change nothing",),
    "run results.dir=a=b": ("marks such as = ( , ~ # ' is quoted: 'results.dir=\"a=b\"'",),
    "run results.dir=größe": ("is quoted: 'results.dir=\"größe\"'",),
    "run results.dir=it's": ("is quoted: 'results.dir=\"it'\"'\"'s\"'",),
    "run results.dir=a,": ("a comma stands between two values: write results.dir=a",),
    "run =": ("cannot read '=': the name of the setting is missing",),
    "run ": ("cannot read ''",),
    "run policy": ("cannot read 'policy'",),
    "run budget=[0.1": ("cannot read 'budget=[0.1'",),
    "run seed=range(0,1,0)": ("cannot expand 'seed=range(0,1,0)': range() arg 3 must not be zero",),
    "run seed=range(0,inf,1)": ("lists more than 100000 values", "choose a larger step"),
    "plan budget=range(0.001,0.9,0.0001) score=attn,lava policy=h2o_obcache,snapkv task=ruler": (
        *("8990 of budget", "are 467480 combinations", "name fewer values"),
    ),
    "plan task.samples=99999999": ("task.samples=99999999", "10000000 rows", "ask for fewer"),
    "run results.dir=a,b": ("results.dir lists 2 folders",),
    "plan policy=snapkv policy.apply=kind:think policy.apply=ratio:0.5": (
        *("between quotes if it has settings", "policy.apply={kind:NAME,SETTING:VALUE}"),
    ),
    # values
    "run seed=null": ("kvbench: seed=null: allowed: an integer",),
    "run seed=true": ("seed=true: allowed: an integer",),
    "run seed=9223372036854775808": ("from -2^63 to 2^63-1",),
    "run task.context_length=99999999999999999999": ("task.context_length=99999999999999999999: allowed",),
    "run budget=99999999999999999999": ("budget=99999999999999999999: allowed: a fraction",),
    "run policy.window={part:true,of:budget}": ("policy.window.part=true: allowed: a number",),
    "run policy.window=abc": ("policy.window=abc: allowed: an integer",),
    "run policy.sink=-1": ("policy.sink=-1",),
    "run policy.window=0": ("policy.window=0: allowed: 1 or more observed queries",),
    "run policy.pool=max": ("policy.pool=max: allowed: null, or a kind and an odd size",),
    "run policy.pool.kind=median": ("policy.pool.kind=median: allowed: 'max' or 'avg'",),
    "run policy=h2o_obcache,tova_obcache policy.pool.size=7": (
        "policy.pool is null in h2o_obcache, tova_obcache: set it as one value, policy.pool={kind:max,size:7}",
    ),
    "run policy.order=[pool,heads]": ("policy.order=[pool,heads]: allowed: [pool,group]",),
    "run policy.heads=3": ("policy.heads=3: allowed: the name of a kind, such as uniform",),
    "run policy=ada_snapkv policy.heads.alpha=x": ("policy.heads.alpha=x: allowed: a number",),
    "run policy=pyramidkv policy.layers.beta=0.5": (
        "policy.layers.beta=0.5: allowed: 1 or more; the last layer keeps 1/beta",
    ),
    "run schedule=prompt": ("schedule=prompt: allowed: its settings",),
    "run schedule.evict_after=never": ("schedule.evict_after=never: allowed: 'prompt'",),
    "run results=null": ("results=null: allowed: results.dir=FOLDER",),
    "run results.dir=null": ("results.dir=null: allowed: a folder, such as results/runs",),
    "run results.dir=": ('results.dir="": allowed: a folder',),
    "run results.lease_seconds=inf": ("results.lease_seconds=inf: allowed: 1 to 1000000 seconds",),
    "run data=5": ("data=5: allowed: data.root=FOLDER",),
    "run data.root=[a]": ("data.root=[a]: allowed: a folder, such as /shared/data, or null",),
    "run model.dtype=int8": ("model.dtype=int8: allowed: 'auto'",),
    "run model.threads=99999": ("model.threads=99999: allowed: 1 to 1024, or null",),
    "run model.max_batch=1e9": ("model.max_batch=1000000000: allowed: 1 to 4096 (cells",),
    "run model.revision=abc": ("model.revision=abc: model=reference has no revisions; set model.path=HUB_ID too",),
    "run logger=wandb logger.project='a/b'": ("logger.project=a/b: allowed: 1 to 128 characters without /",),
    "run budget=0": ("budget=0 keeps nothing: allowed: a fraction of the prompt in (0, 1]",),
    "run budget=0.1,1.7": ("budget=1.7 is out of range",),
    "run budget=abc": ("budget=abc is not a number",),
    "report plot tradeoff --results one --out x.png x=tokens": ("x=tokens", "fraction|pairs|bytes"),
    "compare one two alpha=2": ("alpha=2", "between 0 and 1", "alpha=0.05"),
    "board one at=20": ("at=20", "shares of the full cache's bytes", "at=0.1,0.2"),
    "probe oracle_recall probe.windows=true": ("probe.windows=", "true", "allowed"),
    "recommend task=ruler/vt memory=2": ("memory=2", "such as memory=2GiB"),
    "recommend task=ruler/vt loss=all": ("loss=all", "such as loss=2"),
    # what does not go together
    "run reference=half": ("allowed: 'full' or 'none'",),
    "run reference=full,none": ("a sweep has one reference",),
    "run launcher=none,local": ("a sweep has one launcher",),
    "run results.kept=everything": ("results.kept=everything: allowed: 'none', 'lengths' or 'positions'",),
    "plan data.verify={}": ("data.verify=",),
    "run policy.recent={part:2}": ("or a part such as {part:0.05,of:budget}",),
    "run schedule.decode_every=0": (
        "schedule.decode_every=0: allowed: a number of tokens, 1 or more, or null for never",
    ),
    "run schedule.prefill_block=-8": ("schedule.prefill_block=-8: allowed: a number of tokens",),
    "run schedule.answer_budget=8": ("schedule.answer_budget=8, but the answer is not evicted from: add",),
    "run schedule.decode_every=1 schedule.answer_budget=8": ("cannot hold the 32 newest tokens that snapkv",),
    "run schedule.decode_counts=all": (
        "schedule.decode_counts=all, but decode_every=null and evict_after=prompt: the prompt counts",
    ),
    "run schedule.decode_every=1 policy.state=none": ("policy.state=none, but score attn reads observed queries",),
    "run schedule.prefill_block=64 policy.heads=flat policy.group=layer_mean": ("is a mean over heads",),
    "run schedule.prefill_block=64 score=kvzip": ("score kvzip repeats what was read, once",),
    "run schedule.prefill_block=64 score=expected_attention": ("reads the queries of the whole prompt, once",),
    "run score=key_norm,recency policy=plain score.seed=7": ("unknown setting score.seed: key_norm, recency has none",),
    "run policy=streaming_llm score=random score.seed=7": (
        "unknown setting score.seed: streaming_llm takes no score: it has its own",
    ),
    "run policy=h2o_obcache budget=15": ("budget=15 cannot hold the 16 protected tokens of h2o_obcache",),
    "run policy=lava score=key_norm": (
        "policy.layers=entropy of lava reads scores as a distribution, but score key_norm can be negative",
        "use another score, or policy.layers=uniform",
    ),
    "run score=caote score.host=key_diff": ("score.host=key_diff is no weight that sums to one",),
    "run score=fastcaote score.host=caote": ("score.host=caote is a score over a host as fastcaote is",),
    "run policy=tova_obcache score=cake": (
        "policy.window=1: score cake takes a variance over the observed rows",
        "use 2 or more",
    ),
    "run policy=cake score=attn policy.window=1": ("policy.window=1: policy.layers=preference",),
    "plan policy=snapkv reader.budget=64": ("dense has none; add reader=NAME: block_topk",),
    "probe set_error policy=snapkv policy.apply=d2o budget=0.2": (
        *("a probe is about which pairs are kept, but policy.apply=d2o changes", "use policy.apply=drop"),
    ),
    "probe set_error reader=quest": (
        *("a probe is about what is kept", "reader=quest reads a part of a cache", "use reader=dense"),
    ),
    "plan policy=snapkv policy.apply=d2o policy.positions=cache": (
        *("policy.apply=d2o makes keys that no position has rotated (cam and nearest", "use policy.apply=drop"),
    ),
    "plan policy=snapkv policy.apply=think budget=1MiB": (
        *("policy.apply=think removes channels of keys", "or a number of KV pairs or a fraction"),
    ),
    "probe oracle_recall launcher=local": ("launcher=local", "leave launcher out"),
    "recommend task=ruler/vt reference=none": ("reference=none", "leave"),
    "recommend task=ruler/vt data=x.jsonl": ("data=x.jsonl and task=ruler/vt", "leave"),
    "recommend task=ruler/vt,ruler/fwe": ("task has several values", "differ in", "name one"),
    "recommend task=efficiency": ("efficiency", "data=FILE"),
    "recommend memory=2GiB": ("what is read?", "data=FILE.jsonl", "task=NAME"),
    "run model=hf": ("model.path has no default: add model.path=FOLDER_OR_HUB_ID to the command",),
    "plan policy=duo_attention budget=0.5": ("score.path has no default", "kvbench heads"),
    "heads --output x.json policy=h2o_obcache": ("heads takes no policy", "leave it out"),
    # rows of a report
    "report table --results one h2o_obcache": ("cannot read h2o_obcache: settings are key=value",),
    "report rows --results one policy=": ("policy= has no value",),
    "report rows --results one policy=h2o_obcache policy=snapkv": (
        "policy is named twice; list its values: policy=h2o_obcache,snapkv",
    ),
    "compare --results one policy=snapkv": ("compare takes two folders",),
    "compare --results one policy=snapkv policy=snapkv": ("a row cannot be compared with itself",),
    "compare --results one policy=snapkv policy=h2o_obcache,policy=x": ("names 'policy' twice",),
    "gate --baseline one --current two policy=snapkv policy=h2o_obcache": ("gate takes one selection",),
    "gate --baseline one --current two by=polcy": ("cells have no column 'polcy'",),
    "gate --baseline one --current two kept=perhaps": ("allowed: kept=fail, kept=note",),
    "gate --baseline one --current two --min-effect 5": ("--min-effect 5: allowed: points of all",),
    "gate --baseline one --current two --alarm 0,nan": ("--alarm 0,nan: allowed: points of all",),
    # texts that are scored
    f"{PG19} task.context_length=0": ("allowed: 1 or more, the tokens that are scored",),
    f"{PG19} task.chat=true": ("task.chat=false",),
    f"{PG19} task.min_new_tokens=1": ("task.min_new_tokens=0",),
    f"{PG19} task.evict=before policy.recent=20": ("use budget >= 21",),
    f"{PG19} policy.heads=flat": ("task pg19 evicts while it reads, but policy.heads=flat of h2o_obcache keeps more",),
    f"{PG19} policy=kvzip": ("it cannot evict again",),
    f"{PG19} schedule.decode_every=null": ("task pg19 evicts while it reads, but schedule.decode_every=null",),
    f"{PG19} schedule.answer_budget=8": ("is the budget of an answer, but task pg19 has no answer",),
    f"{PG19} schedule.prefill_block=8": ("schedule.prefill_block=null",),
    f"{PG19} schedule.evict_after=context": ("schedule.evict_after=prompt",),
    # folders
    "compare one": ("DIR_A DIR_B", "got one"),
    "gate --baseline one --current one": ("the same folder, 'one'", "name two"),
    "report table --results one --results two": ("one folder is read", "kvbench merge one two --out DIR"),
    "view one one": ("one is named twice", "name each folder once"),
    "data pull": ("name what to pull", "kvbench data list"),
    "board --out c": ("board takes folders", "got nothing"),
    "board one ./one": ("one is named twice", "name each source once"),
    "merge one --out c": ("two results folders or more, not 1", "kvbench merge A B --out C"),
    "merge one ./one --out c": ("one is named twice",),
    "merge one two --out s3://b/c": ("'s3://b/c' is an address", "copy it there"),
    "plan results.dir=s3://b/c": ("'s3://b/c' is an address", "mounted"),
    "run results.dir=/proc/nowhere": ("'/proc/nowhere' cannot be written", "results.dir=FOLDER"),
    "report html --results one --out /no/x.html": ("cannot write '/no/x.html'", "name another file"),
    "heads --output /no/such/x.json": ("there is no folder /no/such", "make it"),
    "heads --output empty": ("--output empty is a folder",),
    "plan policy=duo_attention budget=0.5 score.path=file.txt": ("file.txt is not a table", "one line per layer"),
}
MISSING: dict[str, tuple[str, ...]] = {
    "report table --results nowhere": ("'nowhere' does not exist", "kvbench run", "--results"),
    "report table --results empty": ("'empty' is not a results folder", "--results"),
    "report table --results file.txt": ("'file.txt' is not a folder", "--results"),
    "report efficiency --results one": ("timings", "kvbench run task=efficiency"),
    "compare one nowhere": ("'nowhere' does not exist", "kvbench run"),
    "gate --baseline one --current nowhere": ("does not exist",),
    "pack --results nowhere": ("results folder 'nowhere' does not exist", "run `kvbench run`"),
    "view nowhere": ("results folder 'nowhere' does not exist", "name the folder of a run"),
    "status --results nowhere": ("no results in nowhere", "--results DIR"),
    "cancel --results nowhere": ("no results in nowhere", "--results DIR"),
    "merge one nowhere --out c": ("nowhere does not exist", "name the folders of runs"),
    "board nowhere": ("nowhere: neither a results folder (rows/)", "Parquet files"),
    "audit nothing.csv": ("nothing.csv",),
    "claims check nothing.yaml": ("nothing.yaml: there is no such file of claims",),
    "conform nothing.json": ("no such file: nothing.json", "conform takes files"),
    "adopt nowhere task=ruler/vt model.path=x": ("nowhere: no such file or folder", "JSON lines"),
    "recommend data=nowhere.jsonl": ("nowhere.jsonl", "no such file"),
    "plan task=longbench/qasper data.root=x": ("x/longbench/qasper.jsonl", "kvbench data pull longbench"),
    "data verify data.root=x": ("data.root=x: no such folder", "kvbench data pull"),
    "data verify gsm8k data.root=x": ("gsm8k/test.jsonl", "kvbench data pull gsm8k"),
    "plan reader=mine.py": ("no such file: mine.py; reader=FILE.py names",),
    "plan model=hf model.path=/no/such": ("model.path=/no/such: no such folder", "give a model folder or a hub id"),
    "plan model=hf model.path=no/such": ("model.path=no/such", "no download from the hub"),
    "run model=hf model.path=.": ("model.path=.: the folder holds no config.json",),
    "plan policy=duo_attention budget=0.5 score.path=x.tsv": ("score.path=x.tsv", "one line per layer"),
}
NO_ROWS: dict[str, tuple[str, ...]] = {
    "report table --results one policy=snapvk": ("no row has policy=snapvk", "the rows have h2o_obcache, snapkv"),
    "compare --results one policy=snapkv policy=x": ("no row has policy=x", "the rows have h2o_obcache, snapkv"),
    "gate --baseline one --current two policy=x": ("one: no row has policy=x",),
    "report pages --results one": ("no cell with policy.page", "policy.share=head,layer"),
}
LONGER = ("run budget=", "group=layer_mean")
"""Lines whose errors take more than two lines of a page."""
CODES = dict.fromkeys(USAGE, 2) | dict.fromkeys(MISSING, 3) | dict.fromkeys(NO_ROWS, 4)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two results folders, an empty one, a file that is no table and a book."""
    path = tmp_path_factory.mktemp("errors")
    (path / "data" / "pg19").mkdir(parents=True)
    (path / "data" / "pg19" / "book.txt").write_text("It was late. Nobody came. " * 99)
    for name, right in (("one", 25), ("two", 20)):
        folder(path / name, rows("snapkv", right), rows("h2o_obcache", 10))
    (path / "empty").mkdir()
    (path / "file.txt").write_text("no table")
    return path


@pytest.mark.parametrize("line", CODES)
def test_an_error_is_a_line_that_says_what_to_do_and_writes_nothing(
    kvbench: Command, place: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    finished = kvbench(*line.split(" "))
    message, words = finished.err, (USAGE | MISSING | NO_ROWS)[line]
    assert finished.code == CODES[line], message
    assert message.startswith("kvbench: ") and message.count("\n") == 1 and "Traceback" not in message
    assert all(word in message for word in words), message
    assert len(message) <= 2 * 120 + 1 or any(words in line for words in LONGER)
    assert (finished.out == "" or line.startswith("data verify")) and sorted(place.rglob("*")) == before


def test_every_command_is_in_the_table() -> None:
    assert {line.split()[0] for line in CODES} >= {*commands()}


GPU = ("model.device=cuda", "model.device=cuda:7")


@pytest.mark.parametrize("setting", GPU)
def test_a_gpu_that_is_not_there(kvbench: Command, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    finished = kvbench("run", "policy=full", "task.samples=1", setting)
    assert finished.code == 2 and f"kvbench: {setting}: torch sees no GPU; use another one, or null" in finished.err


EXTRAS = {
    "flash_attn": ("model.kernels=flash_attn", "flash"),
    "triton": ("model.kernels=triton", "triton"),
    "accelerate": ("model.device_map=auto", "kvbench[accelerate]"),
    "wandb": ("logger=wandb", "kvbench[wandb]"),
    "submitit": ("launcher=slurm", "kvbench[slurm]"),
}


@pytest.mark.parametrize("package", EXTRAS)
def test_an_extra_that_is_not_installed(kvbench: Command, lacking: Callable[[str], None], package: str) -> None:
    setting, named = EXTRAS[package]
    lacking(package)
    finished = kvbench("run", "policy=full", "task.samples=1", setting)
    last = finished.err.splitlines()[-1]
    assert finished.code == 2 and setting in last and "pip install" in last and named in last, last


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a package one that is not installed."""
    from importlib import util

    find = util.find_spec

    def lack(package: str) -> None:
        def without(name: str, *rest: str | None) -> object:
            return None if name.partition(".")[0] == package else find(name, *rest)

        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.setattr(util, "find_spec", without)
        for module in [module for name, module in sys.modules.items() if name.startswith("kvbench.") and module]:
            if getattr(module, "find_spec", None) is find:
                monkeypatch.setattr(module, "find_spec", without)

    return lack


def test_slurm_that_is_not_here(kvbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: pytest.fail(f"ran {words}"))
    finished = kvbench("run", "policy=full", "task.samples=1", "launcher=slurm")
    assert finished.code == 2 and "no sbatch and srun on this machine; run the command on a node" in finished.err


CONTINUE = "free some space, then run the same command to continue"
BUG = "(internal error: a bug of kvbench"
TROUBLE: list[tuple[Exception, int, str]] = [
    (OSError(28, "No space left on device", "out/rows/1.jsonl"), 1, "out/rows/1.jsonl: No space left on device: free"),
    (OSError(122, "Disk quota exceeded"), 1, f"Disk quota exceeded: {CONTINUE}"),
    (PermissionError(13, "Permission denied", "out/x"), 2, "out/x: Permission denied: name another file"),
    (OSError(30, "Read-only file system", "out/x"), 2, "out/x: Read-only file system: name another file"),
    (IsADirectoryError(21, "Is a directory", "out"), 2, "out: Is a directory: name another file"),
    (ZeroDivisionError("by\x1b[31m zero"), 1, rf"ZeroDivisionError: by\x1b[31m zero {BUG}"),
    (MemoryError(), 1, f"MemoryError: {BUG}, or a fault of the machine; traceback in"),
]


@pytest.mark.parametrize(("error", "code", "message"), TROUBLE, ids=[str(error) for error, *_ in TROUBLE])
def test_a_machine_in_trouble(
    kvbench: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, message: str
) -> None:
    def fail(*words: object) -> None:
        raise error

    monkeypatch.setattr("kvbench.cli.list.items", fail)
    finished = kvbench("list", "tasks")
    assert finished.code == code and finished.err.startswith(f"kvbench: {message}") and finished.err.count("\n") == 1


def test_a_traceback_that_cannot_be_kept_is_no_second_error(kvbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*words: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvbench.cli.list.items", lambda group: 1 / 0)
    monkeypatch.setattr("tempfile.mkstemp", full)
    finished = kvbench("list", "tasks")
    assert finished.code == 1 and "its traceback could not be written to any file" in finished.err


@pytest.mark.parametrize("command", ["plan", "run"])
def test_bad_lines_of_a_file_are_told_a_line_each(kvbench: Command, tiny_model: Path, command: str) -> None:
    """Before anything is planned."""
    lines = ['{"context": "A", "answers": ["B"]}', '["A"]', '{"context": "A"}']
    Path("mine.jsonl").write_text("\n".join(lines))
    finished = kvbench(
        command, "model=hf", f"model.path={tiny_model}", "task=jsonl", "task.path=mine.jsonl", "results.dir=out"
    )
    assert finished.code == 2 and finished.out == "" and not Path("out").exists()
    first, *named = finished.err.splitlines()
    assert first.startswith("kvbench: task.path=mine.jsonl: 2 lines cannot be read; a line is {")
    assert named == [
        "kvbench: line 2: not a JSON object but a list",
        "kvbench: line 3: it has no answers, only context",
    ]
