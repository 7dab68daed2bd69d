"""Generated command lines over all commands: none may end as an internal error, hang, or be accepted though wrong.

    python -m benchmarks.command_lines [--number 1000] [--seed 1]

A line is a good one of a command, a good one with a fault of a known kind, or a good one whose letters were changed.
All run in this process, in a folder of their own, offline. Prints what failed and a count by command; exit code 1 then.
"""

import argparse
import contextlib
import io
import os
import random
import shlex
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from kvbench.cli.main import commands, main
from kvbench.records import Recorder, ResultsFolder, Row
from kvbench.records.environment import content_hash

Kind = Literal["good", "faulty", "changed"]
SECONDS, LONGEST = 30.0, 300
"""Processor time, and time by the clock, after which a line hangs."""
CODES = (0, 2, 3, 4, 5, 75)
"""Exit codes that a line may end with; 1 is an internal error."""
SIGNS = "={}[](),.:$~+-*/\\'\"|;@#?! \n\t\u202e\x1b\U0001f511\udcff0e1naNif"

NO_INTEGER = "true abc 1.5 {} [1] nan inf 1e30 ''"
SETTINGS = {
    "seed": ("0 7 -3", f"{NO_INTEGER} null 18446744073709551615 range(0,1,0) {{a:1}}"),
    "budget": ("0.1 0.5 64 0.1,0.3", "true -1 0 nan inf {} [0.1] 1.5 abc range(1,9,0)"),
    "store": ("flat int8", "{} 5 true null int5 [flat]"),
    "policy": ("snapkv h2o_obcache", "snapvk {} [] '' 5 true null"),
    "score": ("attn lava caote", "atn {} 5 [attn]"),
    "reader": ("dense quest oracle_topk", "qest {} null 5 /no/such.py"),
    "reader.budget": ("", "0.1 64"),
    "task": ("ruler/niah_single_1 ruler/vt", "ruler/none {} null 5"),
    "model": ("reference shape/llama3.2-1b", "refrence {} null"),
    "task.samples": ("1 2", f"{NO_INTEGER} -1 null 99999999999"),
    "task.context_length": ("256 512", f"{NO_INTEGER} -5 0"),
    "task.chat": ("true false", "5 maybe {} [true]"),
    "policy.window": ("8 all", "true abc {} [8] -1 {part:2} {part:true,of:budget} 1.5"),
    "policy.recent": ("4", "true abc [8] -1 nan"),
    "policy.page": ("1 16", f"{NO_INTEGER} 0 -1"),
    "policy.share": ("head layer model", "heads 5 {} true"),
    "policy.heads.kind": ("uniform", "{?:1} unifrom 5 null [uniform]"),
    "policy.apply.kind": ("drop d2o", "{?:1} merge 5 null [drop]"),
    "policy.apply.ratio": ("", "0.5"),
    "policy._target_": ("", "os.system pathlib.Path.touch"),
    "policy.name": ("", "x"),
    "schedule.evict_after": ("prompt context", "true never 5 {} null"),
    "schedule.prefill_block": ("64 null", f"{NO_INTEGER} 0 -1"),
    "model.dtype": ("float32", "5 float31 true null {}"),
    "model.max_batch": ("8", f"{NO_INTEGER} 0 -1 1e9 null"),
    "model.threads": ("1 null", f"{NO_INTEGER} 0 99999"),
    "model.revision": ("", "abc"),
    "model.path": ("", "/no/such/folder true"),
    "results.dir": ("out results/runs", "'' /dev/null /proc/none [a] {} null"),
    "results.kept": ("none lengths", "true some 5 {} null"),
    "results.lease_seconds": ("60 180.5", "true inf nan 1e-9 -1 0 {} null 180s"),
    "data": ("", "5 [] true null {rot:1}"),
    "launcher": ("none", "slrm {} null"),
    "launcher.signals": ("[SIGTERM]", "SIGKILL [SIGKILL] 5 {} null"),
    "logger": ("none", "wnadb {}"),
    "nothing.here": ("", "1"),
    "polcy": ("", "snapkv"),
    "+policy.more": ("", "1"),
    "hydra.run.dir": ("", "x"),
}
"""Settings of runs, with values that are allowed and values that are not."""
FAULTY_WORDS = "abc | = | =1 | ~policy | policy | -- | -x | --nothing | --nothing=1 | policy@a:b=snapkv | a=b=("
OF_ROWS = "policy=snapkv | budget=0.1 | policy.window=16 | --out new.txt | --out /dev/null |"
NOT_OF_ROWS = "polcy=snapkv | abc | policy=nobody | --format docx | --out . | --out no/such/f.csv | --nothing"
NO_ROWS = "--results nowhere | --results empty | --results file.txt | --results"


class Grammar(NamedTuple):
    """Good lines of a command, what may follow them, and what is wrong behind them, divided by bars.

    changed: whether letters may be changed; no change of them may start long work.
    """

    lines: str
    more: str
    faults: str
    changed: bool = True


GRAMMARS: Mapping[str, Grammar] = {
    "status": Grammar("--results one | --results one --json", "", f"--jsn | one | {NO_ROWS}"),
    "cancel": Grammar("--results one", "", "--force | one | --results nowhere | --results"),
    "report": Grammar(
        "table --results one | rows --results one | cost --results one | rows --results one --format csv",
        f"{OF_ROWS} --format json",
        f"{NOT_OF_ROWS} | {NO_ROWS} | rows=polcy | against=x | --average lva | --format parquet",
    ),
    "compare": Grammar(
        "one two | --results one policy=snapkv policy=h2o_obcache",
        "alpha=0.1 | relevant=0.2 | --format json |",
        "alpha=2 | alpha=nan | alpha=true | relevant=-1 | polcy=h2o_obcache | --format docx | three | --out .",
    ),
    "board": Grammar("one two --out board", "at=0.1 | alpha=0.1", "at=20 | at=x | alpha=2 | nowhere | --nothing | a=b"),
    "gate": Grammar(
        "--baseline one --current two",
        "alpha=0.1 | kept=note | policy=snapkv | --github | --format json | --junit gate.xml",
        "alpha=0 | alpha=inf | kept=maybe | --current one | --current nowhere | --junit . | abc",
    ),
    "export": Grammar(
        "--format markdown --results one | --format junit --results one | --format github-benchmark --results one",
        f"{OF_ROWS} what=bytes",
        f"{NOT_OF_ROWS} | {NO_ROWS} | what=speed | --format",
    ),
    "data": Grammar(
        "list | list --json | list data.root=empty", "", "pg19 | data.rot=x | data.root= | --replace | a=b | =x"
    ),
    "paper": Grammar(
        "list | obcache/table1 --published | obcache/table1 --commands | caote/table2 --plan",
        "--format csv |",
        "--format pdf | --out no/such/f | --nothing | polcy=3 | --format",
        changed=False,
    ),
    "list": Grammar(
        "policies | scores | tasks | models | launchers | papers", "--long | --json |", "nobody | --lon | a=b | {}"
    ),
    "audit": Grammar(
        "means.csv | means.csv --format csv",
        "--format json |",
        "nowhere.csv | file.txt | --format pdf | a=b | --nothing",
    ),
    "claims": Grammar(
        "check claims.yaml --results one",
        "--format json |",
        "chek claims.yaml | check | check nowhere.yaml | check file.txt | --format pdf | a=b | --nothing",
    ),
    "view": Grammar("nowhere --port 0", "", "one | --port x | --port 70000 | --nothing", changed=False),
    "doctor": Grammar("--json", "", "now | --nothing | data.rot=x"),
    "completion": Grammar("bash | zsh | fish", "", "bsh | --nothing"),
    "pack": Grammar("--results one", "--partial", "--prtial | one | --results nowhere | --results"),
    "merge": Grammar(
        "one one --out merged | one empty --out merged", "", "--otu x | one two --out file.txt | one", changed=False
    ),
    "prompts": Grammar("model.path=nowhere", "", "--nothing | polcy=3 | task=rulr/x", changed=False),
    "adopt": Grammar("nowhere model.path=nowhere", "", "--nothing | polcy=3 | two", changed=False),
    "conform": Grammar("--help", "", "", changed=False),
    "recommend": Grammar("data=nowhere.jsonl", "", "loss=all | memory=2 | alpha=nan | requests=0", changed=False),
    "heads": Grammar("--help", "", "", changed=False),
    "probe": Grammar("--help", "", "", changed=False),
}
OF_FOLDERS = ("status", "report", "compare", "gate", "export")
"""Commands whose good lines must not be refused: otherwise their faults are never reached."""
STARTS = {
    "run": "--cfg job",
    "plan": "",
    "heads": "--output heads.json",
    "probe": "oracle_recall --results probes",
    "conform": "--properties",
}
"""Commands that take settings of runs, with the words before those; without a fault only the first two are started."""
OTHER_FAULTS = {
    "heads": "--output . | --output no/such/x.json | policy=h2o_obcache | budget=0.5 | results.dir=x",
    "probe": "--by layr | probe.windws=1 | --format docx | --plot x.gif | probe.windows=true",
    "conform": "score=atn | policy=snapvk | no.json | --nothing | policy={}",
}


@dataclass(frozen=True)
class Line:
    """The words of a command line, and what they are."""

    words: tuple[str, ...]
    kind: Kind


def generated(seed: int) -> Iterator[Line]:
    """Lines without an end, all commands in turn."""
    choice = random.Random(seed)
    while True:
        for command in commands():
            yield _line(command, choice)


def _line(command: str, choice: random.Random) -> Line:
    def one_of(parts: str) -> list[str]:
        return choice.choice(parts.split("|")).split()

    kind: Kind = choice.choices(("good", "faulty", "changed"), (2, 5, 2))[0]
    if command not in STARTS or (kind != "faulty" and command in GRAMMARS):
        grammar = GRAMMARS[command]
        words = one_of(grammar.lines) + one_of(grammar.faults if kind == "faulty" else grammar.more)
        kind = "good" if kind == "changed" and not grammar.changed else kind
    else:
        fault: list[str] = []
        if kind == "faulty" and choice.random() < 0.3:
            fault = one_of(OTHER_FAULTS.get(command, FAULTY_WORDS))
        elif kind == "faulty":
            keys = [key for key in SETTINGS if command != "conform" or key.partition(".")[0] in ("policy", "score")]
            key = choice.choice(keys)
            fault = [f"{key}={choice.choice(SETTINGS[key][1].split())}"]
        free = [key for key in SETTINGS if SETTINGS[key][0] and not any(word.startswith(f"{key}=") for word in fault)]
        settings = choice.sample(free, choice.randrange(4)) if command in ("run", "plan") else []
        good = [f"{key}={choice.choice(SETTINGS[key][0].split())}" for key in settings]
        if command == "run":
            good = [word.partition(",")[0] for word in good]  # --cfg shows one cell
        # a faulty run is refused before anything is run; --cfg prints settings as they are written
        words = [*("" if command == "run" and fault else STARTS[command]).split(), *good, *fault]
    if kind == "changed" and words:
        words[choice.randrange(len(words))] = _changed(choice.choice(words), choice)
    return Line((command, *words), kind)


def _changed(word: str, choice: random.Random) -> str:
    """The word with letters left out, put in or replaced."""
    for _ in range(choice.randint(1, 3)):
        place, sign = choice.randrange(len(word) + 1), choice.choice(SIGNS)
        word = choice.choice((word[:place] + word[place + 1 :], word[:place] + sign + word[place:], word + sign * 3))
    return word


def failure(line: Line) -> str | None:
    """What is wrong with how a line ends, or None. Runs it in this process."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _limited():
            code = int(main(list(line.words)))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"raised {type(error).__name__}: {error}"
    text = "".join(_written(stream) for stream in (out, err))
    if code not in CODES or "Traceback (most recent" in text or "internal error: a bug" in text:
        return f"exit code {code}: {text.strip()[-300:]}"
    refused = code in (2, 3) and "unknown format" not in text  # report rows has fewer than report table
    if line.kind == "good" and line.words[0] in OF_FOLDERS and refused:
        return f"refused: {text.strip()[-300:]}"
    if line.kind == "faulty" and code not in (2, 3, 4):
        return f"accepted with exit code {code}"
    return None


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return bytes(stream.buffer.read()).decode("utf-8", "replace")


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def hangs(*_: object) -> None:
        raise SystemExit("hangs")

    before = [(number, signal.signal(number, hangs)) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in before:
            signal.signal(number, handler)


@contextlib.contextmanager
def place() -> Iterator[None]:
    """A new working folder with two results folders, an empty one and a file; nothing is fetched."""
    before, offline = os.getcwd(), os.environ.get("HF_HUB_OFFLINE")
    with tempfile.TemporaryDirectory(prefix="kvbench-lines-") as folder:
        os.chdir(folder)
        os.environ["HF_HUB_OFFLINE"] = "1"
        for name, right in (("one", 8), ("two", 7)):
            for policy in ("snapkv", "h2o_obcache"):
                _write(Path(name), policy, right)
        Path("empty").mkdir()
        Path("file.txt").write_text("no table")
        Path("means.csv").write_text(MEANS)
        Path("claims.yaml").write_text(CLAIMS)
        try:
            yield
        finally:
            os.chdir(before)
            os.environ.pop("HF_HUB_OFFLINE")
            os.environ.update({} if offline is None else {"HF_HUB_OFFLINE": offline})


MEANS = "method,host,task,mean,n\nA,,x,7.6,250\nB,A,x,36.8,250\n"
CLAIMS = """
says: What the two folders can say.
families: {all: {tasks: [ruler/niah_single_1], samples: 5}}
claims:
  - name: one
    says: B is better.
    family: all
    a: {score: attn}
    b: {score: "null"}
    shows: difference
    expects: b better
"""


def _write(folder: Path, policy: str, right: int) -> None:
    columns = {"model": "reference", "task": "ruler/niah_single_1", "task_version": "1", "context_length": 512}
    columns |= {
        "score": "attn",
        "budget": "0.1",
        "variant": "paper",
        "layout": "kv_heads",
        "schedule": "prompt",
        "seed": 1,
        "code": "c0de00000000",
    }
    description = {"policy": {"name": policy, "window": 16}, "score": {"name": "attn"}}
    cell = content_hash(description)[:16]
    ResultsFolder(folder).write_cell(cell, description)
    columns |= {"cell": cell, "policy": policy, "metric": "string_match_all"}
    rows = [Row(sample=sample, value=float(sample < right), **columns) for sample in range(10)]  # type: ignore[arg-type]
    with Recorder(ResultsFolder(folder)) as recorder:
        recorder.append(rows)


def failures(number: int, seed: int, tell: Callable[[str], object] = lambda text: None) -> list[tuple[Line, str]]:
    """The lines of so many that end badly, each told as it ends, and how."""
    failed, kinds = list[tuple[Line, str]](), Counter[str]()
    with place():
        for line, _ in zip(generated(seed), range(number), strict=False):
            kinds[line.kind] += 1
            if (why := failure(line)) is not None:
                failed.append((line, why))
                tell(f"{line.kind}: kvbench {shlex.join(line.words)!a}\n    {why!a}")
    tell(f"{number} lines of {len(commands())} commands ({dict(kinds)}), seed {seed}: {len(failed)} end badly")
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    raise SystemExit(1 if failures(flags.number, flags.seed, print) else 0)
