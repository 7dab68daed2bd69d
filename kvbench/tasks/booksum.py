"""Perplexity on BookSum with eviction after every block: section 5 of CAOTE (arXiv:2504.14051), table 4.

    chapter        "It was a grey morning when the coach came ..."     one chapter of a novel
    summary_text   "The coach brings a stranger. ..."                  one of its summaries
    bid, book_id, source, summary, ...                                 not read

Rows of kmfoda/booksum, split test, as lines of booksum/test.jsonl. CAOTE says that prompts are read in blocks of
128 tokens with eviction whenever the budget is exceeded, and that it reports "generation perplexity" and its difference
to the full cache. It does not say of which text. Both interpretations are here:

    scored=chapter   the tokens of a chapter, given those before; each chapter once, whatever its summaries
    scored=summary   the tokens of a summary, given the chapter: the chapter is read in blocks, then one token at a time

The tokens of a block attend to the cache, which holds the budget, and to earlier tokens of the block; then eviction
follows. So a token attends to at most budget + 128 KV pairs. Not stated in the paper and chosen here: texts are read
without a template, after the tokenizer's first special token; `between` precedes a summary; only the first
`context_length` scored tokens and the first `given` tokens before them count. Compare differences to the full cache,
not perplexities.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles, limit_samples, remembered
from kvbench.tasks.likelihood import Likelihood
from kvbench.tasks.task import InvalidSample, Sample, Tokens, require_choice, require_positive

Scored = Literal["chapter", "summary"]


@dataclass(frozen=True, kw_only=True)
class BookSum(FromFiles, Likelihood):
    """One sample per chapter, or one per summary."""

    name: str
    scored: Scored
    context_length: int
    given: int = 0
    between: str = ""
    split: str = "test"
    samples: int = 50
    seed: int = 42
    in_blocks = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "scored", get_args(Scored))
        if not self.reset:
            raise UserError(
                f"task.reset=false of {self.name}: every text starts from an empty cache; use task.reset=true"
            )
        require_positive(self, "samples")
        if (self.given < 2) == (self.scored == "summary"):
            allowed = (
                "allowed: 2 or more, the tokens of the chapter that are read first"
                if self.scored == "summary"
                else "allowed: 0, since nothing is read before a chapter"
            )
            raise UserError(f"task.given={self.given} of {self.name}: {allowed}")
        limit_samples(self, lambda: len(self._rows))

    @property
    def version(self) -> str:
        return f"booksum-{self.scored}.1"

    @property
    def given_tokens(self) -> int:
        return self.given

    @property
    def files(self) -> tuple[str, ...]:
        return (f"booksum/{self.split}.jsonl",)

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        for index, line in jsonl.samples(self, self._rows, indices):
            try:
                row = line.read()
                chapter = jsonl.nonempty_text(row, "chapter")
                summary = jsonl.nonempty_text(row, "summary_text") if self.scored == "summary" else ""
            except ValueError as error:
                yield InvalidSample(index, self.name, f"{line.place}: {error}")
                continue
            yield Sample(index, self.name, chapter, summary, self.between if summary else "", (), 0)

    @property
    def _rows(self) -> Sequence[int]:
        """The rows that become samples."""
        if self.scored == "summary":
            return range(jsonl.count(self.root, self.files[0]))
        return _first_of_chapters(self.root, self.files[0])


@remembered
def _first_of_chapters(root: str | None, file: str) -> tuple[int, ...]:
    """The first row of every chapter, and the rows without a chapter."""
    first: dict[str | int, int] = {}
    for number, chapter in enumerate(jsonl.values(root, file, lambda row: jsonl.text(row, "chapter"))):
        first.setdefault(number if chapter is None else chapter, number)
    return tuple(first.values())
