"""HELMET's parts without a judge: recall, RAG, in-context learning, re-ranking. https://github.com/princeton-nlp/HELMET

    helmet/json_kv/test_k105_dep6.jsonl
        {"context": "{...}", "question": "a key", "answer": "its value", "demos": [["a key", "its value"], ...]}
    helmet/ruler/niah_multikey_2/validation_8192.jsonl
        {"context": "...", "query": "...", "type_needle_v": "numbers", "outputs": ["..."]}
    helmet/kilt/nq-dev-multikilt_1000_k50_dep6.jsonl     "id" is optional, "s_pop" of popqa alone
        {"id": "...", "question": "...", "answers": ["..."], "s_pop": 200, "ctxs": [{"title": "...", "text": "..."}]}
    helmet/msmarco/test_reranking_data_k50_dep3.jsonl    "title" is optional
        {"qid": "...", "query": "...", "ctxs": [{"id": "17", "title": "...", "text": "...", "label": 3}, ...]}
    helmet_icl/trec_train.jsonl
        {"text": "...", "coarse_label": 0, "fine_label": 5}

Follows data.py, model_utils.py, utils.py and configs/*.yaml at 4526dfb: prompts, draws (`datasets.shuffle` is the
permutation of numpy's default_rng), the end of the context that a prompt loses if it is too long, and metrics. An
answer is scored together with the end of a prompt that has no chat template ("Answer:"), as the official code does.
"""

import hashlib
import math
import random
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.tasks import jsonl
from kvbench.tasks.files import TaskError, remembered
from kvbench.tasks.metrics import english
from kvbench.tasks.task import Sample, TokenCounter, require_samples

Row = jsonl.Row
LENGTHS = (8192, 16384, 32768, 65536, 131072)
PAIRS = (105, 220, 440, 900, 1800)
PASSAGES = (50, 105, 220, 440, 1000)
RANKED = (50, 130, 285, 600, 1000)
"""What the prompts of each length hold: key-value pairs, passages of an answer, passages to rank, examples."""
SHOTS = {
    "trec_coarse": (400, 800, 1600, 3300, 6600),
    "trec_fine": (400, 800, 1600, 3200, 6400),
    "banking77": (360, 720, 1450, 2900, 5900),
    "clinic150": (440, 880, 1750, 3525, 7050),
    "nlu": (510, 1020, 2040, 4080, 8296),
}
CLASSES = {
    "trec_coarse": ("coarse_label", 6),
    "trec_fine": ("fine_label", 50),
    "banking77": ("label", 77),
    "clinic150": ("intent", 151),
    "nlu": ("label", 68),
}
"""The field of the class, and how many classes there are."""
KILT = {"nq": 6, "triviaqa": 6, "hotpotqa": 3, "popqa": 6}
"""At how many places the passage with the answer stands."""
NIAH = {
    "niah_multikey_2": ("A special magic {} is hidden", "is the special magic {}", "is"),
    "niah_multikey_3": ("A special magic {} is hidden", "is the special magic {}", "is"),
    "niah_multivalue": ("Some special magic {} are hidden", "are all the special magic {}", "are"),
}
POPULAR = 1000
"""Page views from which on a subject of popqa is left out."""


@dataclass(frozen=True)
class Parts:
    """A prompt in its parts, the beginning of the answer, the right answers; labels: relevance of passages by id."""

    before: str
    context: str
    after: str
    begins: str
    references: tuple[str, ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Helmet(jsonl.RowTask):
    r"""A data set at one length of prompt and answer. questions: how many of it are drawn, null for all.

    - Protocol: princeton-nlp/HELMET 4526dfb, `data.py`, `model_utils.py` and `configs/*.yaml`, the parts whose metric
      needs no judge: recall, RAG, in-context learning, re-ranking. `task.context_length` is 8192, 16384, 32768, 65536
      or 131072 tokens of prompt and answer: it selects the file, or the number of examples, and a prompt that is longer
      loses the end of its context. `task.questions` are drawn with the seed, officially 100 (in-context learning: 500,
      balanced over classes); `task.shots` worked examples precede a context, two as published.
    - Chat: officially the prompt of a base model is raw and ends with the beginning of the answer, which is put before
      the answer when it is scored. With `task.chat=true` a chat template wraps the prompt without that beginning.
    - Split: after the passages, the JSON object, the haystack or the examples; worked examples of `json_kv` come after
      its context. Officially the questions of RAG and re-ranking have 3 or 6 rows each, with the answer at other
      places.
    - Metric: substring match of words without articles and punctuation, also in the first line after "Answer:"
      (`helmet_sub_em`); the same as equality (`helmet_exact_match`); the share of needles (`helmet_recall`); NDCG@10 of
      trec_eval, to five digits (`helmet_ndcg_10`). The scores of its categories are means over their tasks.
    - Source: `data.tar.gz` of princeton-nlp/HELMET (11 GB), and for in-context learning the data sets of TREC,
      banking77, CLINC150 and NLU. `helmet/nlu` needs a file that nothing pins: docs/reference/data.md#nlu says how to
      make it.
    - Answers end at the model's stop tokens. The configs of RAG, re-ranking and in-context learning name
      `stop_new_line`, which `eval.py` does not read: its flag is `stop_newline`, false by default. `task.stop=["\n"]`
      ends answers at a line break.
    - Traps: `clinic150` is CLINC150, tested on its validation split.
    - Differences: samples are in the order of the file, not of the shuffle. LongQA, summaries and citations are
      missing: most of their metrics ask a model.
    """

    dataset: str
    context_length: Literal[8192, 16384, 32768, 65536, 131072] = 8192
    questions: int | None = 100
    max_new_tokens: int
    version = "helmet.2"  # names the protocol; `data_sha256` names the rows
    metric = "helmet_sub_em"
    begins = "Answer:"  # how an answer begins
    positive = ("samples", "max_new_tokens", "questions")

    @property
    def row_numbers(self) -> Sequence[int]:
        """The first rows after shuffling, in the order of the file."""
        count = jsonl.count(self.root, self.files[0])
        return sorted(np.random.default_rng(self.seed).permutation(count)[: self.questions].tolist())

    @abstractmethod
    def _parts(self, row: Row) -> Parts:
        """Return the prompt of a row. Raises UserError for an invalid one."""

    def score(self, prediction: str, sample: Sample) -> float:
        return substring(_answer(sample, prediction), sample.references, self.begins.lower())

    def row_reader(self, tokens: TokenCounter) -> Callable[[int, Row], Sample]:
        return lambda index, row: self._sample(tokens, index, self._parts(row))

    def _sample(self, tokens: TokenCounter, index: int, parts: Parts) -> Sample:
        begins, answers = "" if self.chat else f"\n{parts.begins}", parts.references
        context = parts.before + self._fitting(tokens, parts, parts.after + begins)
        return Sample(index, self.name, context, parts.after, begins, answers, self.max_new_tokens, parts.labels)

    def _fitting(self, tokens: TokenCounter, parts: Parts, after: str) -> str:
        """Return the context without as many of its last tokens as the prompt has too many: `tokenize` of
        model_utils.py.
        """
        text, template = parts.before + parts.context + after, getattr(tokens, "template", 0)
        size = tokens(text) + template if template else len(tokens.encode(text, special=True))
        excess = size + self.max_new_tokens - self.context_length
        if excess <= 0:
            return parts.context
        starts = tokens.starts(parts.context)
        if excess > len(starts):
            raise TaskError(
                f"task.context_length={self.context_length} of {self.name}: a prompt has {excess} tokens too many, its "
                f"context only {len(starts)}; choose a longer one of {', '.join(map(str, LENGTHS))}"
            )
        return parts.context[: starts[-excess]]


@dataclass(frozen=True, kw_only=True)
class WithExamples(Helmet):
    """A task that shows `shots` worked examples."""

    shots: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shots < 0:
            raise UserError(f"task.shots={self.shots} of {self.name}: allowed: 0 or more")


@dataclass(frozen=True, kw_only=True)
class JsonKV(WithExamples):
    """The value of a key in a JSON object, after worked examples from the same object."""

    dataset: Literal["json_kv"]
    begins = "Corresponding value:"

    @property
    def files(self) -> tuple[str, ...]:
        return (f"helmet/json_kv/test_k{_of(self, PAIRS)}_dep6.jsonl",)

    def _parts(self, row: Row) -> Parts:
        demos = "".join(f"Key: {key}\nCorresponding value: {value}\n\n" for key, value in _pairs(row)[: self.shots])
        ask = "Extract the value corresponding to the specified key in the JSON object below."
        after = f"\n\n{ask}\n\n{demos}Key: {jsonl.text(row, 'question')}"
        context, answer = jsonl.nonempty_text(row, "context"), jsonl.nonempty_text(row, "answer")
        return Parts("", context, after, self.begins, (answer,))


@dataclass(frozen=True, kw_only=True)
class Niah(Helmet):
    """Needles of RULER in HELMET's own rows."""

    dataset: Literal["niah_multikey_2", "niah_multikey_3", "niah_multivalue"]
    metric = "helmet_recall"

    @property
    def files(self) -> tuple[str, ...]:
        return (f"helmet/ruler/{self.dataset}/validation_{self.context_length}.jsonl",)

    def _parts(self, row: Row) -> Parts:
        kind, query = jsonl.text(row, "type_needle_v"), jsonl.text(row, "query")
        hidden, ask, verb = NIAH[self.dataset]
        before = (
            f"{hidden.format(kind)} within the following text. Make sure to memorize it. "
            f"I will quiz you about the {kind} afterwards.\n"
        )
        after = f"\nWhat {ask.format(kind)} for {query} mentioned in the provided text?"
        begins = f"The special magic {kind} for {query} mentioned in the provided text {verb}"
        answers = jsonl.texts(row, "answer" if "answer" in row else "outputs")
        return Parts(before, jsonl.nonempty_text(row, "context"), after, begins, answers)

    def score(self, prediction: str, sample: Sample) -> float:
        return recall(_answer(sample, prediction), sample.references)


@dataclass(frozen=True, kw_only=True)
class Kilt(WithExamples):
    """A question with retrieved passages, after worked examples with passages of their own."""

    dataset: Literal["nq", "triviaqa", "hotpotqa", "popqa"]

    @property
    def files(self) -> tuple[str, ...]:
        kinds = ("_test", "_test") if self.dataset == "popqa" else ("-dev-multikilt", "-train-multikilt")
        test, demo = (f"helmet/kilt/{self.dataset}{kind}_1000" for kind in kinds)
        depth = f"dep{KILT[self.dataset]}.jsonl"
        return f"{test}_k{_of(self, PASSAGES)}_{depth}", f"{demo}_k3_{depth}"

    @property
    def row_numbers(self) -> Sequence[int]:
        return _drawn_keys(self, _questions(self.root, self.files[0]))

    def _parts(self, row: Row) -> Parts:
        key, demos = _question(row), [demo for demo in _read(self.root, self.files[1]) if _is_rare(demo)]
        if self.dataset == "popqa":
            demos = [demo for demo in demos if _question(demo) != key]
        shown = "".join(
            f"{_passages(demo)}\n\nQuestion: {jsonl.text(demo, 'question')}\n"
            f"Answer: {jsonl.texts(demo, 'answers')[0]}\n\n"
            for demo in _drawn_demos(self, demos, str(key), _question)
        )
        before = (
            "Use the given documents to write a concise and short answer to the question. Write your answer in the "
            f"following format:\nAnswer: [answer]\n\n{shown}"
        )
        after = f"\n\nQuestion: {jsonl.text(row, 'question')}"
        return Parts(before, _passages(row), after, self.begins, jsonl.texts(row, "answers"))


@dataclass(frozen=True, kw_only=True)
class Rerank(WithExamples):
    """Passages of MS MARCO to rank by relevance, after worked examples."""

    dataset: Literal["msmarco"]
    metric = "helmet_ndcg_10"
    begins = "Ranking:"

    @property
    def files(self) -> tuple[str, ...]:
        test, demo = (f"helmet/msmarco/test_reranking_data_k{count}_dep3.jsonl" for count in (_of(self, RANKED), 10))
        return test, demo

    @property
    def row_numbers(self) -> Sequence[int]:
        return _drawn_keys(self, dict(enumerate(_queries(self.root, self.files[0]))))

    @cached_property
    def _demos(self) -> Sequence[Row]:
        """Without the ones of drawn queries, if there are more than twice as many."""
        demos, rows, queries = _read(self.root, self.files[1]), self.row_numbers, _queries(self.root, self.files[0])
        drawn = {queries[row] for row in rows} if len(demos) > 2 * len(rows) else ()
        return [demo for demo in demos if _query(demo) not in drawn]

    def _parts(self, row: Row) -> Parts:
        key, passages = _query(row), _ranked(row)
        titled = "title" in passages[0]
        shown = "".join(
            f"{_numbered(_ranked(demo), titled)}\n\nQuery: {jsonl.text(demo, 'query')}\n"
            f"Ranking: {_gold(_ranked(demo))}\n\n"
            for demo in _drawn_demos(self, [demo for demo in self._demos if _query(demo) != key], key, _query)
        )
        before = (
            "You are provided with a list of documents, each indicated by their ID. Rank each document based on their "
            "relevance to the question in descending order from most relelvant to least relevant texts. Include all "
            "documents in the rankings. Write your answer using the unique IDs, with the following format:\nRanking: "
            f"ID3 > ID1 > ID2\n\n{shown}"
        )
        after = f"\n\nQuery: {jsonl.text(row, 'query')}"
        labels = tuple(f"{passage['id']} {passage['label']}" for passage in passages)
        return Parts(before, _numbered(passages, titled), after, self.begins, (_gold(passages),), labels)

    def score(self, prediction: str, sample: Sample) -> float:
        labels = (choice.rsplit(" ", 1) for choice in sample.choices)
        relevance = {name: int(label) for name, label in labels}
        return ndcg(ranking(_answer(sample, prediction)), relevance)


@dataclass(frozen=True, kw_only=True)
class InContext(Helmet):
    """The class of a text as a number, after many examples; the numbers of classes are drawn for each text."""

    dataset: Literal["trec_coarse", "trec_fine", "banking77", "clinic150", "nlu"]
    questions: int | None = 500
    metric = "helmet_exact_match"
    begins = "label:"

    @property
    def files(self) -> tuple[str, ...]:
        if self.dataset == "nlu":
            return ("helmet_nlu/train.jsonl",)
        name = self.dataset.partition("_")[0]
        return f"helmet_icl/{name}_train.jsonl", f"helmet_icl/{name}_test.jsonl"

    def score(self, prediction: str, sample: Sample) -> float:
        return exact(_answer(sample, prediction), sample.references, self.begins)

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample]:
        _, test = self._texts
        require_samples(self, indices, len(test))
        for index in sorted(indices):
            yield self._sample(count_tokens, index, self._parts(test[index]))

    @property
    def row_numbers(self) -> Sequence[int]:
        return range(len(self._texts[1]))

    @cached_property
    def _texts(self) -> tuple[Sequence[Row], Sequence[Row]]:
        """Texts with the numbers of their classes: examples, and those in question, balanced if there are too many."""
        label, count = CLASSES[self.dataset]
        train, *rest = ([_labelled(row, label, count, name) for row in _read(self.root, name)] for name in self.files)
        if rest:
            (test,) = rest
        else:
            order, part = np.random.default_rng(self.seed).permutation(len(train)), math.ceil(0.1 * len(train))
            train, test = [train[at] for at in order[part:]], [train[at] for at in order[:part]]
        if self.questions is not None and len(test) > self.questions:
            shuffled = [test[at] for at in np.random.default_rng(self.seed).permutation(len(test))]
            test = _balanced(shuffled, self.questions, self.seed)
        return train, test

    def _parts(self, row: Row) -> Parts:
        seed = (_digest(row["text"]) + self.seed) % 2**31
        numbers = list(range(CLASSES[self.dataset][1]))
        random.Random(seed).shuffle(numbers)
        examples = _balanced(self._texts[0], _of(self, SHOTS[self.dataset]), seed)
        context = "\n\n".join(f"{example['text']}\nlabel: {numbers[example['label']]}" for example in examples)
        before = (
            "Use the provided mapping from the text to label to assign a label to the text. Only output "
            '"label: {label}" and nothing else. \n\n'
        )
        return Parts(before, context, f"\n\n{row['text']}", self.begins, (str(numbers[row["label"]]),))


def _of(task: Helmet, sizes: Sequence[int]) -> int:
    """Return the size that belongs to the length of a task's prompts."""
    return sizes[LENGTHS.index(task.context_length)]


def _answer(sample: Sample, prediction: str) -> str:
    """Return an answer as it is scored: after the beginning that the prompt gave it."""
    return sample.answer_prefix.removeprefix("\n") + prediction


def _drawn_keys(task: Helmet, keys: Mapping[int, Any]) -> Sequence[int]:
    """Return all rows of the questions that are drawn, and those that cannot be read; a question has several rows."""
    distinct = sorted({key for key in keys.values() if key is not None})
    drawn = random.Random(task.seed).sample(distinct, min(task.questions or len(distinct), len(distinct)))
    chosen = {None, *drawn}
    return [row for row, key in keys.items() if key in chosen]


def _drawn_demos(task: WithExamples, demos: Sequence[Row], name: str, key: Callable[[Row], Any]) -> Sequence[Row]:
    """Return the first examples with different keys after shuffling with the hash of a question's name."""
    order = np.random.default_rng(_digest(name) % 2**31).permutation(len(demos)) if task.shots else ()
    distinct: dict[Any, Row] = {}
    for place in order:
        distinct.setdefault(key(demos[place]), demos[place])
    if len(distinct) < task.shots:
        raise UserError(f"task.shots={task.shots} of {task.name}: {task.files[1]} has {len(distinct)} examples for it")
    return list(distinct.values())[: task.shots]


def _balanced(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """Rows in rounds that have one of each class, drawn and in random order: `balance_labels` of data.py."""
    draw, classes = random.Random(seed), grouped(rows, itemgetter("label"))
    rounds: list[list[Row]] = [[] for _ in range(math.ceil(count / len(classes)))]
    for members in classes.values():
        chosen = draw.sample(range(len(members)), len(rounds) % len(members))
        while len(chosen) < len(rounds):
            chosen += draw.sample(range(len(members)), min(len(rounds) - len(chosen), len(members)))
        for place, member in enumerate(chosen):
            rounds[place].append(members[member])
    for members in rounds:
        draw.shuffle(members)
    return [row for members in rounds for row in members][:count]


def _digest(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


@remembered
def _read(root: str | None, name: str) -> tuple[Row, ...]:
    """Return all rows of a file. Raises UserError for one that is no JSON object."""
    rows = []
    for line in jsonl.rows(root, name):
        try:
            rows.append(line.read())
        except ValueError as error:
            raise UserError(f"{line.place}: {error}") from None
    return tuple(rows)


@remembered
def _questions(root: str | None, name: str) -> Mapping[int, Any]:
    rows = enumerate(jsonl.values(jsonl.rows(root, name), lambda row: (_question(row), _is_rare(row))))
    return {number: key and key[0] for number, key in rows if key is None or key[1]}


def _is_rare(row: Row) -> bool:
    views = row.get("s_pop", 0)
    if not isinstance(views, int | float):
        raise UserError(f"its s_pop is {views!r}: a number")
    return views < POPULAR


def _question(row: Row) -> str | int:
    return row["id"] if "id" in row else jsonl.text(row, "question")


def _query(row: Row) -> str:
    return jsonl.text(row, "qid")


_queries = jsonl.column(_query)


def _labelled(row: Row, label: str, classes: int, name: str) -> Row:
    number = jsonl.field(row, label)
    if not isinstance(number, int) or not 0 <= number < classes:
        raise UserError(f"{name}: {label} of a row is {number!r}: a whole number below {classes}")
    return {"text": jsonl.text(row, "text"), "label": number}


def _pairs(row: Row) -> list[tuple[str, str]]:
    demos = jsonl.field(row, "demos")
    if not isinstance(demos, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in demos):
        raise UserError(f"its demos are {str(demos)[:80]}: a list of pairs of texts")
    return [(key, value) for key, value in demos]


def _passages(row: Row) -> str:
    return "\n\n".join(
        f"Document (Title: {passage['title']}): {passage['text']}" for passage in _passages_with(row, "title", "text")
    )


def _ranked(row: Row) -> Sequence[Row]:
    return _passages_with(row, "id", "text", "label")


def _numbered(passages: Sequence[Row], titled: bool) -> str:
    titles = (f" (Title: {passage['title']})" if titled else "" for passage in passages)
    return "\n\n".join(
        f"[ID: {passage['id']}] Document{title}: {passage['text']}"
        for passage, title in zip(passages, titles, strict=True)
    )


def _gold(passages: Sequence[Row]) -> str:
    ranked = sorted(passages, key=itemgetter("label"), reverse=True)
    return " > ".join(passage["id"] for passage in ranked)


def _passages_with(question: Row, *names: str) -> Sequence[Row]:
    """Return the passages of a question. Raises UserError if one of them lacks one of these fields."""
    passages = jsonl.field(question, "ctxs")
    if not isinstance(passages, list) or not all(isinstance(row, dict) and {*names} <= {*row} for row in passages):
        raise UserError(f"its ctxs are {str(passages)[:80]}: a list of passages with {', '.join(names)}")
    return passages


def substring(text: str, references: Sequence[str], prefix: str) -> float:
    """1 if a reference occurs in the text or in its first answer, words compared without articles and punctuation."""
    texts = [_joined(text), _joined(first_answer(text, prefix))]
    return float(any(_joined(reference) in part for reference in references for part in texts))


def exact(text: str, references: Sequence[str], prefix: str) -> float:
    """1 if the first answer equals a reference, words compared without articles and punctuation."""
    return float(_joined(first_answer(text, prefix)) in [_joined(reference) for reference in references])


def recall(text: str, references: Sequence[str]) -> float:
    """Share of the references that occur in the text, regardless of case."""
    return sum(reference.lower() in text.lower() for reference in references) / len(references)


def first_answer(text: str, prefix: str) -> str:
    """Return the rest of the line after the first `prefix`, or the first line without one; a repeated prefix is
    dropped.
    """
    match = re.search(f"{prefix}(.*)", text, re.IGNORECASE) or re.match("(.*)", text)
    assert match is not None
    return re.sub(f"^{prefix}", "", match[1].strip(), flags=re.IGNORECASE).strip()


def ranking(text: str) -> list[str]:
    """Return the distinct ids of the longest chain such as "[3] > [1]"; the whole text, changed, if it has no
    number.
    """
    text = re.sub(r"[\[\]:]", "", text).lower().replace("id", "")
    chains = [match[0] for match in re.finditer(r"\d+(?:\s*>\s*\d+)*", text)]
    ids = [part.strip() for part in max(chains, key=len).split(">")] if chains else [text]
    return list(dict.fromkeys(name for name in ids if not chains or name.isdigit()))


def ndcg(ranked: Sequence[str], relevance: Mapping[str, int], depth: int = 10) -> float:
    """NDCG of the first `depth` ids as trec_eval computes it, with the relevance as gain; rounded to five digits."""
    gains = [relevance.get(name, 0) for name in ranked]
    best = _discounted(sorted(relevance.values(), reverse=True)[:depth])
    return round(_discounted(gains[:depth]) / best, 5) if best else 0.0


def _discounted(gains: Sequence[int]) -> float:
    return sum(max(gain, 0) / math.log2(place + 2) for place, gain in enumerate(gains))


def _joined(text: str) -> str:
    return " ".join(english(text))
