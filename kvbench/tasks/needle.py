"""The classic needle in a haystack: one sentence at a given depth of Paul Graham's essays.

    ... I think the best way to do it is by example.
    The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.
    One of the ...
    What is the best thing to do in San Francisco?
    -> eat a sandwich and sit in Dolores Park on a sunny day.

Follows llm_needle_haystack_tester.py of https://github.com/gkamradt/LLMTest_NeedleInAHaystack (`style: official`) and
run_needle_in_haystack.py of KVCache-Factory (PyramidKV) and LAVa (`style: book`). Each depth and length is one prompt
and one cell of the heat-map: `task.depth` and `task.context_length` are its axes.

The needle follows the last full stop before its depth. `book` encodes and decodes with the tokenizer's special tokens,
so the needle begins with a first token of its own. Later states of KVCache-Factory encode without special tokens.

Differences: files are read in the order of their names; a full stop is any token that "." becomes alone or after a
word, which gives the testers' lists for Llama and Mistral; the official user turns are one turn.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from kvbench.support.errors import UserError
from kvbench.tasks.files import FromFiles, listing
from kvbench.tasks.kvzip import inclusion
from kvbench.tasks.metrics import rouge_scorer
from kvbench.tasks.ruler.haystack import ESSAYS, joined
from kvbench.tasks.task import Sample, Task, TokenCounter, require_positive

ANSWER = "eat a sandwich and sit in Dolores Park on a sunny day."
"""The answer in the needle: eleven distinct words, the last with its full stop."""
NEEDLE = f"\nThe best thing to do in San Francisco is {ANSWER}\n"
CONTEXTS = {"official": "{}", "book": "<|im_start|> This is a very long story book: <book> {} </book>."}
QUESTIONS = {
    "official": "\n\nWhat is the best thing to do in San Francisco?"
    " Don't give information outside the document or repeat your findings",
    "book": "\n Based on the content of the book, Question: The best thing to do in San Francisco is: ",
}


def overlap(prediction: str) -> float:
    """Share of the answer's words that the prediction has: `|words(lower(p)) & words(lower(a))| / 11`.

    Words are split at white space, so that "day" is not "day.": as plotted by KVCache-Factory (PyramidKV)
    and Long-Context-Data-Engineering (visualize.py).
    """
    answer = set(ANSWER.lower().split())
    return len(answer & set(prediction.lower().split())) / len(answer)


def overlap_without_dots(prediction: str) -> float:
    """`overlap` with a blank for every full stop, in prediction and answer.

    So "day.Then" holds the word "day", and "10 a.m." holds the answer's "a": as plotted by LAVa
    (run_needle_visulize.py).
    """
    answer, words = (set(text.lower().replace(".", " ").split()) for text in (ANSWER, prediction))
    return len(answer & words) / len(answer)


def rouge1(prediction: str, needle: str) -> float:
    """F of the stemmed words that prediction and needle share, by rouge-score; 0 for an empty prediction.

    The number that the official-style testers store is x 10. A perfect answer scores 0.727, because the needle has
    eight words more than the answer. kvpress uses the package `rouge`, with prediction and needle exchanged.

    Raises UserError if rouge-score is not installed.
    """
    scorer = rouge_scorer("task.scorer=rouge1", "rouge1", use_stemmer=True)
    return float(scorer.score(needle, prediction)["rouge1"].fmeasure) if prediction else 0.0


SCORERS: dict[str, Callable[[str], float]] = {
    "words": overlap,
    "words_without_dots": overlap_without_dots,
    "rouge1": lambda answer: rouge1(answer, NEEDLE),
    "inclusion": lambda answer: inclusion(answer, ANSWER),
}
"""Words that answer and needle share, 0..1: the scores of the heat-map in papers on eviction; `inclusion` is 0 or 1."""


@dataclass(frozen=True, kw_only=True)
class Needle(FromFiles, Task):
    """One cell of the heat-map.

    depth: percent of the haystack before the needle. buffer: tokens of `context_length` left for the question and the
    answer. scorer: `words` (KVCache-Factory), `words_without_dots` (LAVa), `rouge1`, or `inclusion`: the
    answer says the needle's, both normalised (KVzip). stop_replaces: an answer
    ends only at `stop` and the tokenizer's end of sequence, as in both scripts.

    - Protocol: `llm_needle_haystack_tester.py` of LLMTest_NeedleInAHaystack (`needle/official`) and
      `run_needle_in_haystack.py` of KVCache-Factory and LAVa, one prompt for each `task.depth` and
      `task.context_length`.
    - Era: essays are joined in the order of their names; the testers took the order of the file system.
    - Split: after the essays.
    - Source: `paul_graham_essays`.
    - Answers of `needle/lava` and `needle/pyramidkv` end at a line break or at the tokenizer's end of sequence, even if
      that is the first token: the answer is then empty, with the score 0.
    - Prompts of `needle/pyramidkv` follow KVCache-Factory until December 2024, which encodes essays and needle with the
      tokenizer's special tokens; later states do not. The official tester sends a system turn ("You are a helpful AI
      bot that answers questions for a user. Keep your response short and direct") and two user turns, context and
      question; here `model.system` is yours to set, and one turn has both.
    - Traps: contexts are 200 tokens shorter than their label; a perfect answer has ROUGE-1 0.727; with `words` the
      final full stop of "day." counts, so an answer without it scores 0.909 in KVCache-Factory and 1.0 in LAVa. The
      official grader is a GPT and is not implemented. `task.scorer=inclusion` is 1 if the answer holds the needle's,
      else 0.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("stop_replaces",)
    style: Literal["official", "book"]
    scorer: Literal["words", "words_without_dots", "rouge1", "inclusion"]
    context_length: int = 1000
    depth: float = 50.0
    buffer: int = 200
    samples: int = 1
    max_new_tokens: int = 30
    stop_replaces: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.depth <= 100:
            raise UserError(f"task.depth={self.depth:g}: allowed: 0 to 100, in percent of the haystack")
        if self.samples != 1:
            raise UserError(
                f"task.samples={self.samples}: allowed: 1, since a depth and a length have one prompt; list more "
                "depths: task.depth=0,50,100"
            )
        if self.buffer < 0 or self.context_length <= self.buffer:
            raise UserError(
                f"task.context_length={self.context_length}: allowed: more than task.buffer={self.buffer}, which is "
                "0 or more"
            )
        require_positive(self, "max_new_tokens")

    @property
    def version(self) -> str:
        return f"needle-{self.style}.2"

    @property
    def metric(self) -> str:
        return f"needle_{self.scorer}"

    @property
    def files(self) -> tuple[str, ...]:
        return listing(self.root, ESSAYS)

    def score(self, prediction: str, sample: Sample) -> float:
        return SCORERS[self.scorer](prediction.strip())

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample]:
        """Yield sample 0. Raises UserError for another index or a context that cannot hold the needle."""
        if any(index != 0 for index in indices):
            raise UserError(f"{self.name} has sample 0 only, got {max(indices)}")
        if indices:
            is_book = self.style == "book"
            before, after = CONTEXTS[self.style].split("{}")
            context = before + self._around_needle(count_tokens, special=is_book) + after
            prefix = "\nAnswer:" if is_book else ""
            yield Sample(0, self.name, context, QUESTIONS[self.style], prefix, (ANSWER,), self.max_new_tokens)

    def _around_needle(self, tokens: TokenCounter, special: bool) -> str:
        """Return essays truncated to length, encoded again, and truncated to the room that buffer and needle leave."""
        needle = tokens.encode(NEEDLE, special)
        room = self.context_length - self.buffer
        if len(needle) >= room:
            raise UserError(
                f"task.context_length={self.context_length} leaves {room} tokens for a needle of {len(needle)}: "
                f"at least {self.buffer + len(needle) + 1}"
            )
        ids = _encoded(tokens, joined(self.root, ESSAYS), self.context_length, special)
        context = tokens.encode(tokens.decode(ids[: self.context_length]), special)
        if len(context) + len(needle) > room:
            context = context[: room - len(needle)]
        place = len(context) if self.depth == 100 else int(len(context) * (self.depth / 100))
        if self.depth < 100:
            stops = {*tokens.encode(".", special=False), tokens.encode("a.", special=False)[-1]}
            while place and context[place - 1] not in stops:
                place -= 1
        return tokens.decode([*context[:place], *needle, *context[place:]])


@lru_cache(maxsize=2)
def _encoded(tokens: TokenCounter, text: str, length: int, special: bool) -> list[int]:
    """Return tokens of the essays, repeated until there are `length`; all cells of a length share them."""
    repeated = text
    while len(ids := tokens.encode(repeated, special)) < length:
        repeated += text
    return ids
