"""The tasks of LongBench and LongBench-E: https://github.com/THUDM/LongBench, LongBench/{pred,eval,metrics}.py.

    input        "What is Saltram's living situation?"
    context      "... \\n I had met him at the house of ..."
    answers      ["He is a guest in the home of the Mulvilles."]
    length       22692       words in English and code, characters in Chinese
    all_classes  null        trec, lsht: ["Food", "Date", ...]
    dataset, language, _id   not read

Difference: no sequence begins twice; pred.py adds a first token before a chat template that has one.

Each metric scores one answer against one reference in 0..1. Aggregation: the maximum over references, then the mean
over samples; the official number is x 100, rounded to two digits. A metric raises UserError if its package is missing.
"""

import difflib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Thread
from typing import Any, ClassVar, Literal

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import fill, find, folder, json_object
from kvbench.tasks.metrics import ALL, chinese, english, f1, pinned
from kvbench.tasks.task import Sample, TokenCounter, require_choice

PROMPTS = "longbench/config/dataset2prompt.json"
LENGTHS = "longbench/config/dataset2maxlen.json"
METRICS = {
    "narrativeqa": "qa_f1_score",
    "qasper": "qa_f1_score",
    "multifieldqa_en": "qa_f1_score",
    "multifieldqa_zh": "qa_f1_zh_score",
    "hotpotqa": "qa_f1_score",
    "2wikimqa": "qa_f1_score",
    "musique": "qa_f1_score",
    "dureader": "rouge_zh_score",
    "gov_report": "rouge_score",
    "qmsum": "rouge_score",
    "multi_news": "rouge_score",
    "vcsum": "rouge_zh_score",
    "trec": "classification_score",
    "triviaqa": "qa_f1_score",
    "samsum": "rouge_score",
    "lsht": "classification_score",
    "passage_count": "count_score",
    "passage_retrieval_en": "retrieval_score",
    "passage_retrieval_zh": "retrieval_zh_score",
    "lcc": "code_sim_score",
    "repobench-p": "code_sim_score",
}
"""The official name of each task's metric."""
MEMBERS = tuple(METRICS)
V1_ONLY = ("narrativeqa", "multifieldqa_zh", "musique", "dureader", "qmsum", "vcsum", "lsht", "passage_retrieval_zh")
EXTENDED = tuple(member for member in MEMBERS if member not in V1_ONLY)
"""The tasks of LongBench-E."""
FIRST_LINE = ("trec", "triviaqa", "samsum", "lsht")
"""Tasks whose answers are scored by their first line, after leading line breaks."""
Bucket = Literal["0-4k", "4-8k", "8k+"]
"""The ranges of `length` that LongBench-E reports: below 4000, below 8000, and the rest."""
RECURSION_LIMIT = 1000  # Python's default


def qa_f1(prediction: str, reference: str) -> float:
    """`qa_f1_score`: F1 (`words.f1`) of the multisets of words as `words.english` splits them.

    Namesakes: InfiniteBench's qa_english is the same; SCBench in KVzip also reads digits as words.
    """
    return f1(english(prediction), english(reference))


def qa_f1_zh(prediction: str, reference: str) -> float:
    """`qa_f1_zh_score`: F1 of jieba's words, which lose case and punctuation after the text is split.

    InfiniteBench's qa_chinese counts characters.
    """
    return f1(_chinese_words(prediction), _chinese_words(reference))


def rouge(prediction: str, reference: str) -> float:
    """`rouge_score`: F of summary-level ROUGE-L by rouge 1.0.1: `2 P R / (P + R + 1e-8)`, 0.999999995 at best.

    P and R are the words in the union of the longest common subsequences of all pairs of sentences, over the distinct
    words of prediction and of reference. Sentences end at every "." (also in 3.5), words at white space; case counts,
    nothing is stemmed. 0 for a text without sentences (empty, or only dots).

    That package finds a longest common subsequence by recursion, with one call for each skipped word; if Python's
    limit ends it (about 980 words), the official scorer gives 0. The limit includes the caller's depth, so the score is
    computed in a thread of its own at the depth of the official script.

    Namesakes that differ: rouge-score (InfiniteBench, the needle heat-map) lowers case, can stem, drops punctuation,
    and counts words as often as they occur.
    """
    thread = _RougeThread(rouge_package(), prediction, reference)
    thread.start()
    thread.join()
    if thread.failure is not None:
        raise thread.failure
    return thread.value


def rouge_zh(prediction: str, reference: str) -> float:
    """`rouge_zh_score`: `rouge` of jieba's words joined by blanks. Only "." ends a sentence: most texts are one."""
    return rouge(" ".join(chinese(prediction)), " ".join(chinese(reference)))


@lru_cache
def rouge_package() -> Any:
    """Return the scorer of rouge 1.0.1, for F of ROUGE-L only."""
    return pinned("rouge", "1.0.1").Rouge(metrics=["rouge-l"], stats=["f"])


def classification(prediction: str, reference: str, classes: Sequence[str]) -> float:
    """`classification_score`: `1 / n` if the reference is one of the n classes that the answer names, else 0.

    Of the named classes, one that is a proper part of the reference is removed, but after each removal the next class
    is skipped, as officially: for the reference "abc" the answer "a ab abc" loses "a", keeps "ab" and scores 1/2.
    """
    named = [name for name in classes if name in prediction]
    place = 0
    while place < len(named):
        if named[place] in reference and named[place] != reference:
            named.remove(named[place])  # the first that equals it: a list of classes may have one twice
        place += 1
    return 1 / len(named) if reference in named else 0.0


def retrieval(prediction: str, reference: str) -> float:
    """`retrieval_score`: `count` of the number in a reference such as "Paragraph 15", else UserError is raised."""
    return count(prediction, _paragraph(r"Paragraph (\d+)", reference))


def retrieval_zh(prediction: str, reference: str) -> float:
    """`retrieval_zh_score`: `retrieval` for a reference such as "段落15"."""
    return count(prediction, _paragraph(r"段落(\d+)", reference))


def count(prediction: str, reference: str) -> float:
    """`count_score`: share of the answer's whole numbers that equal the reference, as texts; 8.0 holds 8 and 0."""
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(reference) / len(numbers) if numbers else 0.0


def code_sim(prediction: str, reference: str) -> float:
    """`code_sim_score`: `fuzz.ratio / 100` of one line of the answer and the reference: `2 M / T`, whole percents.

    M is what the blocks of difflib.SequenceMatcher match, T the letters of both. The line may be empty: "//x", an empty
    line and code score 0.

    Namesakes that differ: fuzzywuzzy with python-Levenshtein matches other blocks and is refused; rapidfuzz does not
    round; lm-evaluation-harness skips empty lines.
    """
    lines = prediction.lstrip("\n").split("\n")
    code = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    return fuzz().ratio(code, reference) / 100


@lru_cache
def fuzz() -> Any:
    """fuzzywuzzy's comparison of two lines. Raises UserError if it is not installed or would compare otherwise."""
    module = pinned("fuzzywuzzy", "0.18.0", "fuzzywuzzy.fuzz")
    if module.SequenceMatcher is not difflib.SequenceMatcher:
        raise UserError(
            "fuzzywuzzy compares by python-Levenshtein where that is installed, which changes the scores of code; "
            "run: pip uninstall -y python-Levenshtein Levenshtein"
        )
    return module


def _chinese_words(text: str) -> list[str]:
    bare = ("".join(word.lower().translate(ALL).split()) for word in chinese(text))
    return [word for word in bare if word]


def _paragraph(pattern: str, reference: str) -> str:
    match = re.search(pattern, reference)
    if match is None:
        raise UserError(f"the reference {reference[:80]!r} names no paragraph as {pattern!r} does")
    return match[1]


class _RougeThread(Thread):
    """One score, three calls deep as in the official script: a thread begins at depth two."""

    def __init__(self, scorer: Any, prediction: str, reference: str) -> None:
        super().__init__(name="rouge")
        self.scorer, self.texts = scorer, (prediction, reference)
        self.value, self.failure = 0.0, None

    def run(self) -> None:
        limit = sys.getrecursionlimit()
        if limit != RECURSION_LIMIT:
            sys.setrecursionlimit(RECURSION_LIMIT)
        try:
            self.value = float(self.scorer.get_scores([self.texts[0]], [self.texts[1]], avg=True)["rouge-l"]["f"])
        except (ValueError, RecursionError):
            self.value = 0.0  # as officially: no sentences, or too many words
        except Exception as error:
            self.failure = error
        finally:
            if limit != RECURSION_LIMIT:
                sys.setrecursionlimit(limit)


FUNCTIONS: dict[str, Callable[[str, str], float]] = {
    "qa_f1_score": qa_f1,
    "qa_f1_zh_score": qa_f1_zh,
    "rouge_score": rouge,
    "rouge_zh_score": rouge_zh,
    "retrieval_score": retrieval,
    "retrieval_zh_score": retrieval_zh,
    "count_score": count,
    "code_sim_score": code_sim,
}
"""The metrics that need no classes."""


def check_packages(member: str) -> None:
    """Raise UserError with the fix if a package that the metric of a task needs is missing."""
    score(member, "1", ("Paragraph 1, 段落1",), ("1",))  # whatever is scored loads them


def score(member: str, prediction: str, references: Sequence[str], classes: Sequence[str] = ()) -> float:
    """Score of an answer to a task, 0..1: the best over its references; of some tasks only its `FIRST_LINE` counts.

    Raises UserError: no references, no classes although the metric needs them, or a package is missing.
    """
    if not references:
        raise UserError(f"{member}: an answer is scored against at least one reference, got none")
    if member in FIRST_LINE:
        prediction = prediction.lstrip("\n").split("\n")[0]
    name = METRICS[member]
    if name == "classification_score":
        if not classes:
            raise UserError(f"{member}: an answer is scored among classes, got none")
        return max(classification(prediction, reference, classes) for reference in references)
    return max(FUNCTIONS[name](prediction, reference) for reference in references)


@dataclass(frozen=True, kw_only=True)
class LongBenchTask(jsonl.RowTask):
    """One task, `member`.

    extended: rows of LongBench-E. bucket: only the LongBench-E rows of one range of lengths; sample i is then row i of
    the range. max_new_tokens: null for the benchmark's own table. stop_replaces: an answer ends only at `stop` and the
    tokenizer's end of sequence, not at the model's other stop tokens, as pred.py does for samsum; false adds `stop` to
    all of them, as LAVa does for Llama 3.

    - Protocol: THUDM/LongBench, `pred.py`, `eval.py`, `metrics.py`; templates and lengths from the benchmark's own
      `config/*.json`, read at run time. The whole prompt is truncated in the middle to `task.max_prompt_tokens` (31500;
      published are 3500 to 127500), special tokens counted, before a chat template wraps it.
    - Era: version 1, 21 tasks of 200 rows (multifieldqa_en 150, lcc and repobench-p 500).
    - Split: after the row's `context`; the question and the instructions after it are read after eviction. For tasks
      with examples the examples are the context; for code the lines before the one to write are read after eviction.
    - Metric: the best over a row's references. ROUGE is the package `rouge` 1.0.1, not rouge-score. Chinese is split
      into words by jieba 0.42.1. Code is compared by fuzzywuzzy 0.18.0; python-Levenshtein would change its scores and
      is refused.
    - No chat template: trec, triviaqa, samsum, lsht, lcc, repobench-p. For the first four, only the first line of an
      answer counts.
    - samsum: an answer ends at a line break or at the tokenizer's end of sequence, not at the model's other stop
      tokens, as in `pred.py` (`task.stop_replaces=false` keeps them, as LAVa does for Llama 3); an answer has at least
      one new token.
    - Averages: `kvbench report table --average official|lava|caote`: of six categories (README of LongBench), of 20
      tasks without passage_count (LAVa), of the 16 tasks in English and code (CAOTE, OBCache). A missing task, or a
      sample without a number, is refused.
    - Source: `longbench/TASK.jsonl` of THUDM/LongBench.
    - Traps: kvpress strips white space before an answer, truncates contexts on the right, allows 20 tokens more and
      repeats the suffix of triviaqa and samsum. lm-evaluation-harness trims prompts and ends few-shot answers at any
      line break. The package rouge returns 0 if its recursion is too deep; kvbench calls it at the same depth as the
      official script.
    - LongBench-E: the same prompts and metrics on rows balanced by length. `task.bucket=0-4k|4-8k|8k+` selects one of
      the reported ranges (words: below 4000, below 8000, the rest).
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("extended", "bucket", "stop_replaces")
    member: str
    extended: bool = False
    bucket: Bucket | None = None
    max_new_tokens: int | None = None
    stop_replaces: bool = False
    context_length = None  # rows have their own lengths
    has_pred_lines = True

    def __post_init__(self) -> None:
        if self.stop_replaces and not self.stop:
            raise UserError(
                f"task.stop_replaces=true of {self.name}: task.stop is empty: list the texts that end an answer, or "
                "use task.stop_replaces=false"
            )
        require_choice(self, "member", EXTENDED if self.extended else MEMBERS)
        if self.bucket is not None and not self.extended:
            raise UserError(f"task.bucket={self.bucket} of {self.name}: allowed: null, or a task of LongBench-E")
        super().__post_init__()
        if (folder(self.root) / LENGTHS).is_file():
            object.__setattr__(self, "max_new_tokens", self._new_tokens())

    @property
    def version(self) -> str:
        return "longbench-e.2" if self.extended else "longbench.2"

    @property
    def metric(self) -> str:
        return METRICS[self.member]

    @property
    def files(self) -> tuple[str, ...]:
        rows = f"longbench/{self.member}{'_e' if self.extended else ''}.jsonl"
        return rows, PROMPTS, LENGTHS

    def score(self, prediction: str, sample: Sample) -> float:
        return score(self.member, prediction, sample.references, sample.choices)

    def row_reader(self, tokens: TokenCounter) -> Callable[[int, jsonl.Row], Sample]:
        check_packages(self.member)
        template, new_tokens = self._entry(PROMPTS, str, "template"), self._new_tokens()
        choices = classes(self.root, self.files[0]) if self.metric == "classification_score" else ()

        def read(index: int, row: jsonl.Row) -> Sample:
            fields = {"context": jsonl.nonempty_text(row, "context"), "input": jsonl.text(row, "input")}
            references = jsonl.texts(row, "answers")
            if self.bucket is not None:
                bucket_of(row)
            context, question = fill(template, fields, PROMPTS)
            return Sample(index, self.name, context, question, "", references, new_tokens, choices)

        return read

    def _new_tokens(self) -> int:
        tokens = self._entry(LENGTHS, int, "length") if self.max_new_tokens is None else self.max_new_tokens
        if tokens < 1:
            raise UserError(f"{find(self.root, LENGTHS)} has the length {tokens} for {self.member}: at least 1")
        return tokens

    def _entry(self, file: str, kind: type, label: str) -> Any:
        """Return the value of this task in one of the benchmark's two tables."""
        value = json_object(self.root, file).get(self.member)
        if type(value) is not kind:
            raise UserError(f"{find(self.root, file)} has no {label} for {self.member}")
        return value

    @property
    def row_numbers(self) -> Sequence[int]:
        """A row without a length is in every range."""
        if self.bucket is None:
            return super().row_numbers
        buckets = _buckets(self.root, self.files[0])
        return [number for number, name in enumerate(buckets) if name in (self.bucket, None)]


def classes(root: str | None, file: str) -> tuple[str, ...]:
    """Return the possible answers: `all_classes` of the last row that has any, as in eval.py; it is the same in all
    rows.

    Raises UserError if no row has a list of at least one text.
    """
    for line in reversed(list(jsonl.rows(root, file))):
        try:
            return jsonl.texts(line.read(), "all_classes")
        except ValueError:
            continue
    raise UserError(f"{find(root, file)} has no row with all_classes: a list of at least one text")


def bucket_of(row: jsonl.Row) -> Bucket:
    """Return the range of a row's `length`. Raises UserError unless that is a whole number."""
    length = jsonl.integer(row, "length")
    return "0-4k" if length < 4000 else "4-8k" if length < 8000 else "8k+"


_buckets = jsonl.column(bucket_of)
