"""Golden files of prompts: what the official generators wrote, byte for byte or by its hash."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from kvbench.config.compose import options
from kvbench.config.settings import build
from kvbench.conformance.golden.checked import Checked, number, text
from kvbench.models.prompts.prompt import TokensOf
from kvbench.models.prompts.truncation import truncate
from kvbench.support import paths
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.nearest import closest
from kvbench.tasks.jsonl import rows
from kvbench.tasks.sample import Sample, Task

ERAS = {"c3f5e3b": "2026", "e40fae1": "2024"}
FOLDER = re.compile(r"era(\d{4})_(\d+)")


@dataclass(frozen=True)
class Beside:
    """Where what a golden file does not hold lies: `root` as data.root, `tokenizer` or null for one beside the file."""

    root: str | None
    tokenizer: str | None

    def tokens(self, file: Path) -> TokensOf:
        """The tokenizer that counted. Raises FileNotFoundError where it is not beside the file."""
        near = [file.parent.parent / "tokenizer", file.parent.parent / "ruler" / "tokenizer"]
        places = [Path(self.tokenizer)] if self.tokenizer else near
        for place in places:
            if (place / "tokenizer.json").is_file():
                return _tokens(place)
        raise MissingFile(
            f"no tokenizer for {file}: looked at {', '.join(map(str, places))}; name its folder with tokenizer=FOLDER"
        )


def ruler_rows(file: Path, found: Sequence[Mapping[str, Any]], beside: Beside) -> Iterator[Checked]:
    """Rows of RULER's own generators: the prompt, byte for byte, and the answers. Folder and file name say which."""
    said = FOLDER.fullmatch(file.parent.name)
    if said is None:
        raise UserError(f"rows of RULER lie in a folder such as era2026_4096, this is {file.parent.name}")
    era, length = said.groups()
    samples = _ruler(file, file.stem, era, int(length), len(found), beside)
    for index, (sample, row) in enumerate(zip(samples, found, strict=True)):
        name = f"{file.parent.name}/{file.name} row {index}"
        yield text(name, "prompt", sample.prompt, row["input"] + row.get("answer_prefix", ""))
        yield text(f"{name}, answers", "answers", list(sample.references), row["outputs"])


def ruler_generation(file: Path, found: Mapping[str, Any], beside: Beside) -> Iterator[Checked]:
    """Rows of RULER by the hashes of their prompts, and the tokens that each takes up."""
    for entry in found["samples"]:
        era = next((era for commit, era in ERAS.items() if commit in entry["version"]), "2024")
        name = f"ruler/{entry['task']} {era} {entry['max_seq_length']}"
        if entry.get("pseudo_data"):
            yield Checked(name, "made of passages that are not here", absent=True)
            continue
        try:
            samples = _ruler(file, entry["task"], era, entry["max_seq_length"], entry["n"], beside)
        except FileNotFoundError as error:
            yield Checked(name, str(error), absent=True)
            continue
        hashes = [_sha256(sample.prompt) for sample in samples]
        yield text(name, "sha256", hashes, entry["sha256_input_plus_prefix"])
        if era == "2026":
            lengths = [beside.tokens(file)(one.prompt) + one.max_new_tokens for one in samples]
            yield text(f"{name}, tokens", "lengths", lengths, entry["lengths"])


def needle_contexts(file: Path, found: Sequence[Mapping[str, Any]], beside: Beside) -> Iterator[Checked]:
    """The official needle's contexts by hash, the place of the needle and the tokens."""
    for case in found:
        name = f"needle/official {case['context_length']} tokens, depth {case['depth_percent']}"
        fields = {"context_length": case["context_length"], "depth": case["depth_percent"]}
        tokens = beside.tokens(file)
        (sample,) = task_of("needle/official", beside.root, **fields).generate(tokens, [0])
        assert isinstance(sample, Sample)
        yield text(name, "sha256", _sha256(sample.context), case["sha256"])
        yield number(f"{name}, tokens", tokens(sample.context), case["n_tokens"])


def truncation(file: Path, found: Sequence[Mapping[str, Any]], beside: Beside) -> Iterator[Checked]:
    """LongBench's prompts by hash, before and after the cut in the middle."""
    tokens = beside.tokens(file)
    for case in found:
        name = f"longbench/{case['task']} {case['_id'][:8]} cut to {case['max_length']}"
        task: Any = task_of(
            f"longbench/{case['task']}", beside.root, max_prompt_tokens=case["max_length"], samples=10**6
        )
        index = next(
            line.number
            for line in rows(beside.root, task.files[0], range(task.samples))
            if line.read().get("_id") == case["_id"]
        )
        (sample,) = task.generate(tokens, [index])
        if not isinstance(sample, Sample):
            raise UserError(sample.error)
        yield text(f"{name}, whole", "sha256", _sha256(sample.prompt), case["sha256_prompt"])
        left = "".join(truncate(tokens.tokenizer, sample.context, sample.question, "middle", case["max_length"]))
        yield text(name, "sha256", _sha256(left), case["sha256_truncated"])
        yield number(f"{name}, tokens", tokens(left), case["n_tokens_after_retokenising"])


def task_of(name: str, root: str | None, **fields: Any) -> Task:
    """The task of a file in conf/task with other settings. Raises ValueError for a name that none has."""
    if name not in options("task"):
        raise UserError(f"unknown task {name}: {closest(name, options('task'))}")
    config = OmegaConf.create({"seed": 42, "data": {"root": root}})
    file: Any = OmegaConf.load(paths.conf() / "task" / f"{name}.yaml")
    config["task"] = file.get("task", file)
    read = OmegaConf.to_container(config, resolve=True)
    assert isinstance(read, dict)
    return build("task", read["task"] | fields)


def _ruler(file: Path, name: str, era: str, length: int, many: int, beside: Beside) -> list[Sample]:
    """Essays are cut into sentences without English parameters: so were those that the golden rows are made of."""
    fields: dict[str, Any] = {"era": era, "context_length": length, "samples": many}
    task: Any = task_of(f"ruler/{name}", beside.root, **fields)
    if getattr(task, "haystack", "") == "essay":
        task = task_of(f"ruler/{name}", beside.root, **fields, splitter="bare")
    return list(task.generate(beside.tokens(file), range(many)))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache
def _tokens(folder: Path) -> TokensOf:
    from transformers import AutoTokenizer

    from kvbench.models.loading.weights import LOCAL

    return TokensOf(AutoTokenizer.from_pretrained(folder, **LOCAL))


def read(path: Path) -> Any:
    """What a .json holds, or what the lines of a .jsonl hold. Raises ValueError for a file that is neither."""
    try:
        whole = path.read_text("utf-8")
        if path.suffix == ".json":
            return json.loads(whole)
        return [json.loads(line) for line in whole.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no golden case: no JSON in UTF-8: {error}") from None
