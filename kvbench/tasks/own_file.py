"""Prompts of your own: a file with one JSON object per line.

    {"context": "A long text ...", "question": "Who wrote it?", "answers": ["Anna", "Anna Berg"]}
    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."},
                  {"role": "user", "content": "Who wrote it?"}], "answers": ["Anna"]}

The question follows its context after a blank line; it may be absent. Lines of LongBench are read as they are: `input`
is the question. Of messages the last one is the question, those before it are the context; a model without a chat
template reads their texts, with a blank line after each. White space around answers is no part of them.
"""

import json
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

from kvbench.support.errors import Several, UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import current_sha256, own_file, own_name
from kvbench.tasks.kvzip import exact
from kvbench.tasks.longbench import FUNCTIONS
from kvbench.tasks.ruler.task import string_match_all, string_match_part
from kvbench.tasks.task import GAP, InvalidSample, Sample, TokenCounter, require_choice

FORM = 'a line is {"context": TEXT, "question": TEXT, "answers": [TEXT]}, or has "messages" for context and question'
ROLES = ("system", "user", "assistant")
READ = ("context", "question", "input", "messages", "answers")
"""`input` is the question in files of LongBench."""
BESIDE = ("id", "_id", "length", "dataset", "language", "all_classes", "metadata")
"""What may stand beside them and is not read: the other columns of LongBench, and data of your own."""
INDEX = ("", "Unnamed: 0", "__index_level_0__")
"""What pandas calls the numbers of rows."""
MEANT = {"query": "question", "prompt": "context", "text": "context", "document": "context", "passage": "context"} | {
    name: "answers" for name in ("label", "labels", "target", "targets", "reference", "references", "output", "outputs")
}
"""Names that others give to the same."""
MOST_NAMED = 5
"""Lines that cannot be read and are named."""
Metric = Callable[[str, Sequence[str]], float]


def best(compare: Callable[[str, str], float]) -> Metric:
    """Return the metric that is the best of a comparison with each answer."""
    return lambda text, answers: max(compare(text, answer) for answer in answers)


METRICS: dict[str, Metric] = {
    "string_match_all": string_match_all,
    "string_match_part": string_match_part,
    "exact_match": best(lambda text, answer: exact(text.strip(), answer)),
} | {name: best(compare) for name, compare in FUNCTIONS.items() if not name.startswith("retrieval")}


@dataclass(frozen=True, kw_only=True)
class OwnFile(jsonl.RowTask):
    """Sample i is line i of the file `path`, blank lines left out. In rows the task is called `jsonl/` and the file's
    name. Its cells depend on the contents of the file, not on where it is.

    - Protocol: `task=jsonl task.path=FILE`. Each line is an object with `context`, `question` (or none) and `answers`,
      or with `messages` and `answers`; the last message is the question. If lines cannot be read, `plan` and `run` name
      the first five of them before anything runs, and end with exit code 2. Other keys are refused, as they may be
      misspelt ones: what is yours goes into `metadata`, which is not read.
    - Split: after the question, which follows its context after a blank line. With `schedule.evict_after=context` lines
      with equal contexts share a prefill.
    - Source: your file. Cells depend on its contents, not on its folder: an edited file makes new rows. In rows the
      task is called `jsonl/` and the file's name.
    - Metrics by name, `task.metric=`: `string_match_part` (any answer occurs), `string_match_all` (the share of answers
      that occur), `exact_match`, and of LongBench `qa_f1_score`, `rouge_score`, `code_sim_score`, `count_score`,
      `qa_f1_zh_score`, `rouge_zh_score`, which count the best over the answers.
    - Traps: only a chat template marks where a message begins; a model without a template reads the texts one after the
      other.

    Raises MissingFile where there is no file, UserError for a line that cannot be read.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("root",)
    path: str
    name: str = "jsonl"
    metric: str = "string_match_part"
    max_new_tokens: int = 64
    version = "jsonl.1"
    context_length = None  # lines have their own lengths

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "metric", METRICS)
        object.__setattr__(self, "name", f"jsonl/{Path(self.path).stem}")

    @property
    def files(self) -> tuple[str, ...]:
        return (own_name(self.path),)

    def hash_data(self) -> str | None:
        own_file(self.path, FORM)
        if not jsonl.count(None, self.files[0]):
            raise UserError(f"task.path={self.path} has no lines; {FORM}")
        return current_sha256(None, self.files[0])

    def context_of(self, sample: int) -> int:
        return self._first_lines[sample]

    @cached_property
    def _first_lines(self) -> list[int]:
        """For each line the first one with the same context."""
        first: dict[object, int] = {}
        contexts = jsonl.values(self.read_lines(self.files[0]), lambda row: _parts(row)[0])
        return [first.setdefault(index if text is None else text, index) for index, text in enumerate(contexts)]

    def row_reader(self, tokens: TokenCounter) -> Callable[[int, jsonl.Row], Sample]:
        self.score("1", Sample(0, self.name, "", "", "", ("1",), 1))  # loads the packages that the metric needs

        def read(index: int, row: jsonl.Row) -> Sample:
            (context, messages), question = _parts(row)
            text, answers = context or "".join(content + GAP for _, content in messages), jsonl.texts(row, "answers")
            if blank := [answer for answer in answers if not any(map(_is_visible, answer))]:
                why = "no" if blank[0].strip() else "every"
                raise UserError(f"its answers have {blank[0]!r}, which {why} prediction would match: write the answer")
            for answer in answers:
                jsonl.text({"answer": answer}, "answer")  # raises for half of a character
            answers = tuple(answer.strip() for answer in answers)  # as predictions are
            return Sample(index, self.name, text, question, "", answers, self.max_new_tokens, messages=messages)

        return read

    def identity(self) -> dict[str, Any]:
        """As `FromFiles.identity`, of lines that can be read. Raises UserError for others: the file is the user's to
        correct, before anything is planned.
        """
        identity = super().identity()
        self._require_lines(range(self.samples))
        return identity

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        for sample in super().generate(count_tokens, indices):
            if isinstance(sample, InvalidSample):
                self._require_lines(indices)
            yield sample

    def _require_lines(self, indices: Collection[int]) -> None:
        """Raise UserError if some of these lines cannot be read: it names the first ones."""
        no_counter = cast(TokenCounter, len)  # lines are read without a tokenizer
        wrong = [sample for sample in super().generate(no_counter, indices) if isinstance(sample, InvalidSample)]
        faults = [f"line {sample.error.removeprefix(f'{self.files[0]}:')}" for sample in wrong]
        if len(faults) == 1:
            raise UserError(f"task.path={self.path}: {faults[0]}; {FORM}")
        if faults:
            more = [f"and {len(faults) - MOST_NAMED} more"] if len(faults) > MOST_NAMED else []
            first = f"task.path={self.path}: {len(faults)} lines cannot be read; {FORM}"
            raise Several([first, *faults[:MOST_NAMED], *more])

    def score(self, prediction: str, sample: Sample) -> float:
        return METRICS[self.metric](prediction, sample.references)


def check_names(names: Collection[str]) -> None:
    """Raise UserError for a name that is unknown, and for two names of the question."""
    if "question" in names and "input" in names:
        raise UserError("it has question and input, which both are the question: leave one of them out")
    for name in names:
        if name not in (*READ, *BESIDE, *INDEX):
            near = MEANT.get(name.lower()) or next(iter(get_close_matches(name.lower(), READ, 1)), None)
            hint = f"do you mean {near}? " if near else ""
            raise UserError(
                f"it has the unknown key {name[:80]!r}: {hint}read are {', '.join(READ)}; leave the key out, or put it "
                f"into metadata, which is not read, as the columns of LongBench are not: {', '.join(BESIDE)}"
            )


def _is_visible(character: str) -> bool:
    return not character.isspace() and unicodedata.category(character) != "Cf"  # such as a zero-width space


def _content(turn: jsonl.Row) -> str:
    """Return the text of a message; of its parts, if it has any. Raises UserError for images and other parts."""
    parts = turn.get("content")
    if isinstance(parts, list) and parts and all(isinstance(part, dict) for part in parts):
        if other := [part.get("type") for part in parts if part.get("type") != "text"]:
            raise UserError(f"a message has a part of the type {other[0]}: only text is read, of vision models too")
        turn = {"content": "".join(jsonl.text(part, "text") for part in parts)}
    return jsonl.nonempty_text(turn, "content")


def _parts(row: jsonl.Row) -> tuple[tuple[str, tuple[tuple[str, str], ...]], str]:
    """Return the context of a line, as a text or as messages, and its question. Raises UserError."""
    check_names(row)
    if "messages" not in row:
        context = jsonl.nonempty_text(row, "context")
        name = "input" if "input" in row else "question"
        question = jsonl.text(row, name) if name in row else ""
        return (context, ()), GAP + question if question else ""
    if {"context", "question", "input"} & row.keys():
        raise UserError("it has messages and also a context or question: leave one of them out")
    turns, question = conversation(row["messages"])
    return ("", turns), question


def conversation(messages: Any) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return turns of a list of messages before its last one, as role and text, and the last text. Raises UserError."""
    if not isinstance(messages, list) or not messages or not all(isinstance(turn, dict) for turn in messages):
        raise UserError(f"its messages are {json.dumps(messages)[:80]}: a list of at least one object")
    turns = tuple((jsonl.text(turn, "role"), _content(turn)) for turn in messages)
    roles = [role for role, _ in turns]
    if unknown := [role for role in roles if role not in ROLES]:
        raise UserError(f"a message has the role {unknown[0]!r}: allowed: {', '.join(ROLES)}")
    if roles[-1] != "user" or "system" in roles[1:]:
        raise UserError(
            f"its messages are by {', '.join(roles)}: allowed: the last by user, and system only as the first"
        )
    return turns[:-1], turns[-1][1]
