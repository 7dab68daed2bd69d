"""What a model is given here for a prompt is what the official code gives it: ids, eviction point, ends of answers."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from kvbench.conformance.golden.prompts import task_of
from kvbench.models.prompts.chat import give_arguments
from kvbench.models.prompts.prompt import TokensOf, begin, build, ends, template_tokens
from kvbench.tasks.likelihood import Likelihood
from kvbench.tasks.task import Sample
from tests.tasks.scbench import official_rows
from tests.tasks.scbench.rows import write as write_rows
from tests.transcripts.families import FAMILIES, FOLDER, model_ends, tokenizer
from tests.transcripts.made_up import NEEDLES, SAMPLES, SYSTEM, members, ruler_rows, write
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
    options = settings(name, int(number)) | ({"prompt": "rkv", "chat": False} if is_rkv else {})
    name = name.removesuffix("/2024")
    number = "0" if name.startswith("needle/") else number
    if name.startswith("scbench_official/"):
        name, _, options["turns"] = name.rpartition("/")
    task: Any = task_of(name, str(root), **options)
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
        agnostic = of_kvzip or name.startswith("ruler_published/") or (options.get("turns") == "none")
        evict_after = "context" if agnostic else "prompt"
        prompt = build(tok, sample, task, 10**6, "auto", system, evict_after)
    stop = ends(tok, task, model_stop)
    ids = [*prompt.context, *prompt.question]
    return transcript(
        ids, len(prompt.context), None if stop == model_stop else stop, sample.max_new_tokens, task.min_new_tokens
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


def differences(benchmark: str, root: Path) -> Iterator[tuple[str, str]]:
    """Cases that differ, and in which part."""
    for case, official in golden(benchmark).items():
        own = ours(root, case)
        if own.sha256 != official.sha256:
            yield case, "ids"
        for part in ("context", "stop", "max_new_tokens", "min_new_tokens"):
            if getattr(own, part) != getattr(official, part):
                yield case, part


def explained(case: str, part: str) -> bool:
    """Whether docs/benchmarks.md (Transcripts) states the difference, with both sides."""
    name, family, template, _ = case.split()
    if name.startswith("infinitebench/"):
        return part == "stop" or (name.endswith("/math_calc") and part == "max_new_tokens")
    if name.startswith("ruler/"):
        measured = name == "ruler/vt" or (name == "ruler/niah_single_1" and family.startswith("bytes"))
        return template == "meta" and measured and part in ("ids", "context")
    if name.startswith("scbench_official/"):
        return template == "trimmed" and family != "bytes" and part in ("ids", "context")
    begins = family != "bytes" and template == "chatml"
    return name.startswith("longbench_v2") and begins and part in ("ids", "context")


@pytest.mark.slow  # builds 2500 prompts with four tokenizers
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_what_a_model_is_given_is_what_the_official_code_gives_it(benchmark: str, root: Path) -> None:
    """Each explained difference is still there, so that the page does not outlive it."""
    different = set(differences(benchmark, root))
    assert [(case, part) for case, part in sorted(different) if not explained(case, part)] == []
    stated = {case for case in golden(benchmark) if explained(case, "ids") or explained(case, "stop")}
    assert {case for case, _ in different} == stated


def test_every_task_of_these_benchmarks_has_a_transcript_of_each_family() -> None:
    names = {
        (case.split()[0].removesuffix("/answer"), case.split()[1])
        for benchmark in BENCHMARKS
        for case in golden(benchmark)
    }
    families = ("longbench", "longbench_e", "infinitebench", "ruler", "ruler_published", "scbench")
    tasks = {f"{family}/{member}" for family in families for member in members(family)}
    tasks |= {f"scbench_official/{name}/{mode}" for name in official_rows.MEMBERS for mode in ("none", "gold")}
    expected = {*tasks, "longbench_v2", "longbench_v2_cot", "squad", "gsm8k", "pg19"}
    assert {(task, family) for task in expected for family in FAMILIES} <= names


@pytest.mark.parametrize("case", ["longbench/samsum first inst 1", "squad always gemma 1"])
def test_a_transcript_sees_one_other_token(case: str, root: Path) -> None:
    """A case in the fast tests, and a prompt that is not the official one."""
    official = {name: value for benchmark in BENCHMARKS for name, value in golden(benchmark).items()}[case]
    assert ours(root, case) == official
    assert ours(root, case[:-1] + "0") != official


def test_the_page_has_the_number_of_transcripts() -> None:
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text("utf-8")
    counts = {tuple(map(int, row)) for row in re.findall(r"^\|.*\| (\d+) \| (\d+) \|.*\|$", page, re.MULTILINE)}
    for benchmark in BENCHMARKS:
        cases = golden(benchmark)
        differing = [case for case in cases if explained(case, "ids") or explained(case, "stop")]
        assert (len(cases), len(cases) - len(differing)) in counts, benchmark
