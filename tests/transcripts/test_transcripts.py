"""What a model is given here for a prompt is what the official code gives it: ids, eviction point, ends of answers."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import yaml

from kvbench.config.entries import options
from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.extras.scbench_official.tests import rows as official_rows
from kvbench.models.prompts.build import build
from kvbench.models.prompts.chat import give_arguments
from kvbench.models.prompts.raw_text import begin
from kvbench.models.prompts.tokens import TokensOf, ends, template_tokens
from kvbench.tasks.likelihood import Likelihood
from kvbench.tasks.task import Sample
from tests.tasks.scbench.rows import write as write_rows
from tests.transcripts.families import FAMILIES, FOLDER, model_ends, tokenizer
from tests.transcripts.made_up import (
    FILES,
    NEEDLES,
    SAMPLES,
    SYSTEM,
    contexts,
    conversation,
    members,
    ruler_rows,
    write,
)
from tests.transcripts.transcript import (
    LIMITS,
    NOLIMA_TOKENS,
    RULER_TOKENS,
    SCBENCH_LIMITS,
    Transcript,
    from_fields,
    transcript,
)

BENCHMARKS = sorted(path.stem for path in FOLDER.glob("*.json"))
ESSAYS = [f"ruler/niah_{name}" for name in ("single_2", "single_3", "multikey_1", "multivalue", "multiquery")]
SYSTEMS = {"nolima": "You are a helpful assistant"}
"""The system turns of protocols that have one."""

REASONING = " It is {word0}, \u5929.\n"
"""The first answer of LongBench v2 with reasoning."""


@cache
def golden(benchmark: str) -> dict[str, Transcript]:
    """The official transcripts of a benchmark by the name of the case."""
    content = json.loads((FOLDER / f"{benchmark}.json").read_text("utf-8"))
    return {name: from_fields(fields) for name, fields in content["transcripts"].items()}


def cases() -> list[str]:
    return [case for benchmark in BENCHMARKS for case in golden(benchmark)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the rows that the official code read."""
    folder = tmp_path_factory.mktemp("data")
    lay_out(folder)
    return folder


def lay_out(folder: Path) -> None:
    """Write all rows under a folder."""
    write(folder)
    (folder / "ruler" / "simonjegou" / "4096").mkdir(parents=True)
    for member in official_rows.MEMBERS:
        write_rows(folder, f"scbench_official/{member}", *official_rows.rows(member))
    rows = [row for member in members("ruler_published") for row in ruler_rows(member)]
    parquet.write_table(pa.Table.from_pylist(rows), folder / "ruler" / "simonjegou" / "4096" / "test.parquet")


def ours(root: Path, case: str) -> Transcript:
    """What kvbench gives a model in a case."""
    name, family, template, number = case.split()
    name, second, _ = name.partition("/answer")
    name, is_rkv, _ = name.partition("/rkv")
    tok = tokenizer(family, template)
    fields = settings(name, int(number)) | ({"prompt": "rkv", "chat": False} if is_rkv else {})
    name = name.removesuffix("/2024")
    number = "0" if name.startswith("needle/") else number
    if name.startswith("scbench_official/"):
        name, _, fields["turns"] = name.rpartition("/")
    task: Any = task_of(name, str(root), **fields)
    of_kvzip = name.startswith(("scbench/", "squad", "gsm8k"))
    system = SYSTEM if of_kvzip else SYSTEMS.get(name)
    if template.startswith("llama3"):
        system = SYSTEM.removesuffix(".")
    if template == "qwen3":
        give_arguments(tok, {"enable_thinking": False})
    tokens = TokensOf(tok, template_tokens(tok, "auto", system, task.chat))
    (sample,) = task.generate(tokens, [int(number)])
    assert isinstance(sample, Sample), sample
    if second:
        sample = task.follow_up(sample, REASONING)
    model_stop = frozenset(model_ends(tok))
    if isinstance(task, Likelihood):
        prompt = begin(tok, sample.context, 10**6)
    else:
        agnostic = of_kvzip or name.startswith("ruler_published/") or (fields.get("turns") == "none")
        evict_after = "context" if agnostic else "prompt"
        prompt = build(tok, sample, task, 10**6, "auto", system, evict_after)
    stop = ends(tok, task, model_stop)
    ids = [*prompt.prefill, *prompt.question]
    return transcript(
        ids, len(prompt.prefill), None if stop == model_stop else stop, sample.max_new_tokens, task.min_new_tokens
    )


def settings(name: str, number: int) -> dict[str, Any]:
    """Settings of a task that its official run has by other means."""
    if name.startswith(("longbench", "infinitebench/")):
        return {"max_prompt_tokens": LIMITS[number]}
    if name.startswith("scbench_official/"):
        return {"max_prompt_tokens": SCBENCH_LIMITS[number // 3]}
    if name.startswith("needle/"):
        return dict(zip(("context_length", "depth"), NEEDLES[number], strict=True))
    if name == "nolima":
        return {"context_length": NOLIMA_TOKENS}
    if name.startswith("ruler/"):
        era = {"era": "2024"} if name.endswith("/2024") else {}
        essay = {"splitter": "bare"} if name.removesuffix("/2024") in ESSAYS else {}
        return {"context_length": RULER_TOKENS, "samples": SAMPLES, **essay, **era}
    return {}


@dataclass(frozen=True)
class Difference:
    """Cases that differ from the official code in some `parts`, as docs/reference/tasks.md (Transcripts) states with
    both sides. cases: a regular expression of their names.
    """

    cases: str
    parts: tuple[str, ...]

    def states(self, case: str) -> bool:
        return re.fullmatch(self.cases, case) is not None


IDS = "ids", "context"
PARTS = (*IDS, "stop", "max_new_tokens", "min_new_tokens")
DIFFERENCES = (
    Difference(r"infinitebench(_synthetic)?/.*", ("stop",)),
    Difference(r"infinitebench/math_calc .*", ("max_new_tokens",)),
    Difference(r"ruler/vt \S+ meta .*", IDS),
    Difference(r"ruler/vt/2024 \S+ meta .*", IDS),
    Difference(r"ruler/niah_single_1 bytes\S* meta .*", IDS),
    Difference(r"scbench_official/\S+ (?!bytes )\S+ trimmed .*", IDS),
    Difference(r"scbench_official/\S+/own \S+ trimmed [1245]", ("ids",)),
    Difference(r"(longbench_v2\S*|longproc/\S+|nolima) (?!bytes )\S+ chatml .*", IDS),
    Difference(r"(scbench/\S+|squad|gsm8k) \S+ llama3 .*", ("ids",)),
    Difference(r"\S+/rkv .*", ("max_new_tokens",)),
)
NONE = {
    "booksum": "no code was released",
    "bfcl": "its runners send messages to servers, and go on with the model's own calls, not with the recorded ones",
    "efficiency": "nothing is asked",
    "hub": "your own prompts",
    "jsonl": "your own prompts",
    "trajectories": "your own runs of agents",
    "trajectories_synthetic": "made up here, and nobody else's",
    "babilong": "its notebooks pass texts to a model; prompts and answers are compared in tests of the task",
    "dfs_state_query": "its prompts are compared with all of its published ones in tests of the task",
    "graphwalks": "the data card sends prompts to a server, and the code that makes them is not public",
    "ruler_v2": "its harness sends prompts to servers; all of a prompt is compared in tests of the task",
    "oolong": "its scripts send messages to servers; scores are compared in tests of the task",
    "mrcr": "the data card has no code that makes ids; its messages are compared below",
}
"""Why tasks of a settings file have no transcript."""
SUFFIXES = re.compile(r"/(answer|rkv|2024|none|gold|own)$")
"""What the name of a case has after its task."""


def differing(benchmark: str, root: Path) -> dict[str, set[str]]:
    """Cases that differ, and in which parts."""
    found: dict[str, set[str]] = {}
    for case, official in golden(benchmark).items():
        own = ours(root, case)
        other = {part for part in PARTS[1:] if getattr(own, part) != getattr(official, part)}
        other |= {"ids"} if own.sha256 != official.sha256 else set()
        found |= {case: other} if other else {}
    return found


def files_of_tasks() -> dict[str, str]:
    """The settings file of each task."""
    files = {}
    for path in FILES.values():
        content = yaml.safe_load(path.read_text("utf-8"))
        files |= dict.fromkeys(content.get("members") or [path.stem], path.stem)
    return files


@pytest.mark.slow  # builds 4000 prompts with four tokenizers
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_what_a_model_is_given_is_what_the_official_code_gives_it(benchmark: str, root: Path) -> None:
    """Each stated difference is still there, so that the page does not outlive it."""
    found = differing(benchmark, root)
    for case, parts in found.items():
        stated = {part for difference in DIFFERENCES if difference.states(case) for part in difference.parts}
        assert parts <= stated, (case, parts)
    for difference in DIFFERENCES:
        gone = [
            case
            for case in golden(benchmark)
            if difference.states(case) and not found.get(case, set()) & {*difference.parts}
        ]
        assert gone == [], difference


def test_every_stated_difference_is_of_some_case() -> None:
    assert [difference for difference in DIFFERENCES if not any(map(difference.states, cases()))] == []


def test_every_task_has_a_transcript_of_each_family_or_a_reason_for_none() -> None:
    pairs = {(SUFFIXES.sub("", name), family) for name, family, *_ in map(str.split, cases())}
    files = files_of_tasks()
    assert sorted(files) == sorted(options("task"))
    assert pairs == {(task, family) for task, file in files.items() if file not in NONE for family in FAMILIES}


def test_every_mode_of_a_protocol_has_a_transcript() -> None:
    names = {case.split()[0] for case in cases()}
    modes = {f"scbench_official/{name}/{mode}" for name in official_rows.MEMBERS for mode in ("none", "gold", "own")}
    eras = {f"ruler/{name}{era}" for name in members("ruler") for era in ("", "/2024")}
    assert {*modes, *eras, "longbench_v2_cot/answer"} <= names


@pytest.mark.parametrize(
    "case",
    [
        *("longbench/samsum first inst 1", "squad always gemma 1", "gsm8k bytes qwen3 1", "needle/lava always raw 1"),
        *("nolima first trimmed 1", "ruler/vt/2024 bytes raw 1", "longproc/tom_tracking_2k bytes_bos trimmed 1"),
    ],
)
def test_a_transcript_sees_one_other_token(case: str, root: Path) -> None:
    """Cases in the fast tests, and a prompt that is not the official one."""
    (official,) = (golden(benchmark)[case] for benchmark in BENCHMARKS if case in golden(benchmark))
    assert ours(root, case) == official
    assert ours(root, case[:-1] + "0") != official or "tom_tracking" in case  # its rows are alike


@pytest.mark.parametrize(("family", "template"), [("bytes", "chatml"), *((name, "trimmed") for name in FAMILIES[1:])])
@pytest.mark.parametrize("name", ["mrcr_2", "mrcr_8", "aime24"])
def test_cards_without_code_are_followed_by_their_messages(name: str, family: str, template: str, root: Path) -> None:
    """MRCR's card sends the messages of a row, those of reasoning models ask for a boxed answer."""
    tok, task = tokenizer(family, template), task_of(name, str(root))
    for number in range(SAMPLES):
        messages = conversation(contexts()[number])
        if not name.startswith("mrcr"):
            asked = "Please reason step by step, and put your final answer within \\boxed{}."
            messages = [{"role": "user", "content": f"{contexts()[number]}\n{asked}"}]
        text = tok.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        (sample,) = task.generate(TokensOf(tok, 1), [number])
        assert isinstance(sample, Sample)
        prompt = build(tok, sample, task, 10**6)
        assert [*prompt.prefill, *prompt.question] == list(tok(text, add_special_tokens=False).input_ids)


def test_the_page_counts_the_transcripts_of_each_task() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "tasks.md").read_text("utf-8")
    table = re.findall(r"^\| `(\w+)` \|(.+)\|$", page.partition("## RULER")[0], re.MULTILINE)
    rows = [(file, *(cell.strip() for cell in cells.split("|")[1:3])) for file, cells in table]
    files, counts = files_of_tasks(), {file: [0, 0] for file in files_of_tasks().values()}
    for case in cases():
        file = files[SUFFIXES.sub("", case.split()[0])]
        counts[file][0] += 1
        counts[file][1] += not any(difference.states(case) for difference in DIFFERENCES)
    expected = {(file, *(("", "") if file in NONE else map(str, count))) for file, count in counts.items()}
    assert sorted(rows) == sorted(expected)
