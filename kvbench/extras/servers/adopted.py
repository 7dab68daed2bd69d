"""Answers made elsewhere, found by the prompt that they answer: our lines, and files of lm-eval, LongBench and kvpress.

    kvbench    {"prompt_sha256": "9f..", "answer": "42", "kept_fraction": 0.1}    lines as `kvbench prompts` begins them
    lm-eval    {"arguments": {"gen_args_0": {"arg_0": "the prompt"}}, "resps": [["42"]]}    --log_samples
    longbench  {"prompt": "the prompt", "pred": "42", "answers": ["42"]}    as KVCache-Factory writes them
    longbench  {"pred": "42", "answers": ["42"], "all_classes": null, "length": 5012}    as LongBench's pred.py does
    kvpress    a folder with predictions.csv and config.yaml (`kvpress_folder`)

A prompt is found by the hash of its text. Where a file leaves the contexts out (kvpress; lines of LongBench with
`input` instead of `prompt`), it is found by its question and right answers, and equal ones by their order. Lines of
pred.py belong to the rows of the task in their order.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from kvbench.extras.servers.completions import Answer
from kvbench.extras.servers.kvpress_folder import KvpressFolder
from kvbench.models.prompts.prompt import Prompt
from kvbench.run.cell import Cell
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.whole_file import sha256_of
from kvbench.tasks import jsonl
from kvbench.tasks.own_file import conversation
from kvbench.tasks.task import Ending, Sample, Task

if TYPE_CHECKING:
    from kvbench.tasks.longbench import LongBenchTask

Format = Literal["kvbench", "lm-eval", "longbench", "kvpress"]
Place = tuple[str, int]
"""The hash of a prompt, and the number of its sample."""
ROW_FIELDS = ("answers", "all_classes", "length")
"""What a line of pred.py says of the row that it answers."""


@dataclass(frozen=True)
class Adopted:
    """Answers by key. `labels`: what the source says of its method and budget, as settings of an endpoint.

    kept: the share of KV pairs that the method kept, for all answers that do not say it; None: unknown. in_order: lines
    of pred.py, which belong to the rows of a task in their order. by_sample: answers by prompt hash and sample.
    """

    name: str
    format: Format
    sha256: str
    answers: Mapping[str, tuple[Answer, ...]]
    labels: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    kept: float | None = None
    in_order: tuple[tuple[Mapping[str, Any], Answer], ...] = ()
    by_sample: Mapping[Place, Answer] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many answers there are."""
        return len(self.in_order) or sum(map(len, self.answers.values()))

    @property
    def remark(self) -> str:
        return ""

    @property
    def device(self) -> dict[str, Any]:
        description = {"name": f"answers of {self.name}", "api": f"a file of {self.format}", "sha256": self.sha256}
        return description | {"config": dict(self.config)}

    def answer(self, prompt: Prompt, sample: Sample, cell: Cell) -> tuple[Prompt, Answer]:
        """Return the answer to a prompt. Raises UserError where there is none, or more than one."""
        answers = self.of(prompt, sample)
        if not answers:
            raise UserError(f"{self.name} has no answer to this prompt")
        if len({answer.text for answer in answers}) > 1:
            raise UserError(f"{self.name} has {len(answers)} answers to this prompt")
        return prompt, answers[0]

    def of(self, prompt: Prompt, sample: Sample) -> tuple[Answer, ...]:
        """Return the answers to a prompt."""
        if own := self.by_sample.get((prompt.sha256, sample.id)):
            return (own,)
        key = self._key_of(prompt, sample)
        return () if key is None else self.answers[key]

    def _key_of(self, prompt: Prompt, sample: Sample) -> str | None:
        turns = (*sample.messages, ("user", sample.question if sample.messages else sample.prompt))
        keys = (prompt.sha256, sha256(sample.prompt), _chat(turns), _question(sample.question, sample.references))
        return next((key for key in keys if key in self.answers), None)

    def placed(self, prompts: Iterable[tuple[Task, Prompt, Sample]]) -> "tuple[Adopted, list[int]]":
        """Return the same with the sample of each answer that order alone tells: lines of pred.py, and prompts with the
        same question and right answers, if there are as many as answers. And how many different answers each prompt
        has.

        Raises UserError for lines of pred.py that do not fit the rows of a task of LongBench.
        """
        by_sample, places_of = dict[Place, Answer](), defaultdict[str, list[Place]](list)
        rows, keys = dict[str, Sequence[Answer]](), list[tuple[Place, str | None]]()
        for task, prompt, sample in prompts:
            place, key = (prompt.sha256, sample.id), self._key_of(prompt, sample)
            keys.append((place, key))
            if self.in_order:
                if task.name not in rows:
                    rows[task.name] = self._by_row(task)
                by_sample[place] = rows[task.name][sample.id]
            elif key is not None:
                places_of[key].append(place)
        for key, places in places_of.items():
            if 1 < len(places) == len(self.answers[key]):
                by_sample |= zip(places, self.answers[key], strict=True)
        texts = {key: len({answer.text for answer in self.answers[key]}) for key in places_of}
        found = [1 if place in by_sample else texts.get(key or "", 0) for place, key in keys]
        return replace(self, by_sample=by_sample), found

    def _by_row(self, task: Task) -> list[Answer]:
        """Return the answers to the samples of a task whose rows the lines are. Raises UserError where one is another
        row.
        """
        if not task.has_pred_lines:
            raise UserError(
                f"{self.name}: its lines have no prompt, as pred.py of LongBench writes them: they belong to a task of "
                f"LongBench, such as task=longbench/hotpotqa, not to {task.name}"
            )
        task = cast("LongBenchTask", task)
        file = task.files[0]
        rows = jsonl.count(task.root, file)
        if rows != len(self.in_order):
            raise UserError(
                f"{self.name} has {len(self.in_order)} lines, and {file} {rows} rows: pred.py writes one each"
            )
        for number, (row, (line, _)) in enumerate(zip(jsonl.rows(task.root, file), self.in_order, strict=True), 1):
            content = row.read()
            for name in ROW_FIELDS:
                if content.get(name) != line[name]:
                    raise UserError(
                        f"{self.name}, line {number}: {name} is {str(line[name])[:80]}, but in the row of {file} it is "
                        f"{str(content.get(name))[:80]}: a line stands at the place of its row, as pred.py writes them "
                        "with one GPU"
                    )
        return [self.in_order[number][1] for _, number in task.row_places]

    def nll(self, prompt: Prompt) -> list[float]:
        raise UserError(f"{self.name} holds answers, no log-probabilities")


def read(path: Path, kept: float | None = None) -> Adopted:
    """Return the answers of a file or folder.

    Raises MissingFile where there is none, UserError for what is none of the formats.
    """
    if kept is not None and not 0 < kept <= 1:
        raise UserError(f"--kept {kept}: allowed: a share of the KV pairs above 0, at most 1, such as 0.1")
    if path.is_dir():
        return _of_folder(KvpressFolder.read(path), kept)
    if not path.is_file():
        raise MissingFile(f"{path}: no such file or folder; give a file of JSON lines, or a folder of kvpress")
    answers: dict[str, tuple[Answer, ...]] = {}
    formats, in_order = set[Format](), list[tuple[Mapping[str, Any], Answer]]()
    for where, line in _lines(path):
        kind, key, answer = _of_line(line, where, kept)
        formats.add(kind)
        if key is None:
            in_order.append(({name: line[name] for name in ROW_FIELDS}, answer))
        else:
            answers[key] = (*answers.get(key, ()), answer)
    if len(formats) != 1:
        raise UserError(
            f"{path} holds {' and '.join(sorted(formats)) + ' lines' if formats else 'no line'}: give one format"
        )
    if answers and in_order:
        raise UserError(f"{path} holds lines with a prompt and without one: give one format")
    return Adopted(path.name, formats.pop(), sha256_of(path), answers, kept=kept, in_order=tuple(in_order))


def _of_folder(folder: KvpressFolder, kept: float | None) -> Adopted:
    answers: dict[str, tuple[Answer, ...]] = {}
    for question, right, text in folder.predictions:
        key = _question(question, right)
        answers[key] = (*answers.get(key, ()), Answer(text, kept_fraction=kept))
    return Adopted(folder.name, "kvpress", folder.sha256, answers, folder.labels, folder.config, kept)


def _lines(path: Path) -> Iterator[tuple[str, jsonl.Row]]:
    """Yield every line that is not blank, with its place in words. Raises UserError for one that is no JSON object."""
    with path.open("rb") as file:
        for number, content in enumerate(file, 1):
            where = f"{path}, line {number}"
            if content.strip():
                try:
                    yield where, jsonl.Line(number, where, content).read()
                except UserError as error:
                    raise UserError(f"{where}: {error}") from None


def _of_line(line: jsonl.Row, where: str, kept: float | None) -> tuple[Format, str | None, Answer]:
    """Return the format of a line, the key of its prompt, None where only its place tells it, and its answer."""
    if "arguments" in line and "resps" in line:
        prompt, text = _first_text(line["arguments"]), _only_answer(line["resps"], where)
        if prompt is None or text is None:
            raise UserError(
                f"{where}: no prompt in arguments, or no answer in resps: --log_samples of lm-eval writes both"
            )
        return "lm-eval", _key_of(_whole(prompt, "prompt", where)), Answer(text, kept_fraction=kept)
    if "pred" in line:
        if not isinstance(line["pred"], str):
            raise UserError(f"{where}: pred is {line['pred']!r}: allowed: a text")
        return "longbench", _longbench_key(line, where), Answer(_whole(line["pred"], "pred", where), kept_fraction=kept)
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
    """Return the text. Raises UserError for half of a character, which no file can hold."""
    try:
        return jsonl.text({name: text}, name)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _longbench_key(line: jsonl.Row, where: str) -> str | None:
    """Return the key of a line's prompt, None for a line of pred.py. Raises UserError for one that does not say its
    prompt.
    """
    prompt, question, right = line.get("prompt"), line.get("input"), line.get("answers")
    if isinstance(prompt, str):
        return sha256(_whole(prompt, "prompt", where))
    if isinstance(question, str) and isinstance(right, list) and all(isinstance(text, str) for text in right):
        return _question(question, right)
    if all(name in line for name in ROW_FIELDS):
        return None
    raise UserError(
        f"{where}: no text prompt, nor input with a list of texts as answers, nor answers, all_classes and length as "
        "pred.py writes them: the prompt of pred is not known"
    )


def _first_text(node: Any) -> str | None:
    """Return the first text in nested lists and objects: their forms differ between versions of lm-eval."""
    return next(_leaves(node), None)


def _leaves(node: Any) -> Iterator[str | None]:
    """Yield the texts in nested lists and objects, None for another value."""
    if isinstance(node, (list, dict)):
        for inner in node.values() if isinstance(node, dict) else node:
            yield from _leaves(inner)
    else:
        yield node if isinstance(node, str) else None


def _only_answer(resps: Any, where: str) -> str | None:
    """Return the answer of a sample. Raises UserError for repeats that differ: a row has one answer."""
    texts = list(dict.fromkeys(_leaves(resps)))
    if len(texts) > 1:
        raise UserError(
            f"{where}: resps has {len(texts)} answers that differ, and a row has one: run lm-eval with repeats: 1, or "
            "write each repeat to a file of its own"
        )
    return None if not texts or texts[0] is None else _whole(texts[0], "answer", where)


def _key_of(prompt: str) -> str:
    """Return the key of a prompt of lm-eval: of a chat that it logged as JSON text, the key of its turns."""
    try:
        turns, question = conversation(json.loads(prompt))
    except (ValueError, RecursionError):
        return sha256(prompt)
    return _chat((*turns, ("user", question)))


def _chat(turns: Sequence[tuple[str, str]]) -> str:
    """Return the key of a chat; a single turn is the same as its text."""
    return sha256(turns[0][1] if len(turns) == 1 else json.dumps(turns))


def _question(question: str, references: Sequence[str]) -> str:
    return json.dumps([question.strip(), sorted(references)])


def sha256(text: str) -> str:
    """Return the hash of a text; half of a character, which no prompt has, is hashed too."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
