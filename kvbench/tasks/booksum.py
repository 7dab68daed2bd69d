"""Perplexity on BookSum while the cache is cut block by block: section 5 of CAOTE (arXiv:2504.14051), table 4.

    chapter        "It was a grey morning when the coach came ..."     one chapter of a novel
    summary_text   "The coach brings a stranger. ..."                  one of its summaries
    bid, book_id, source, summary, ...                                 are not read

Rows of kmfoda/booksum, split test, as lines of booksum/test.jsonl. CAOTE says that prompts are consumed in blocks of
128 tokens with a cut whenever the budget is exceeded, that what is reported is "generation perplexity", and its
difference to that of the whole cache. It does not say of what. Both readings are here:

    scored=chapter   the tokens of a chapter, given those before; each chapter once, whatever its summaries
    scored=summary   the tokens of a summary, given the chapter: the chapter is read in blocks, then one token at a time

The tokens of a block see the cache, which holds the budget, and those before them in the block; then it is cut. So at
most budget + 128 pairs are seen. Not stated there and chosen here: texts are read raw, begun as the tokenizer does,
`between` stands before a summary, and only the first `context_length` tokens of what is scored and `given` of what is
read before it count. Compare differences to the whole cache, not perplexities.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles, folder, remembered
from kvbench.tasks.likelihood import Likelihood
from kvbench.tasks.sample import InvalidSample, Sample, Tokens

Scored = Literal["chapter", "summary"]


@dataclass(frozen=True, kw_only=True)
class BookSum(FromFiles, Likelihood):
    """One sample a chapter, or one a summary. `samples` above their number asks for all.

    Raises ValueError for fields outside their legal sets.
    """

    name: str
    scored: Scored
    context_length: int
    given: int = 0
    between: str = ""
    split: str = "test"
    samples: int = 50
    seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scored not in get_args(Scored):
            raise UserError(f"task.scored={self.scored} of {self.name}: legal: {', '.join(get_args(Scored))}")
        if not self.reset:
            raise UserError(f"task.reset=false of {self.name}: every text starts from an empty cache; use true")
        if self.samples < 1:
            raise UserError(f"task.samples={self.samples} of {self.name}: give a whole number above 0")
        if (self.given < 2) == (self.scored == "summary"):
            legal = "at least 2, of the chapter" if self.scored == "summary" else "0: nothing is read before a chapter"
            raise UserError(f"task.given={self.given} of {self.name}: {legal}")
        if (folder(self.root) / self.files[0]).is_file():
            object.__setattr__(self, "samples", min(self.samples, max(1, len(self._rows))))

    @property
    def version(self) -> str:
        """Names the protocol; the rows' bytes are named by `data_sha256`."""
        return f"booksum-{self.scored}.1"

    @property
    def in_blocks(self) -> bool:
        """CAOTE's texts are read in blocks."""
        return True

    @property
    def given_tokens(self) -> int:
        """Most tokens of the chapter that are read before its summary."""
        return self.given

    @property
    def files(self) -> tuple[str, ...]:
        """The rows."""
        return (f"booksum/{self.split}.jsonl",)

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        """Yield the texts of `indices` in ascending order; nothing is counted. A row that is none is unreadable.

        Raises:
            ValueError: there are fewer.
            FileNotFoundError: the file is not under `data.root`.
        """
        rows = self._rows
        if any(not 0 <= index < len(rows) for index in indices):
            raise UserError(f"task.samples={max(indices) + 1}: {self.files[0]} has {len(rows)} of {self.name}")
        sample_of = {rows[index]: index for index in indices}
        for line in jsonl.rows(self.root, self.files[0], sample_of):
            index = sample_of[line.number]
            try:
                row = line.read()
                chapter = jsonl.text(row, "chapter")
                summary = jsonl.text(row, "summary_text") if self.scored == "summary" else ""
                if not chapter.strip() or (self.scored == "summary" and not summary.strip()):
                    raise UserError("its chapter or its summary_text is empty")
            except ValueError as error:
                yield InvalidSample(index, self.name, f"{line.place}: {error}")
                continue
            yield Sample(index, self.name, chapter, summary, self.between if summary else "", (), 0)

    @property
    def _rows(self) -> tuple[int, ...]:
        """The rows that samples are made of."""
        if self.scored == "summary":
            return tuple(range(jsonl.count(self.root, self.files[0])))
        return _first_of_chapters(self.root, self.files[0])


@remembered
def _first_of_chapters(root: str | None, file: str) -> tuple[int, ...]:
    """The first row of every chapter, and those that have none."""
    found: dict[str | int, int] = {}
    for line in jsonl.rows(root, file, range(jsonl.count(root, file))):
        try:
            chapter: str | int = jsonl.text(line.read(), "chapter")
        except ValueError:
            chapter = line.number
        found.setdefault(chapter, line.number)
    return tuple(found.values())
