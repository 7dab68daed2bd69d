"""What a version of a task stands for, as one hash: prompts, answers, settings and scores on data made up here.

python -m tests.tasks.versions      writes tests/golden/task_versions.json anew
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
from transformers import AutoTokenizer

from kvbench.config.entries import options
from kvbench.extras.babilong.tests import rows as babilong_rows
from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.extras.helmet.tests import rows as helmet_rows
from kvbench.extras.longproc.tests import rows as longproc_rows
from kvbench.extras.nolima.tests import rows as nolima
from kvbench.extras.ruler_v2.tests import rows as ruler_v2_rows
from kvbench.extras.scbench_official.tests import rows as official_rows
from kvbench.extras.trajectories.tests import bfcl_package, runs
from kvbench.models.prompts.tokens import TokensOf
from kvbench.tasks.task import Sample
from tests.tasks.infinitebench import conftest as infinitebench
from tests.tasks.longbench import conftest as longbench
from tests.tasks.ruler.conftest import hotpotqa, squad
from tests.tasks.scbench import rows as scbench

GOLDEN = Path(__file__).parents[1] / "golden"
TABLE = GOLDEN / "task_versions.json"
SETTINGS = ("chat", "truncation", "stop", "stop_replaces", "min_new_tokens", "metric")
FIELDS = ("id", "context", "question", "answer_prefix", "references", "max_new_tokens", "choices")
PROBES = ("", "{0}", "{all}\nmore", "x {0}. Y", "The answer is: B", "A", "1 2 3", "Paragraph 3 or 4", "段落3")
"""Answers that are scored; {0} is the first reference, {all} are all of them."""


def names() -> list[str]:
    """Every task, those of RULER in both eras; `efficiency` times tokens and has no prompt to hash."""
    names = [name for name in options("task") if name != "efficiency"]
    return names + [f"{name} era=2024" for name in names if name.startswith("ruler/")]


def table(root: Path) -> dict[str, dict[str, str]]:
    """Version and hash of every task, on the data in `root`."""
    made_up(root)
    tokens = TokensOf(AutoTokenizer.from_pretrained(GOLDEN / "ruler" / "tokenizer"))
    return dict(entry(name, root, tokens) for name in names())


def entry(name: str, root: Path, tokens: TokensOf) -> tuple[str, dict[str, str]]:
    """Version and hash of a task."""
    file, _, era = name.partition(" era=")
    fields: dict[str, Any] = {"samples": 1 if file.startswith("needle/") else 2}
    fields |= {"era": era} if era else {}
    fields |= {"path": str(root / "mine.jsonl")} if file == "jsonl" else {}
    fields |= {"path": str(GOLDEN / "tables" / "mine.csv")} if file == "hub" else {}
    fields |= {"path": str(root / "runs.jsonl")} if file.startswith("trajectories/") else {}
    fields |= {"context_length": 200} if file == "nolima" else {}
    fields |= {"splitter": "bare"} if getattr(task_of(file, str(root), **fields), "haystack", "") == "essay" else {}
    task: Any = task_of(file, str(root), **fields)
    settings = {setting: getattr(task, setting) for setting in SETTINGS}
    settings |= {"decodes_joined": True} if task.decodes_joined else {}
    content = {"settings": settings, "samples": []}
    with bfcl_package.installed(root):
        for sample in task.generate(tokens, range(task.samples)):
            assert isinstance(sample, Sample), sample
            content["samples"].append([[getattr(sample, field) for field in FIELDS], list(_scores(task, sample))])
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return name, {"version": task.version, "sha256": digest}


def _scores(task: Any, sample: Sample) -> Iterator[float | str]:
    for probe in PROBES if sample.references else ():
        answer = probe.replace("{0}", sample.references[0]).replace("{all}", " ".join(sample.references))
        try:
            yield round(task.score(answer, sample), 12)
        except ValueError as error:
            yield type(error).__name__


def made_up(root: Path) -> None:
    """A folder for data.root with a little of everything that these tasks read."""
    for folder in ("paul_graham_essays", "ruler/simonjegou/4096", "longbench/config", "infinitebench", "pg19"):
        (root / folder).mkdir(parents=True)
    words = (f"word{number}{'.' if number % 9 == 8 else ''}" for number in range(2000))
    (root / "paul_graham_essays" / "a.txt").write_text(" ".join(words) + "\n")
    own = [
        {"context": "Two words.", "question": "How many?", "answers": ["two", "2"]},
        {"messages": [{"role": role, "content": role} for role in ("user", "assistant", "user")], "answers": ["3"]},
    ]
    (root / "mine.jsonl").write_text("\n".join(map(json.dumps, own)))
    runs.write(root / "runs.jsonl", runs.THREE)
    bfcl_package.write(root)
    (root / "pg19" / "1.txt").write_bytes(b"It was late.\r\nNobody came.")
    (root / "pg19" / "2.txt").write_text("Call me what you like.")
    for dataset, content in (("squad", squad(40)), ("hotpotqa", hotpotqa(60))):
        (root / "ruler" / f"{dataset}.json").write_text(json.dumps(content))
    members = [name.partition("/")[2] for name in options("task") if name.startswith("ruler_published/")]
    published = [
        {"context": f"A {m} {n}. ", "question": "What? ", "answer_prefix": "It is", "answer": ["a", "b"], "task": m}
        for m in members
        for n in range(2)
    ]
    parquet.write_table(pa.Table.from_pylist(published), root / "ruler/simonjegou/4096/test-0.parquet")
    prompts = {member: "Read {context} then {input} so" for member in longbench.MEMBERS}
    (root / "longbench" / "config" / "dataset2prompt.json").write_text(json.dumps(prompts))
    (root / "longbench" / "config" / "dataset2maxlen.json").write_text(json.dumps(dict.fromkeys(prompts, 16)))
    for member in longbench.MEMBERS:
        for suffix in ("", "_e"):
            longbench.write(root, member + suffix, longbench.row(member), longbench.row(member, context="second"))
    v2 = json.loads((GOLDEN / "longbench" / "v2.json").read_text("utf-8"))
    (root / "longbench_v2" / "prompts").mkdir(parents=True)
    reasoned = json.loads((GOLDEN / "longbench" / "v2_cot.json").read_text("utf-8"))["templates"]
    for name, template in zip(("0shot", "0shot_cot", "0shot_cot_ans"), (v2["template"], *reasoned), strict=True):
        (root / "longbench_v2" / "prompts" / f"{name}.txt").write_text(template, "utf-8")
    (root / "longbench_v2" / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in v2["rows"]), "utf-8")
    tables = {"yarn_mistral_templates": infinitebench.TEMPLATES}
    (root / "infinitebench" / "prompts.json").write_text(json.dumps(tables), "utf-8")
    for member in infinitebench.MEMBERS:
        infinitebench.write(root, member, infinitebench.row(member), infinitebench.row(member, context="other"))
    for member in scbench.ANSWERS:
        scbench.write(root, f"scbench/{member}", scbench.row(member))
    for member in official_rows.MEMBERS:
        scbench.write(root, f"scbench_official/{member}", *official_rows.rows(member))
    paragraphs = [{"context": "One.", "question": f"{n}?", "answers": {"text": ["The Sky", "sun"]}} for n in range(2)]
    scbench.write(root, "squad/train", *paragraphs)
    problem = "A baker fills 12 trays. " * 30 + "How many rolls is that?"
    scbench.write(root, "gsm8k/test", *[{"question": problem, "answer": "So. #### 72"}] * 2)
    for name in ("math500/test", "aime/2024", "aime/2025"):
        scbench.write(root, name, *({"problem": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(2)))
    babilong_rows.write(root)
    scbench.write(root, "oolong/synth_test", *map(oolong_row, ("[3]", "[datetime.date(2024, 5, 1)]")))
    nolima.write(root)
    helmet_rows.write(root)
    longproc_rows.write(root)
    ruler_v2_rows.write(root, ruler_v2_rows.made_up())
    for needles in (2, 4, 8):
        for part in range(2):
            scbench.write(root, f"mrcr/{needles}needle_{part}", mrcr_row(part))
    chapters = [{"chapter": f"It was a grey morning {n}.", "summary_text": f"Late {n}."} for n in range(2)]
    scbench.write(root, "booksum/test", *chapters)


def mrcr_row(number: int, chars: int = 90) -> dict[str, Any]:
    """A row of MRCR: two poems, of which the second is asked for."""
    turns = [
        ("user", "write a poem"),
        ("assistant", "Rose."),
        ("user", "write a poem"),
        ("assistant", f"Tulip {number}."),
    ]
    ask = "Prepend x1 to the second (1 indexed) poem."
    messages = [{"role": role, "content": text} for role, text in [*turns, ("user", ask)]]
    answer = {"answer": f"x1Tulip {number}.", "random_string_to_prepend": "x1", "n_chars": chars}
    return {"prompt": json.dumps(messages), **answer}


def oolong_row(answer: str, context_len: int = 2000) -> dict[str, Any]:
    """A row of OOLONG about three texts."""
    kind = "ANSWER_TYPE.DATE" if "date" in answer else "ANSWER_TYPE.NUMERIC"
    asked = {"question": "How many, or when?", "answer": answer, "answer_type": kind}
    return {"context_window_text": "One.\nTwo.\nThree.", "context_len": context_len, **asked}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        TABLE.write_text(json.dumps(table(Path(folder)), indent=1) + "\n")
