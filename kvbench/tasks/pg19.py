"""Perplexity on books of the PG19 test split, read token by token with eviction after each token.

    pg19/test_10321.txt      The Girl at Central ... [CRLF] [CRLF] ... one book a file, as DeepMind published them
    <s>The Girl at Central   the first token scored is the one after what the tokenizer begins a text with

Follows examples/eval_long_ppl.py of https://github.com/mit-han-lab/streaming-llm: tokens are fed one at a time,
eviction follows each token (`evict: after`), and the result is exp of the mean over all tokens of all books. OBCache's
Algorithm 2 evicts before a token is read (`evict: before`): one key less.

With `reset=false` a book continues from the cache of the previous book, as published, so its first token has earlier
tokens to attend to. Positions continue too; `policy.positions=cache`, which counts positions within the cache as
published, is needed to read beyond the model's length (docs/many-questions.md has StreamingLLM's settings). The
default, `reset=true`, begins every book with an empty cache, and KV pairs keep their original positions.

Differences: at most `context_length` tokens of each book are scored (published: one limit for all books together).
Books are read in the order of their names. A book that is not UTF-8 is skipped when later books continue from the
cache. CRLF becomes a newline, as text files are read by default; nothing else is changed.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kvbench.support.errors import UserError
from kvbench.tasks.files import FromFiles, find, listing
from kvbench.tasks.likelihood import Likelihood
from kvbench.tasks.task import InvalidSample, Sample, Tokens

PATTERN = "pg19/*.txt"


@dataclass(frozen=True, kw_only=True)
class PG19(FromFiles, Likelihood):
    """One sample per book."""

    name: str = "pg19"
    context_length: int = 32768
    samples: int = 100
    seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 1:
            raise UserError(f"task.samples={self.samples}: allowed: 1 or more books")

    @property
    def version(self) -> str:
        return "pg19-reset.1" if self.reset else "pg19-stream.1"

    @property
    def files(self) -> tuple[str, ...]:
        return listing(self.root, PATTERN)

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        """Yield books in full, in the order of their names; one that is not UTF-8 is an `InvalidSample`."""
        books = self.files
        if any(index >= len(books) for index in indices):
            raise UserError(f"task.samples={max(indices) + 1}: there are {len(books)} books ({PATTERN}) in data.root")
        for index in sorted(indices):
            try:
                text = find(self.root, books[index]).read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                yield InvalidSample(
                    index, self.name, f"{books[index]}: not UTF-8: {error.reason} at byte {error.start}"
                )
            else:
                yield Sample(index, self.name, text, "", "", (), 0)
