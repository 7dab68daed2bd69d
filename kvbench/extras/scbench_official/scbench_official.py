"""SCBench as its authors run it: scbench/{run_scbench,eval_utils,compute_scores}.py of
https://github.com/microsoft/MInference at fb56c91.

    context (or input)   the long text, or the numbers of mf
    multi_turns          [{"input": "Key: ...", "answer": "9c02...", "options": [...], "name": "add", "task": ...}, ...]
    lang, repo           repoqa: "python", the repository; `name` is the function's

Modes, `turns`: `gold` is multi-turn with right answers, the default there; `own` is `--disable_golden_context`; `none`
is `--same_context_different_query`. Multi-turn prompts begin with context and first question, so that methods evict
after the first question there (`schedule.evict_after=prompt`); with separate requests they evict after the context.

Kept as it is there: with a chat template, later questions of mf name the last statistic of the conversation, and
answers to later questions of summary begin with "This paper"; without one, later questions of choice_eng ask for the
letter. Each question is tokenised alone. References that are texts count letter by letter in many_shot and qa_chn: one
that occurs is enough.

Differences: the first token of a sequence is not doubled, which moves the border of a truncation by one token; answers
of the model's own are carried as the tokens that were generated, not tokenised anew; with own answers and a template
without a fixed system turn the official code repeats before each question what begins a conversation (the first token
of Llama 3, the system turn of Qwen2.5), here the template's text between two turns is read.

Metrics follow compute_scores.py there: each scores one answer against its references, in 0..1. Those that are not here
are InfiniteBench's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks import infinitebench, jsonl
from kvbench.tasks.files import folder, remembered
from kvbench.tasks.scbench import FUNCTIONS, SCBench
from kvbench.tasks.shared_context import ContextWithQuestions, Question, Turns
from kvbench.tasks.task import GAP, Truncation, Turn, require_choice, require_positive


def contains(prediction: str, references: Sequence[str]) -> float:
    """1 if the answer contains the first reference, character by character."""
    return float(infinitebench.first(references) in prediction)


def contains_any(prediction: str, references: Sequence[str]) -> float:
    """1 if the answer contains one of the references, regardless of case."""
    answer = prediction.strip().upper()
    return float(any(reference.upper() in answer for reference in references))


def share(prediction: str, references: Sequence[str]) -> float:
    """Share of the references that the answer contains, regardless of case, rounded to two decimals."""
    infinitebench.first(references)
    answer = prediction.lower()
    return round(sum(reference.lower() in answer for reference in references) / len(references), 2)


def number(prediction: str, references: Sequence[str]) -> float:
    """1 if the first number of the answer equals the label: without its sign, and for a whole label its fraction."""
    label, match = infinitebench.number(infinitebench.first(references)), re.search(r"\d+\.\d+|\d+", prediction)
    if match is None:
        return 0.0
    value = float(match[0])
    return float((int(value) if isinstance(label, int) and value < float("inf") else value) == label)


METRICS = {
    "kv": contains,
    "prefix_suffix": contains,
    "passkey": infinitebench.passkey,
    "vt": share,
    "mf": number,
    "many_shot": contains_any,
    "qa_eng": contains_any,
    "qa_chn": infinitebench.qa_chinese,
    "choice_eng": infinitebench.choice,
    "summary": infinitebench.summary,
}
"""The metric of each kind of question; repoqa's takes other arguments (`pass_at_1`)."""
MIXED = {
    "summary_with_needles": {"summary": 800, "passkey": 15},
    "repoqa_and_kv": {"repoqa": 1024, "kv": 80},
}
"""The mixed tasks: the kinds of their questions, and how many new tokens each has."""
MEMBERS = tuple(kind for kind in (*METRICS, "repoqa", *MIXED) if kind != "passkey")
LETTERS = "ABCD"


@dataclass(frozen=True, kw_only=True)
class OfficialSCBench(SCBench):
    """One task, `member`; `ask` is the wording of a question, `instruction` may be empty.

    max_turns: only the first so many turns of a context. max_seq_length: of a whole conversation; `max_prompt_tokens`
    is what it leaves beside the answers. max_new_tokens: of an answer; mixed tasks have fewer for some kinds (`MIXED`).

    - Protocol: `scbench/` of microsoft/MInference at `fb56c91`. `task.turns=gold`, the default, is its multi-turn mode,
      in which right answers precede a question; `own` is `--disable_golden_context`, in which the model's own do;
      `none` is `--same_context_different_query`, separate requests. `task.max_turns=5` and `task.max_seq_length=131072`
      are its flags.
    - Split: official multi-turn runs read the context with the first question and evict then, which is the default here
      (`schedule.evict_after=prompt`); with separate requests they evict after the context: `task.turns=none
      schedule.evict_after=context`. Evicting again over turns (`schedule.decode_every=N`) is kvbench's own.
      docs/reference/turns.md#conversations says how caches are carried.
    - Tokens: what is read after the eviction is tokenised alone, question by question, as the official code does: a
      tokenizer that puts a blank before a text (SentencePiece) puts it before each question.
    - Source: microsoft/SCBench, the JSON lines that the official code names. No SHA-256 is pinned yet.
    - Truncation: the middle of what is read before the first answer, as tokens (`task.truncation=middle_tokens`), so
      that the conversation fits into `task.max_seq_length`. A model with shorter sequences needs a smaller one.
    - Metrics: `compute_scores.py`, of each turn; a table with `cols=question_number` has the official numbers
      by turn. Of mixed tasks the official code has a mean for each kind, kvbench one over both: their turns alternate.
    - Traps: in many_shot and qa_chn one right character is enough for a point, or a part of it, as in the official
      code. With a chat template later questions of mf name the last statistic, and answers of summary begin with "This
      paper".
    - Differences: the file `kvbench/extras/scbench_official/scbench_official.py` lists them.
    """

    turns: Turns = "gold"
    truncation: Truncation = "middle_tokens"
    max_turns: int = 5
    max_seq_length: int = 131_072
    version = "scbench-fb56c91.2"
    ends_answers = True
    tokenises_alone = True
    wraps_context = False
    family = "scbench"
    metrics = METRICS
    mixed = MIXED
    check_summary = infinitebench.summary_scorer

    def __post_init__(self) -> None:
        require_choice(self, "member", MEMBERS)
        require_positive(self, "max_turns", "max_seq_length", "max_new_tokens")
        if self.max_prompt_tokens is None and self.truncation != "refuse":
            object.__setattr__(self, "max_prompt_tokens", self._room())
        super().__post_init__()

    def _room(self) -> int:
        """Tokens that official runs keep of what is read before the first answer."""
        exists = (folder(self.root) / self.files[0]).is_file()
        turns = min(next(iter(self.counts()), self.max_turns) if exists else self.max_turns, self.max_turns)
        kinds = MIXED.get(self.member)
        answers = sum(map(self._most, kinds)) * turns // 2 if kinds else self.max_new_tokens * turns
        room = self.max_seq_length - answers - (1000 if self.turns == "none" else 0)
        if room < 2:
            raise UserError(
                f"task.max_seq_length={self.max_seq_length} of {self.name}: the answers alone take {answers} tokens; "
                f"allowed: {self.max_seq_length - room + 2} or more, or task.max_prompt_tokens=N"
            )
        return room

    def _most(self, kind: str) -> int:
        """Return new tokens of an answer to a kind of question."""
        return min(self.max_new_tokens, MIXED.get(self.member, {}).get(kind, self.max_new_tokens))

    @property
    def files(self) -> tuple[str, ...]:
        return (f"scbench_official/{self.member}.jsonl",)

    def counts(self) -> Sequence[int]:
        return [min(turns or 1, self.max_turns) for turns in _counts(self.root, self.files[0])]

    def _count(self, row: jsonl.Row) -> int:
        return min(_count(row), self.max_turns)

    def _content(self, row: jsonl.Row) -> ContextWithQuestions:
        """Raise UserError for a missing field or a wrong type."""
        context = jsonl.field(row, "context" if "context" in row else "input")
        if not isinstance(context, str | list) or not context:
            raise UserError(f"its context is {str(context)[:80]!r}: a text, or a list of numbers")
        questions = [self._question(row, turn) for turn in _turns(row)[: self.max_turns]]
        beginning = ""
        if self.member == "mf":
            beginning = (questions[0].text if self.turns == "none" else _statistic(questions[0].text)) + GAP
        return ContextWithQuestions(beginning + str(context), questions)

    def _question(self, row: jsonl.Row, turn: Mapping[str, Any]) -> Question:
        text, answer, kind = jsonl.text(turn, "input"), jsonl.field(turn, "answer"), self.member
        if self.member in MIXED:
            kind = str(jsonl.field(turn, "task")).removeprefix("scbench_")
            if kind not in MIXED[self.member]:
                raise UserError(f"its task is {kind[:80]!r}: {' or '.join(f'scbench_{k}' for k in MIXED[self.member])}")
        if not isinstance(answer, int | float if kind == "mf" else str | list) or isinstance(answer, bool):
            raise UserError(f"its answer is {str(answer)[:80]!r}: {'a number' if kind == 'mf' else 'a text or texts'}")
        if kind == "mf":
            _statistic(text)
        if kind == "repoqa":
            language, repository = jsonl.text(row, "lang"), jsonl.text(row, "repo")
            if language not in FUNCTIONS:
                raise UserError(f"its lang is {language!r}: one of {', '.join(FUNCTIONS)}")
            needles, name = _needles(self.root, self.files[0]).get(repository, ()), jsonl.text(turn, "name")
            needles = [(needle, function) for needle, function, place in needles if place < self.max_turns]
            same = tuple(function for needle, function in needles if needle == name)
            return Question(text, same, kind, (language, *(function for _, function in needles)), str(answer))
        if kind == "choice_eng":
            options = jsonl.texts(turn, "options")
            if len(options) != len(LETTERS) or answer not in options:
                raise UserError(f"its options are {str(options)[:80]}: four texts, one of them the answer {answer!r}")
            listed = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=True))
            return Question(f"{text}\n{listed}", (answer, LETTERS[options.index(answer)]), kind, gold=answer)
        items: Sequence[Any] = [answer]
        if isinstance(answer, list) or (isinstance(answer, str) and kind in ("vt", "many_shot", "qa_chn")):
            items = answer
        references = tuple(map(str, items))
        return Question(text, references, kind, gold=str(answer))

    @property
    def opening(self) -> str:
        return self.instruction + GAP if self.instruction and self.member != "mf" else ""

    def turn(self, question: Question, turn: int, content: ContextWithQuestions, templated: bool) -> Turn:
        """As the official code words it."""
        last = content.questions[-1]
        assert isinstance(last, Question)
        return Turn(
            self._worded(question, turn > 0, templated, last),
            question.gold if self.turns == "gold" else None,
            self._most(question.kind),
            "This paper" if self.member == "summary" and turn and templated else "",
        )

    def _worded(self, question: Question, later: bool, templated: bool, last: Question) -> str:
        text = self.ask.replace("{question}", question.text)
        if self.member == "mf" and (later or self.turns == "none"):
            text = _statistic((last if later and templated else question).text) + GAP + text
        if self.member == "choice_eng" and later and not templated and self.turns == "gold":
            text = text.replace("The the correct", "The letter of the correct")
        apart = self.turns == "none" or (later and (templated or self.turns == "own"))
        return text if apart else GAP + text


@remembered
def _needles(root: str | None, file: str) -> dict[str, list[tuple[str, str, int]]]:
    """Name, function and turn of all that is asked for in a repository, over all rows, as officially."""

    def read(row: jsonl.Row) -> tuple[str, list[tuple[str, str, int]]]:
        functions = [
            (jsonl.text(turn, "name"), jsonl.text(turn, "answer"), place)
            for place, turn in enumerate(_turns(row))
            if turn.get("task") in (None, "scbench_repoqa")
        ]
        return jsonl.text(row, "repo"), functions

    needles: dict[str, list[tuple[str, str, int]]] = {}
    for row in jsonl.values(jsonl.rows(root, file), read):
        if row is not None:
            needles.setdefault(row[0], []).extend(row[1])
    return needles


def _turns(row: jsonl.Row) -> list[Mapping[str, Any]]:
    turns = jsonl.field(row, "multi_turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, Mapping) for turn in turns):
        raise UserError(f"its multi_turns are {str(turns)[:80]}: a list of at least one question with its answer")
    return turns


def _statistic(text: str) -> str:
    """Return the question that precedes one of mf. Raises UserError if it asks for no statistic."""
    named = re.search("The .+ is", text)
    if named is None:
        raise UserError(f"its question {text[:80]!r} asks for nothing: it has no 'The ... is'")
    return f"What is {named[0].lower()[:-3]}?"


def _count(row: jsonl.Row) -> int:
    return len(_turns(row))


_counts = jsonl.column(_count)
