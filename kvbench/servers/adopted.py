"""Answers made elsewhere, found by the prompt that they answer: our lines, and files of lm-eval, LongBench and kvpress.

    kvbench    {"prompt_sha256": "9f..", "answer": "42", "kept_fraction": 0.1}    lines as `kvbench prompts` begins them
    lm-eval    {"arguments": {"gen_args_0": {"arg_0": "the prompt"}}, "resps": [["42"]]}    --log_samples
    longbench  {"prompt": "the prompt", "pred": "42", "answers": ["42"]}    as KVCache-Factory writes them
    kvpress    predictions.csv with question, answer, predicted_answer; config.yaml with press_name, compression_ratio

A prompt is found by the hash of its text. Where a file leaves the contexts out (kvpress; lines of LongBench with
`input` instead of `prompt`), it is found by its question and right answers.
"""

import ast
import csv
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from kvbench.models.prompts.prompt import Prompt
from kvbench.servers.completions import Answer
from kvbench.servers.endpoint import ServedCell
from kvbench.support.errors import MissingFile, UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import sha256_of
from kvbench.tasks.own_file import conversation
from kvbench.tasks.task import Ending, Sample

Format = Literal["kvbench", "lm-eval", "longbench", "kvpress"]
PREDICTIONS, CONFIG = "predictions.csv", "config.yaml"
CONFIGURED = (
    "dataset",
    "data_dir",
    "model",
    "press_name",
    "compression_ratio",
    "key_channel_compression_ratio",
    "query_aware",
    "fraction",
)
"""What is recorded of the configuration of kvpress."""


OTHER_BUDGETS = ("think", "decoding_", "prefill_decoding_")
"""How names of presses begin whose compression_ratio is no share of the KV pairs of a prompt."""
PRINTED = re.compile(r"""\[\s*(?:(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?:\s+|\s*(?=\])))*\]""", re.DOTALL)
"""An array of texts as numpy prints it: blanks and line breaks between texts, which are quoted as Python's are."""
QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


@dataclass(frozen=True)
class Adopted:
    """Answers by key. `labels`: what the source says of its method and budget, as settings of an endpoint.

    kept: the share of KV pairs that the method kept, for all answers that do not say it; None: unknown.
    """

    name: str
    format: Format
    sha256: str
    answers: Mapping[str, tuple[Answer, ...]]
    labels: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    kept: float | None = None

    @property
    def device(self) -> dict[str, Any]:
        description = {"name": f"answers of {self.name}", "api": f"a file of {self.format}", "sha256": self.sha256}
        return description | {"config": dict(self.config)}

    def answer(self, prompt: Prompt, sample: Sample, cell: ServedCell) -> tuple[Prompt, Answer]:
        """The answer to a prompt. Raises UserError where there is none, or more than one."""
        answers = self.of(prompt, sample)
        if not answers:
            raise UserError(f"{self.name} has no answer to this prompt")
        if len({answer.text for answer in answers}) > 1:
            raise UserError(f"{self.name} has {len(answers)} answers to this prompt")
        return prompt, answers[0]

    def of(self, prompt: Prompt, sample: Sample) -> tuple[Answer, ...]:
        """The answers to a prompt."""
        turns = (*sample.messages, ("user", sample.question if sample.messages else sample.prompt))
        keys = (prompt.sha256, _sha256(sample.prompt), _chat(turns), _question(sample.question, sample.references))
        return next((self.answers[key] for key in keys if key in self.answers), ())

    def nll(self, prompt: Prompt) -> list[float]:
        raise UserError(f"{self.name} holds answers, no log-probabilities")


def read(path: Path, kept: float | None = None) -> Adopted:
    """The answers of a file or folder.

    Raises MissingFile where there is none, UserError for what is none of the formats.
    """
    if kept is not None and not 0 < kept <= 1:
        raise UserError(f"--kept {kept}: allowed: a share of the KV pairs above 0, at most 1, such as 0.1")
    if path.is_dir():
        return _kvpress(path, kept)
    if not path.is_file():
        raise MissingFile(f"{path}: no such file or folder; give a file of JSON lines, or a folder of kvpress")
    answers: dict[str, tuple[Answer, ...]] = {}
    formats = set[Format]()
    for number, line in _lines(path):
        kind, key, answer = _of_line(line, f"{path}, line {number}", kept)
        formats.add(kind)
        answers[key] = (*answers.get(key, ()), answer)
    if len(formats) != 1:
        raise UserError(
            f"{path} holds {' and '.join(sorted(formats)) + ' lines' if formats else 'no line'}: give one format"
        )
    return Adopted(path.name, formats.pop(), sha256_of(path), answers, kept=kept)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, content in enumerate(file, 1):
            if not content.strip():
                continue
            try:
                line = json.loads(content.decode("utf-8"))
            except (ValueError, RecursionError):
                line = None
            if not isinstance(line, dict):
                raise UserError(f"{path}, line {number}, is no JSON object: allowed: JSON lines of kvbench or lm-eval")
            yield number, line


def _of_line(line: Mapping[str, Any], where: str, kept: float | None) -> tuple[Format, str, Answer]:
    if "arguments" in line and "resps" in line:
        prompt, text = _first_text(line["arguments"]), _only_answer(line["resps"], where)
        if prompt is None or text is None:
            raise UserError(
                f"{where}: no prompt in arguments, or no answer in resps: --log_samples of lm-eval writes both"
            )
        return "lm-eval", _key_of(_whole(prompt, "prompt", where)), Answer(text, kept_fraction=kept)
    if "pred" in line:
        return "longbench", _longbench_key(line, where), Answer(line["pred"], kept_fraction=kept)
    name, text = line.get("prompt_sha256"), line.get("answer")
    if not isinstance(name, str) or not isinstance(text, str):
        raise UserError(
            f"{where}: no texts prompt_sha256 and answer: add the answer to lines that kvbench prompts has written"
        )
    fraction = line.get("kept_fraction", kept)
    if fraction is not None and (type(fraction) not in (int, float) or not 0 <= fraction <= 1):
        raise UserError(f"{where}: kept_fraction is {fraction!r}: allowed: a share from 0 to 1, or none")
    if (ended := line.get("ended")) not in (None, *get_args(Ending)):
        raise UserError(f"{where}: ended is {ended!r}: allowed: {', '.join(get_args(Ending))}, or none")
    return "kvbench", name, Answer(_whole(text, "answer", where), kept_fraction=fraction, ended=ended)


def _whole(text: str, name: str, where: str) -> str:
    """The text. Raises UserError for half of a character, which no file can hold."""
    try:
        return jsonl.text({name: text}, name)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _longbench_key(line: Mapping[str, Any], where: str) -> str:
    """The key of a line's prompt. Raises UserError for a line that does not say which prompt it answers."""
    prompt, question, right = line.get("prompt"), line.get("input"), line.get("answers")
    if not isinstance(line["pred"], str):
        raise UserError(f"{where}: pred is {line['pred']!r}: allowed: a text")
    if isinstance(prompt, str):
        return _sha256(prompt)
    if isinstance(question, str) and isinstance(right, list) and all(isinstance(text, str) for text in right):
        return _question(question, right)
    raise UserError(
        f"{where}: no text prompt, nor input with a list of texts as answers: the prompt of pred is not known"
    )


def _first_text(node: Any) -> str | None:
    """The first text in nested lists and objects: their forms differ between versions of lm-eval."""
    return next(_leaves(node), None)


def _leaves(node: Any) -> Iterator[str | None]:
    """The texts in nested lists and objects, None for another value."""
    if isinstance(node, (list, dict)):
        for inner in node.values() if isinstance(node, dict) else node:
            yield from _leaves(inner)
    else:
        yield node if isinstance(node, str) else None


def _only_answer(resps: Any, where: str) -> str | None:
    """The answer of a sample. Raises UserError for repeats that differ: a row has one answer."""
    texts = list(dict.fromkeys(_leaves(resps)))
    if len(texts) > 1:
        raise UserError(
            f"{where}: resps has {len(texts)} answers that differ, and a row has one: run lm-eval with repeats: 1, or "
            "write each repeat to a file of its own"
        )
    return None if not texts or texts[0] is None else _whole(texts[0], "answer", where)


def _key_of(prompt: str) -> str:
    """The key of a prompt of lm-eval: of a chat that it logged as JSON text, that of its turns."""
    try:
        turns, question = conversation(json.loads(prompt))
    except (ValueError, RecursionError):
        return _sha256(prompt)
    return _chat((*turns, ("user", question)))


def _chat(turns: Sequence[tuple[str, str]]) -> str:
    """The key of a chat; a single turn is the same as its text."""
    return _sha256(turns[0][1] if len(turns) == 1 else json.dumps(turns))


def _kvpress(folder: Path, kept: float | None) -> Adopted:
    file = folder / PREDICTIONS
    if not file.is_file():
        raise MissingFile(f"{folder} holds no {PREDICTIONS}: give the folder of one evaluation of kvpress")
    config = _config(folder / CONFIG)
    if config.get("query_aware") is True:
        raise UserError(
            f"{folder}: query_aware: true: kvpress puts the questions into the contexts, which it leaves out of "
            f"{PREDICTIONS}, so no answer can be paired; run its evaluation with query_aware: false"
        )
    csv.field_size_limit(2**31 - 1)
    answers: dict[str, tuple[Answer, ...]] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), 1):
            text = row.get("predicted_answer")
            right = row.get("answer") or row.get("answers")
            if text is None or right is None or row.get("question") is None:
                raise UserError(f"{file} lacks one of the columns question, answer and predicted_answer")
            key = _question(row["question"] or "", _texts(right, f"{file}, row {number}"))
            answers[key] = (*answers.get(key, ()), Answer(text, kept_fraction=kept))
    labels = {}
    if isinstance(press := config.get("press_name"), str):
        labels["method"] = "full" if press == "no_press" else press
        ratio = config.get("compression_ratio")
        of_pairs = not press.startswith(OTHER_BUDGETS) and config.get("key_channel_compression_ratio") is None
        if press != "no_press" and of_pairs and isinstance(ratio, (int, float)) and 0 <= ratio < 1:
            labels["budget"] = f"{1 - ratio:.6g}"
    recorded = {name: config[name] for name in CONFIGURED if name in config}
    return Adopted(folder.name, "kvpress", sha256_of(file), answers, labels, recorded, kept)


def _config(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def _texts(cell: str, where: str) -> Sequence[str]:
    """The right answers in a cell of a table: a list as Python or numpy writes it, or one text.

    Python would join the texts of numpy, which have no commas between them, so these are read first. Raises UserError
    for an array that numpy has shortened.
    """
    if PRINTED.fullmatch(cell.strip()):
        return [ast.literal_eval(text) for text in QUOTED.findall(cell)]
    if re.search(r"\s\.\.\.\s.*\]$", cell.strip(), re.DOTALL) and cell.startswith(("['", '["')):
        raise UserError(
            f"{where}: numpy has left out texts of the answers, in place of which is ...: write all of them"
        )
    try:
        content = ast.literal_eval(cell)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return (cell,)
    return [str(item) for item in content] if isinstance(content, (list, tuple)) else (cell,)


def _question(question: str, references: Sequence[str]) -> str:
    return json.dumps([question.strip(), sorted(references)])


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
