"""Perplexity: a text is read, and the metric is the negative log-likelihood of its tokens. PG19 and BookSum.

PG19, its test split, read token by token with eviction after each token:

    pg19/test_10321.txt      The Girl at Central ... [CRLF] [CRLF] ... one book a file, as DeepMind published them
    <s>The Girl at Central   the first token scored is the one after what the tokenizer begins a text with

BookSum with eviction after every block, section 5 and table 4 of CAOTE (arXiv:2504.14051):

    chapter        "It was a grey morning when the coach came ..."     one chapter of a novel
    summary_text   "The coach brings a stranger. ..."                  one of its summaries
    bid, book_id, source, summary, ...                                 not read

    scored=chapter   the tokens of a chapter, given those before; each chapter once, whatever its summaries
    scored=summary   the tokens of a summary, given the chapter: the chapter is read in blocks, then one token at a time
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from kvbench.support import facts
from kvbench.support.errors import UserError
from kvbench.support.facts import Claim
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles, find, listing
from kvbench.tasks.task import (
    InvalidSample,
    Sample,
    Task,
    TokenCounter,
    refuse_prompt_settings,
    require_positive,
    require_samples,
)

Scored = Literal["chapter", "summary"]


@dataclass(frozen=True, kw_only=True)
class Likelihood(Task):
    """Base class of tasks that score the tokens of texts while the cache is being evicted.

    context_length: number of tokens scored of each text. evict: eviction `after` a token was read, so that each token
    attends to the budget and to itself, or `before`, so that cache and new token fit the budget together.
    reset: whether every text starts from an empty cache, or from the cache of the previous text. The scored text is
    `Sample.context`, or `Sample.question` if there is one: then the first `given_tokens` tokens of the context are read
    before it, and `answer_prefix` stands between the two. The tokenizer's first special token precedes the text.
    Settings of prompts and answers do not apply.
    """

    context_length: int
    evict: Literal["after", "before"] = "after"
    reset: bool = True
    chat: bool = False
    metric = "nll"  # mean negative log-likelihood
    unit = "nats per token"
    better = "lower"
    max_new_tokens = 0
    has_prompts = False
    scores_text = True
    in_blocks = False  # whether `schedule.prefill_block` may be set; otherwise tokens are read one at a time

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context_length < 1:
            raise UserError(
                f"task.context_length={self.context_length}: allowed: 1 or more, the tokens that are scored"
            )
        refuse_prompt_settings(self)

    @property
    def procedure(self) -> str:
        return "kvbench.run.perplexity:Perplexity"

    def claims(self) -> Iterator[Claim]:
        yield from super().claims()
        reading = "evicts while it reads"
        needs = dict.fromkeys((facts.LATER_EVICTION, facts.EVEN_BUDGET, facts.EVEN_LAYERS), reading)
        if not self.reset:
            needs[facts.COUNTED_BUDGET] = "continues over all texts with task.reset=false"
        breaks = {
            facts.FULL_CACHE: reading,
            facts.ONE_EVICTION: reading,
            facts.SCORED_ONCE: reading,
            facts.SCORED_BEFORE_ANSWER: reading,
            facts.QUESTION: "has no question",
            facts.QUESTION_READ: "has no question",
            facts.PROMPT: "is a text that is evicted from while it is read",
            facts.PROMPT_END: "is a text that is evicted from while it is read",
            facts.WHOLE_PROMPT: "has no prompt with an answer",
            facts.ANSWER: "has no answer: its texts are read token by token",
        }
        if not self.reset:
            breaks[facts.ASKED] = "continues from text to text with task.reset=false"
        elif self.given_tokens:
            breaks[facts.ASKED] = "scores a part of a text by a cache that holds the other"
        if not self.in_blocks:
            breaks[facts.TEXT_IN_BLOCKS] = "evicts while it reads, one token at a time"
        elif self.evict == "before":
            breaks[facts.TEXT_IN_BLOCKS] = "evicts before each single token with task.evict=before"
        yield Claim(f"task {self.name}", "another task", needs, breaks)

    @property
    def spare_pairs(self) -> int:
        return int(self.evict == "before")

    def job_number(self, sample: int, evict_after: str) -> int:
        return super().job_number(sample, evict_after) if self.reset else 0

    def has_full_cache(self, in_blocks: bool) -> bool:
        """Return False for texts in blocks, and for texts that are read as one: the full cache reads them otherwise."""
        return self.reset and not in_blocks

    def score(self, prediction: str, sample: Sample) -> float:
        raise AssertionError(f"{sample.task} has no answers")


@dataclass(frozen=True, kw_only=True)
class PG19(FromFiles, Likelihood):
    """One sample per book.

    - Protocol: `examples/eval_long_ppl.py` of https://github.com/mit-han-lab/streaming-llm, one token at a time.
      `task.evict=before` evicts before a token, as in OBCache's Algorithm 2: the cache holds one KV pair fewer.
    - Split: none. Eviction takes place while a text is read; `schedule.evict_after=context` is refused.
    - Metric: negative log-likelihood of the tokens, also by position; the result is exp of the mean over all books.
    - Source: `pg19/*.txt`, the test split.
    - Traps: published runs keep the cache from book to book (`task.reset=false`) and count positions within the cache:
      report which you used.
    - Differences: at most `task.context_length` tokens of each book are scored (published: one limit for all books).
      Books are in the order of their names. One that is not UTF-8 is skipped when later ones continue from the cache.
    """

    name: str = "pg19"
    context_length: int = 32768
    samples: int = 100
    seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "samples")

    @property
    def version(self) -> str:
        return "pg19-reset.1" if self.reset else "pg19-stream.1"

    @property
    def files(self) -> tuple[str, ...]:
        return listing(self.root, "pg19/*.txt")

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        """Yield books in full, in the order of their names; one that is not UTF-8 is an `InvalidSample`."""
        books = self.files
        require_samples(self, indices, len(books))
        for index in sorted(indices):
            try:
                text = find(self.root, books[index]).read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                yield InvalidSample(
                    index, self.name, f"{books[index]}: not UTF-8: {error.reason} at byte {error.start}"
                )
            else:
                yield Sample(index, self.name, text, "", "", (), 0)


@dataclass(frozen=True, kw_only=True)
class BookSum(jsonl.RowTask, Likelihood):
    """One sample per chapter, or one per summary.

    - Protocol: section 5 and table 4 of CAOTE: blocks of 128 tokens, with eviction when the budget is exceeded. A block
      attends to the cache and to itself, at most budget + 128 KV pairs. CAOTE does not say whose perplexity it reports.
    - Split: none, and the same metric, as for PG19.
    - Source: kmfoda/booksum, split test.
    - Traps: compare differences to the full cache, not perplexities.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("reset", "given", "between")
    chat: bool = False
    scored: Scored
    context_length: int
    given: int = 0
    between: str = ""
    split: str = "test"
    in_blocks = True
    positive = ("samples",)

    def __post_init__(self) -> None:
        if not self.reset:
            raise UserError(
                f"task.reset=false of {self.name}: every text starts from an empty cache; use task.reset=true"
            )
        if (self.given < 2) == (self.scored == "summary"):
            allowed = (
                "allowed: 2 or more, the tokens of the chapter that are read first"
                if self.scored == "summary"
                else "allowed: 0, since nothing is read before a chapter"
            )
            raise UserError(f"task.given={self.given} of {self.name}: {allowed}")
        super().__post_init__()

    @property
    def version(self) -> str:
        return f"booksum-{self.scored}.1"

    @property
    def given_tokens(self) -> int:
        return self.given

    @property
    def files(self) -> tuple[str, ...]:
        return (f"booksum/{self.split}.jsonl",)

    def row_reader(self, tokens: TokenCounter) -> Callable[[int, jsonl.Row], Sample]:
        def read(index: int, row: jsonl.Row) -> Sample:
            chapter = jsonl.nonempty_text(row, "chapter")
            summary = jsonl.nonempty_text(row, "summary_text") if self.scored == "summary" else ""
            return Sample(index, self.name, chapter, summary, self.between if summary else "", (), 0)

        return read

    @property
    def row_numbers(self) -> Sequence[int]:
        if self.scored == "summary":
            return super().row_numbers
        return [numbers[0] for numbers in _rows_by_chapter(self.root, self.files[0])]


_rows_by_chapter = jsonl.rows_by(lambda row: jsonl.text(row, "chapter"))
