"""Golden files of prompts: what the official generators wrote, byte for byte or by its hash."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvbench.config.compose import resolved
from kvbench.config.entries import load_entry
from kvbench.config.settings import build
from kvbench.extras.conformance.golden.verdict import Verdict, compare_number, compare_text
from kvbench.models.prompts.build import truncate
from kvbench.models.prompts.tokens import TokensOf
from kvbench.support.errors import MissingFile, UserError
from kvbench.tasks.jsonl import rows
from kvbench.tasks.task import Sample, Task

Row = Mapping[str, Any]
ERAS = {"c3f5e3b": "2026", "e40fae1": "2024"}
FOLDER = re.compile(r"era(\d{4})_(\d+)")


@dataclass(frozen=True)
class Sources:
    """Where data and tokenizer lie. root: data.root; tokenizer: its folder, None for the one beside the golden file."""

    root: str | None
    tokenizer: str | None

    def tokens(self, file: Path) -> TokensOf:
        """Return the tokenizer that counted. Raises FileNotFoundError if it is not there."""
        beside = [file.parent.parent / "tokenizer", file.parent.parent / "ruler" / "tokenizer"]
        folders = [Path(self.tokenizer)] if self.tokenizer else beside
        for folder in folders:
            if (folder / "tokenizer.json").is_file():
                return _tokens(folder)
        looked_at = ", ".join(map(str, folders))
        raise MissingFile(f"no tokenizer for {file}: looked at {looked_at}; name its folder with tokenizer=FOLDER")


def check_ruler_rows(file: Path, rows: Mapping[int, Row], sources: Sources) -> Iterator[Verdict]:
    """Yield rows of RULER's own generators by index: the prompt, byte for byte, and the answers.

    The path names era, length and task.
    """
    match = FOLDER.fullmatch(file.parent.name)
    if match is None:
        raise UserError(f"rows of RULER must be in a folder such as era2026_4096, not {file.parent.name}")
    samples = _ruler_samples(file, file.stem, match[1], int(match[2]), max(rows) + 1, sources)
    for index, row in rows.items():
        name, sample = f"{file.parent.name}/{file.name} row {index}", samples[index]
        yield compare_text(name, "prompt", sample.prompt, row["input"] + row.get("answer_prefix", ""))
        yield compare_text(f"{name}, answers", "answers", list(sample.references), row["outputs"])


def check_ruler_generation(file: Path, content: Row, sources: Sources) -> Iterator[Verdict]:
    """Yield samples of RULER by the hashes of their prompts, and their lengths in tokens."""
    for entry in content["samples"]:
        era = next((era for commit, era in ERAS.items() if commit in entry["version"]), "2024")
        name = f"ruler/{entry['task']} {era} {entry['max_seq_length']}"
        if entry.get("pseudo_data"):
            yield Verdict(name, "made from passages whose data is missing", absent=True)
            continue
        try:
            samples = _ruler_samples(file, entry["task"], era, entry["max_seq_length"], entry["n"], sources)
        except FileNotFoundError as error:
            yield Verdict(name, str(error), absent=True)
            continue
        hashes = [_sha256(sample.prompt) for sample in samples]
        yield compare_text(name, "sha256", hashes, entry["sha256_input_plus_prefix"])
        if era == "2026":
            lengths = [sources.tokens(file)(sample.prompt) + sample.max_new_tokens for sample in samples]
            yield compare_text(f"{name}, tokens", "lengths", lengths, entry["lengths"])


def check_needle_contexts(file: Path, cases: Sequence[Row], sources: Sources) -> Iterator[Verdict]:
    """Yield the official needle's contexts by hash, the place of the needle and the number of tokens."""
    for case in cases:
        name = f"needle/official {case['context_length']} tokens, depth {case['depth_percent']}"
        fields = {"context_length": case["context_length"], "depth": case["depth_percent"]}
        tokens = sources.tokens(file)
        (sample,) = task_of("needle/official", sources.root, **fields).generate(tokens, [0])
        assert isinstance(sample, Sample)
        yield compare_text(name, "sha256", _sha256(sample.context), case["sha256"])
        yield compare_number(f"{name}, tokens", tokens(sample.context), case["n_tokens"])


def check_truncation(file: Path, cases: Sequence[Row], sources: Sources) -> Iterator[Verdict]:
    """LongBench's prompts by hash, before and after truncation in the middle."""
    tokens = sources.tokens(file)
    for case in cases:
        name = f"longbench/{case['task']} {case['_id'][:8]} truncated to {case['max_length']}"
        fields = {"max_prompt_tokens": case["max_length"], "samples": 10**6}
        task: Any = task_of(f"longbench/{case['task']}", sources.root, **fields)
        lines = rows(sources.root, task.files[0], range(task.samples))
        index = next(line.number for line in lines if line.read().get("_id") == case["_id"])
        (sample,) = task.generate(tokens, [index])
        if not isinstance(sample, Sample):
            raise UserError(sample.error)
        yield compare_text(f"{name}, whole", "sha256", _sha256(sample.prompt), case["sha256_prompt"])
        truncated = "".join(truncate(tokens.tokenizer, sample.context, sample.question, "middle", case["max_length"]))
        yield compare_text(name, "sha256", _sha256(truncated), case["sha256_truncated"])
        yield compare_number(f"{name}, tokens", tokens(truncated), case["n_tokens_after_retokenising"])


def task_of(name: str, root: str | None, **fields: Any) -> Task:
    """Return the task of a file in conf/task with other settings. Raises ValueError for an unknown name."""
    tree = resolved({"seed": 42, "data": {"root": root}, "task": load_entry("task", name) | fields})
    return build("task", tree["task"])


def _ruler_samples(file: Path, name: str, era: str, length: int, count: int, sources: Sources) -> list[Sample]:
    """Return samples as RULER made them: the essays of its golden rows were split without the English sentence
    splitter.
    """
    fields: dict[str, Any] = {"era": era, "context_length": length, "samples": count}
    task: Any = task_of(f"ruler/{name}", sources.root, **fields)
    if getattr(task, "haystack", "") == "essay":
        task = task_of(f"ruler/{name}", sources.root, **fields, splitter="bare")
    return list(task.generate(sources.tokens(file), range(count)))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache
def _tokens(folder: Path) -> TokensOf:
    from transformers import AutoTokenizer

    from kvbench.models.loading.load import LOCAL

    return TokensOf(AutoTokenizer.from_pretrained(folder, **LOCAL))
