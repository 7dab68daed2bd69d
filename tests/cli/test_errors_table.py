"""Every way to ask for what is not there: what is wrong, the value, what is allowed or nearest, the way on, a code.

Settings of run and plan are in test_errors.py; here is everything else. All in this process, one line each.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.cli.main import commands
from kvbench.tasks.data.lock import read_lock
from tests.cli.conftest import Command
from tests.cli.test_comparing import folder, rows

DUO = "plan policy=duo_attention budget=0.5"
TABLE: dict[str, tuple[str, int, tuple[str, ...]]] = {
    # names
    "command": ("rnu", 2, ("unknown command rnu", "did you mean run?", "allowed: run, ")),
    "command of others": ("evaluate", 2, ("unknown command evaluate: write kvbench run",)),
    "list of others": ("list presses", 2, ("cannot list presses: kvbench list policies",)),
    "list": ("list polices", 2, ("cannot list polices", "did you mean policies?")),
    "listed item": ("list policies snapvk", 2, ("unknown policy snapvk", "did you mean snapkv?")),
    "flag of list": ("list policies --lon", 2, ("--lon", "did you mean --long?")),
    "task of many": ("plan task=ruler/niah_sngle_1", 2, ("did you mean ruler/niah_single_1?", " more")),
    "group of tasks": ("plan task=longbnch", 2, ("unknown task longbnch", "did you mean longbench?")),
    "model shape": ("plan model=shape/llama3", 2, ("did you mean shape/llama3",)),
    "model prefix": (
        "plan model=llama3.1-8b",
        2,
        ("did you mean llama3.1-8b-instruct?", "model=hf model.path=FOLDER_"),
    ),
    "model family": ("plan model=llama", 2, ("did you mean llama3-8b-instruct?",)),
    "reader": ("plan reader=qest", 2, ("unknown reader qest", "did you mean quest?")),
    "setting of a reader": ("plan reader=quest reader.pages=3", 2, ("reader.pages", "did you mean reader.page?")),
    "budget of a reader": (
        "plan reader=quest reader.budget=1.5",
        2,
        ("reader.budget=1.5: allowed: KV pairs per head",),
    ),
    "reader of a store": (
        "plan reader=quest store=int4",
        2,
        ("reader=quest reads a part of a cache", "store=int4 quantizes the pairs", "use store=flat, or reader=dense"),
    ),
    "reader of a text": ("plan reader=quest task=pg19 data.root=here", 2, ("task pg19 has no answer",)),
    "reader of a server": (
        "plan reader=quest model=endpoint endpoint.url=http://127.0.0.1:1/v1 endpoint.method=full",
        2,
        ("reader=quest: a model with settings endpoint.* evicts by itself",),
    ),
    "merging in a probe": (
        "probe set_error policy=snapkv policy.apply=d2o budget=0.2",
        2,
        ("a probe is about which pairs are kept, but policy.apply=d2o changes", "use policy.apply=drop"),
    ),
    "reader of a probe": (
        "probe set_error reader=quest",
        2,
        ("a probe is about what is kept", "reader=quest reads a part of a cache", "use reader=dense"),
    ),
    "file of a reader": ("plan reader=mine.py", 3, ("no such file: mine.py; reader=FILE.py names",)),
    "launcher": ("plan launcher=slrm", 2, ("unknown launcher slrm", "did you mean slurm?")),
    "logger": ("plan logger=wnadb", 2, ("unknown logger wnadb", "did you mean wandb?")),
    "folder setting": ("plan results.dri=x", 2, ("unknown setting results.dri", "did you mean results.dir?")),
    "data setting": ("plan data.rot=x", 2, ("did you mean data.root?",)),
    "misspelt group": ("plan polcy.window=3", 2, ("unknown setting polcy.window", "did you mean policy.window?")),
    "host": ("plan score=caote score.host=obcache_jont", 2, ("score.host=obcache_jont", "did you mean obcache_joint?")),
    "report": ("report tabel", 2, ("unknown report tabel", "did you mean table?")),
    "format": ("report table --results one --format markdwn", 2, ("'markdwn'", "did you mean markdown?", "|csv|")),
    "flag of report": ("report table --fromat csv", 2, ("unknown flag --fromat", "did you mean --format?", "--help")),
    "column": (
        "report table --results one polcy=h2o_obcache",
        2,
        ("no column 'polcy'", "did you mean policy?", "policy.window"),
    ),
    "value": (
        "report table --results one policy=snapvk",
        4,
        ("no row has policy=snapvk", "the rows have h2o_obcache, snapkv"),
    ),
    "rows": ("report table --results one rows=polcy", 2, ("rows=polcy", "did you mean policy?", "policy.window")),
    "against": ("report table --results one against=x", 2, ("against=x", "allowed: policy h2o_obcache, snapkv")),
    "average": ("report table --results one --average lva", 2, ("lva", "allowed: official, lava, caote")),
    "plot": ("report plot tradeof --out x.png", 2, ("'tradeof'", "did you mean tradeoff?")),
    "plot file": ("report plot bars --results one --out x.gif", 2, ("'x.gif'", "--out FILE.pdf|.png|.svg")),
    "plot setting": (
        "report plot tradeoff --results one --out x.png x=tokens",
        2,
        ("x=tokens", "fraction|pairs|bytes"),
    ),
    "page file": ("report html --results one", 2, ("report html: ", "required: --out", "kvbench report --help")),
    "history": ("report history --out x.html", 2, ("kvbench report history DIR DIR --out history.html",)),
    "pages without a partner": (
        "report pages --results one",
        4,
        ("no cell with policy.page", "policy.share=head,layer"),
    ),
    "format of pages": ("report pages --results one --format pdf", 2, ("--format", "pdf", "markdown")),
    "parquet": ("report rows --results one --format parquet", 2, ("name it with --out FILE.parquet",)),
    "setting of compare": ("compare one two alpha=2", 2, ("alpha=2", "between 0 and 1", "alpha=0.05")),
    "one side": ("compare one", 2, ("DIR_A DIR_B", "got one")),
    "column of compare": ("compare one two polic=snapkv", 2, ("no column 'polic'", "did you mean policy?")),
    "flag of compare": ("compare one two --formt csv", 2, ("unknown flag --formt", "did you mean --format?")),
    "required flag": ("gate --baseline one", 2, ("required: --current", "kvbench gate --help")),
    "same folder": ("gate --baseline one --current one", 2, ("the same folder, 'one'", "name two")),
    "folder to view": ("view nowhere", 3, ("results folder 'nowhere' does not exist", "name the folder of a run")),
    "folder to view twice": ("view one one", 2, ("one is named twice", "name each folder once")),
    "port": ("view one --port 70000", 2, ("--port 70000", "allowed: 0 to 65535")),
    "host to listen on": ("view one --host 192.0.2.1", 2, ("cannot listen on 192.0.2.1", "name another --port")),
    "flag of view": ("view one --prot 1", 2, ("unknown flag --prot", "did you mean --port?")),
    "export without format": ("export --results one", 2, ("export: ", "--format", "kvbench export --help")),
    "export format": ("export --results one --format juni", 2, ("'juni'", "did you mean junit?")),
    "quantity": ("export --results one --format junit what=speed", 2, ("what=speed", "accuracy, bytes, seconds")),
    "heads": ("heads --output x.json policy=h2o_obcache", 2, ("heads takes no policy", "leave it out")),
    "audit": ("audit nothing.csv", 3, ("nothing.csv",)),
    "claims": ("claims check nothing.yaml", 3, ("nothing.yaml: there is no such file of claims",)),
    "verb of data": ("data pul pg19", 2, ("unknown data pul", "did you mean pull?")),
    "data": ("data pull pg20", 2, ("no data pg20", "did you mean pg19?")),
    "part of data": ("data pull longbench/qaspr", 2, ("no part longbench/qaspr", "did you mean longbench/qasper?")),
    "nothing to pull": ("data pull", 2, ("name what to pull", "kvbench data list")),
    "setting of data": ("data pull pg19 data.rot=x", 2, ("'data.rot=x'", "data.root=FOLDER")),
    "flag of data": ("data verify --replace", 2, ("unknown flag --replace", "allowed: --help")),
    "paper item": ("paper obcache/table11", 2, ("obcache/table11", "did you mean obcache/table1?", " more")),
    "pack": ("pack --results nowhere", 3, ("results folder 'nowhere' does not exist", "run `kvbench run`")),
    "board": ("board nowhere", 3, ("nowhere: neither a results folder (rows/)", "Parquet files")),
    "board of nothing": ("board --out c", 2, ("board takes folders", "got nothing")),
    "board of unpacked rows": ("board one", 2, ("one has no manifest.json", "kvbench pack --results one")),
    "board twice": ("board one ./one", 2, ("one is named twice", "name each source once")),
    "sizes of a board": ("board one at=20", 2, ("at=20", "shares of the full cache's bytes", "at=0.1,0.2")),
    "merge": ("merge one nowhere --out c", 3, ("nowhere does not exist", "name the folders of runs")),
    "merge of one": ("merge one --out c", 2, ("two results folders or more, not 1", "kvbench merge A B --out C")),
    "merge twice": ("merge one ./one --out c", 2, ("one is named twice",)),
    "merge over": ("merge one two --out two", 2, ("two is not empty", "name a folder that does not exist")),
    "merge of rows that differ": ("merge one two --out c", 2, ("two outcomes", "differ in value", "leave one")),
    "merge into a bucket": ("merge one two --out s3://b/c", 2, ("'s3://b/c' is an address", "copy it there")),
    "results in a bucket": ("plan results.dir=s3://b/c", 2, ("'s3://b/c' is an address", "mounted")),
    "merge into nothing": ("merge one two", 2, ("required: --out", "kvbench merge --help")),
    "flag of prompts": ("prompts --nothing", 2, ("unknown flag --nothing", "allowed: --help, --out")),
    "answers": ("adopt nowhere task=ruler/vt model.path=x", 3, ("nowhere: no such file or folder", "JSON lines")),
    "paper format": (
        "paper obcache/table1 --format pdf",
        2,
        ("--format pdf", "allowed: csv, html, json, latex, markdown, text"),
    ),
    "paper setting": ("paper obcache/table1 polcy=3", 2, ("unknown setting polcy", "did you mean policy?")),
    "paper launcher": ("paper lava/table14 --smoke launcher=local", 2, ("launcher=local", "measured by a probe")),
    "probe": ("probe oracle", 2, ("unknown probe oracle", "did you mean oracle_recall?")),
    "probe column": ("probe oracle_recall --by layr", 2, ("--by layr", "did you mean layer?")),
    "probe with a launcher": ("probe oracle_recall launcher=local", 2, ("launcher=local", "leave launcher out")),
    "probe of true": ("probe oracle_recall probe.windows=true", 2, ("probe.windows=", "true", "allowed")),
    "probe setting": ("probe oracle_recall probe.windws=1", 2, ("probe.windws", "did you mean probe.windows?")),
    "property of nothing": ("conform --properties", 2, ("score=NAME, policy=NAME", "kvbench list")),
    "property of none": ("conform --properties score=atn", 2, ("unknown score atn", "did you mean attn?")),
    "shell": ("completion bsh", 2, ("completion for bsh", "did you mean bash?")),
    "doctor": ("doctor now", 2, ("got now", "data.root=FOLDER")),
    "status": ("status --rsults one", 2, ("--rsults", "did you mean --results?")),
    "word of status": ("status one", 2, ("cannot read one", "allowed: --help, --json, --results")),
    "shard": ("run --shard 9", 2, ("--shard 9", "allowed: I/N, such as 2/8")),
    "shard beyond": ("run --shard 9/4", 2, ("shard 9/4", "allowed: 1/N to N/N")),
    "shard of nobody": ("run --shard auto", 2, ("none of JOB_COMPLETION_INDEX, SLURM_ARRAY_TASK_ID, ", "I/N")),
    "shard of auto": ("run --shard auto/x", 2, ("--shard auto/x", "or auto or auto/N")),
    "folders of a report": (
        "report table --results one --results two",
        2,
        ("one folder is read", "kvbench merge one two --out DIR"),
    ),
    "folders of compare": (
        "compare --results one --results two policy=h2o_obcache policy=snapkv",
        2,
        ("one folder is read", "kvbench merge one two --out DIR"),
    ),
    "folders of probe": ("probe oracle_recall --results one --results two", 2, ("kvbench merge one two --out DIR",)),
    "folders of status": ("status --results one --results two", 2, ("kvbench merge one two --out DIR",)),
    "recommendation of nothing": ("recommend memory=2GiB", 2, ("what is read?", "data=FILE.jsonl", "task=NAME")),
    "memory of a recommendation": ("recommend task=ruler/vt memory=2", 2, ("memory=2", "such as memory=2GiB")),
    "tolerated loss": ("recommend task=ruler/vt loss=all", 2, ("loss=all", "such as loss=2")),
    "two sources of prompts": ("recommend task=ruler/vt data=x.jsonl", 2, ("data=x.jsonl and task=ruler/vt", "leave")),
    "recommendation of one task": (
        "recommend task=ruler/vt,ruler/fwe",
        2,
        ("task has several values", "differ in", "name one"),
    ),
    "recommendation on a text": ("recommend task=efficiency", 2, ("efficiency", "data=FILE")),
    "recommendation without a reference": ("recommend task=ruler/vt reference=none", 2, ("reference=none", "leave")),
    "recommendation elsewhere": ("recommend task=ruler/vt launcher=local", 2, ("launcher=local", "leave launcher out")),
    "formats of a recommendation": ("recommend task=ruler/vt --json --format csv", 2, ("--json and --format csv",)),
    "file of a recommendation": ("recommend data=nowhere.jsonl", 3, ("nowhere.jsonl", "no such file")),
    # crossings and sizes
    "entropy of negatives": (
        "plan policy=lava score=key_norm",
        2,
        ("key_norm can be negative", "choose another"),
    ),
    "variance of one row": ("plan policy=tova_obcache score=cake", 2, ("policy.window=1", "use 2 or more")),
    "all of a plan": ("plan task.samples=99999999", 2, ("task.samples=99999999", "10000000 rows", "ask for fewer")),
    "range": ("plan budget=range(1,1000000000)", 2, ("more than 100000 values", "choose a larger step")),
    "lists": (
        "plan budget=range(0.001,0.9,0.0001) score=attn,lava policy=h2o_obcache,snapkv task=ruler",
        2,
        ("8990 of budget", "are 467480 combinations", "name fewer values"),
    ),
    # what is missing
    "rows of a folder": ("report table --results nowhere", 3, ("'nowhere' does not exist", "kvbench run", "--results")),
    "folder of status": ("status --results nowhere", 3, ("no results in nowhere", "--results DIR")),
    "folder of cancel": ("cancel --results nowhere", 3, ("no results in nowhere", "--results DIR")),
    "side of compare": ("compare one nowhere", 3, ("'nowhere' does not exist", "kvbench run")),
    "empty folder": ("report table --results empty", 3, ("'empty' is not a results folder", "--results")),
    "file for a folder": ("report table --results file.txt", 3, ("'file.txt' is not a folder", "--results")),
    "timings": ("report efficiency --results one", 3, ("timings", "kvbench run task=efficiency")),
    "golden case": ("conform nothing.json", 3, ("no such file: nothing.json", "conform takes files")),
    "data of a task": (
        "plan task=longbench/qasper data.root=x",
        3,
        ("x/longbench/qasper.jsonl", "kvbench data pull longbench"),
    ),
    "data nowhere": ("data verify data.root=x", 3, ("data.root=x: no such folder", "kvbench data pull")),
    "data to verify": ("data verify gsm8k data.root=x", 3, ("gsm8k/test.jsonl", "kvbench data pull gsm8k")),
    "model": ("plan model=hf model.path=/no/such", 3, ("model.path=/no/such", "give a model folder or a hub id")),
    "model of the hub": (
        "plan model=hf model.path=no/such",
        3,
        ("model.path=no/such", "no download from the hub"),
    ),
    "model without name": ("plan model=hf", 2, ("model.path has no default", "add model.path=FOLDER_OR_HUB_ID")),
    "head table": (DUO, 2, ("score.path has no default", "kvbench heads")),
    "head table file": (
        "plan policy=duo_attention budget=0.5 score.path=x.tsv",
        3,
        ("score.path=x.tsv", "one line per layer"),
    ),
    "head table text": (
        "plan policy=duo_attention budget=0.5 score.path=file.txt",
        2,
        ("file.txt is not a table", "one line per layer"),
    ),
    "merged keys rotated": (
        "plan policy=snapkv policy.apply=d2o policy.positions=cache",
        2,
        ("policy.apply=d2o makes keys that no position has rotated (cam and nearest", "use policy.apply=drop"),
    ),
    "channels again": (
        "plan policy=snapkv policy.apply=think schedule.decode_every=4",
        2,
        ("policy.apply=think follows the eviction of a prompt only", "schedule.decode_every=null"),
    ),
    "channels of a budget in bytes": (
        "plan policy=snapkv policy.apply=think budget=1MiB",
        2,
        ("policy.apply=think removes channels of keys", "or a number of KV pairs or a fraction"),
    ),
    "kind of apply": (
        "plan policy=snapkv policy.apply=merge",
        2,
        ("policy.apply.kind=merge", "drop, cam, d2o, nearest, think"),
    ),
    "kind that a shell split": (
        "plan policy=snapkv policy.apply=kind:think policy.apply=ratio:0.5",
        2,
        ("between quotes if it has settings", "policy.apply={kind:NAME,SETTING:VALUE}"),
    ),
    "budget of no reader": ("plan policy=snapkv reader.budget=64", 2, ("dense has none; add reader=NAME: block_topk",)),
    # what cannot be written or read
    "results": ("plan results.dir=/proc/x", 2, ("'/proc/x' cannot be written", "results.dir=FOLDER")),
    "page": ("report html --results one --out /no/x.html", 2, ("cannot write '/no/x.html'", "--out")),
    "junit": ("gate --baseline one --current two --junit /no/x.xml", 2, ("cannot write '/no/x.xml'", "--out")),
    "heads file": ("heads --output /no/such/x.json", 2, ("there is no folder /no/such", "make it")),
    "a folder for heads": ("heads --output empty", 2, ("--output empty is a folder",)),
    "a folder for a file": (
        "plan policy=duo_attention budget=0.5 score.path=empty",
        3,
        ("score.path=empty", "no such file"),
    ),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two results folders, an empty one and a file that is no table."""
    path = tmp_path_factory.mktemp("errors")
    for name, right in (("one", 25), ("two", 20)):
        folder(path / name, rows("snapkv", right), rows("h2o_obcache", 10))
    (path / "empty").mkdir()
    (path / "file.txt").write_text("no table")
    return path


@pytest.mark.parametrize("name", TABLE)
def test_an_error_is_a_line_that_says_what_to_do(
    kvbench: Command, place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    command, code, words = TABLE[name]
    finished = kvbench(*command.split())
    message = finished.err
    assert finished.code == code, message
    assert message.startswith("kvbench: ") and message.count("\n") == 1 and "Traceback" not in message
    assert all(word in message for word in words), message
    assert len(message) <= 2 * 120 + 1 and sorted(place.rglob("*")) == before


def test_every_command_is_in_the_table() -> None:
    assert {command.split()[0] for command, *_ in TABLE.values()} >= {*commands()} and read_lock()


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


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            OSError(28, "No space left on device", "out/rows/1.jsonl"),
            1,
            "out/rows/1.jsonl: No space left on device: free",
        ),
        (
            OSError(122, "Disk quota exceeded"),
            1,
            "Disk quota exceeded: free some space, then run the same command to continue",
        ),
        (
            PermissionError(13, "Permission denied", "out/x"),
            2,
            "out/x: Permission denied: name another file",
        ),
        (OSError(30, "Read-only file system", "out/x"), 2, "out/x: Read-only file system: name another file"),
        (IsADirectoryError(21, "Is a directory", "out"), 2, "out: Is a directory: name another file"),
        (
            ZeroDivisionError("by\x1b[31m zero"),
            1,
            r"ZeroDivisionError: by\x1b[31m zero (internal error: a bug of kvbench",
        ),
        (MemoryError(), 1, "MemoryError: (internal error: a bug of kvbench, or a fault of the machine; traceback in"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
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
