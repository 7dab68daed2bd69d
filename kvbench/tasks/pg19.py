"""Perplexity on books of the PG19 test split, read token by token while the cache is cut after each.

    pg19/test_10321.txt      The Girl at Central ... [CRLF] [CRLF] ... one book a file, as DeepMind published them
    <s>The Girl at Central   the first token scored is the one after what the tokenizer begins a text with

Follows examples/eval_long_ppl.py of https://github.com/mit-han-lab/streaming-llm: tokens are fed one at a time, nothing
is read ahead, the cache is cut back after each (`evict: after`), the result is exp of the mean over all tokens of all
books. OBCache's Algorithm 2 evicts before a token is read (`evict: before`): one key less.

With `reset=false` a book goes on from the cache that the one before it left, and its first token stands in the middle
of what was read, as published; positions go on too, so `policy.positions=cache`, which counts them within the cache as
published, is what reads beyond the model's length. StreamingLLM as published is `policy=streaming_llm policy.sink=1
policy.positions=cache budget=256 task.reset=false task.evict=after`. The default, `reset=true`, begins every book with
an empty cache, and pairs keep the positions they were read at.

Stated differences: at most `context_length` tokens of each book are scored, where there one limit holds for all books
together. Books come in the order of their names. A book that is no text is left out of what later ones go on from. CRLF
becomes a newline, as text files are read by default; nothing else is changed.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kvbench.support.errors import UserError
from kvbench.tasks.files import FromFiles, find, listing
from kvbench.tasks.likelihood import Likelihood
from kvbench.tasks.sample import InvalidSample, Sample, Tokens

PATTERN = "pg19/*.txt"


@dataclass(frozen=True, kw_only=True)
class PG19(FromFiles, Likelihood):
    """One sample a book. Raises ValueError for fewer than one."""

    name: str = "pg19"
    context_length: int = 32768
    samples: int = 100
    seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 1:
            raise UserError(f"task.samples={self.samples}: at least 1 book")

    @property
    def version(self) -> str:
        """Names the protocol; a change of any byte gets another."""
        return "pg19-reset.1" if self.reset else "pg19-stream.1"

    @property
    def files(self) -> tuple[str, ...]:
        """The books. Raises FileNotFoundError where there is none."""
        return listing(self.root, PATTERN)

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        """Yield whole books, number 0 being the first by name; one that is not UTF-8 is unreadable.

        Raises:
            ValueError: more books are asked for than there are.
            FileNotFoundError: there are none under `data.root`.
        """
        books = self.files
        if any(index >= len(books) for index in indices):
            raise UserError(f"task.samples={max(indices) + 1}: there are {len(books)} books ({PATTERN}) in data.root")
        for index in sorted(indices):
            try:
                text = find(self.root, books[index]).read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                yield InvalidSample(index, self.name, f"{books[index]}: no UTF-8: {error.reason} at byte {error.start}")
            else:
                yield Sample(index, self.name, text, "", "", (), 0)
