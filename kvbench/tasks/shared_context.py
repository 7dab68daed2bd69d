"""Tasks that ask several questions about one context, each from the same compressed cache: the setting of KVzip.

Follows data/load.py, data/wrapper.py and model/template.py of https://github.com/snu-mllab/KVzip:

    context     instruction, blank line, context       read, scored and cut before anything is asked
    question    blank line, `ask` with the question    read from the same cut cache, one question after the other

The instruction is a part of the head of the prompt, which KVzip never evicts (`policy.sink=head`). A sample is one
question; questions follow their contexts, so that sample i is the same whatever `samples`.

Stated differences: a chat template is the model's own, where KVzip writes out those of Llama and Qwen and puts a blank
line before the turn of Llama ends; a model without one reads no "Answer:" behind its question; context and
instruction are tokenised as one text; an answer that its length ended keeps its last token; means are over questions,
KVzip's over contexts of the mean over their questions, which differs where contexts have unlike numbers of questions.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from kvbench.support.errors import UserError
from kvbench.tasks.files import FromFiles, folder
from kvbench.tasks.prompting import Prompting
from kvbench.tasks.sample import InvalidSample, Sample, Tokens

GAP = "\n\n"
"""Between instruction and context, and between context and question."""


@dataclass(frozen=True)
class Question:
    """What is asked, and what is needed to judge the answer; see `Sample`."""

    text: str
    references: tuple[str, ...]
    kind: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A context and the questions about it; a text is what is wrong with the data of one, and where."""

    context: str
    questions: Sequence[Question | str]


@dataclass(frozen=True, kw_only=True)
class SharedContext(FromFiles, Prompting, ABC):
    """What such tasks derive from.

    instruction: said before every context. ask: how a question is put, with the field {question}. contexts: only the
    first so many, null for all. samples: questions; more than there are asks for all.

    Raises:
        ValueError: a field is outside its legal set, or the data cannot be read.
    """

    name: str
    instruction: str
    max_new_tokens: int
    ask: str = "Q: {question}"
    contexts: int | None = None
    samples: int = 50
    seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in ("samples", "max_new_tokens", "contexts"):
            value = getattr(self, setting)
            if value is not None and value < 1:
                raise UserError(f"task.{setting}={value} of {self.name}: give a whole number above 0")
        if self.ask.count("{question}") != 1:
            raise UserError(f"task.ask={self.ask!r} of {self.name}: it names {{question}} once")
        if all((folder(self.root) / name).is_file() for name in self.files):
            object.__setattr__(self, "samples", min(self.samples, max(1, self._starts[-1])))

    @property
    def context_length(self) -> None:
        """Contexts have lengths of their own."""
        return None

    @abstractmethod
    def counts(self) -> Sequence[int]:
        """How many questions are asked about each context, one where that is not known. Raises as `generate` does."""

    @abstractmethod
    def asked(self, contexts: Collection[int]) -> Iterator[tuple[int, Asked]]:
        """Those contexts with their questions, in ascending order. Raises as `generate` does."""

    def context_of(self, sample: int) -> int:
        """The context that sample asks about. Raises as `generate` does."""
        starts = self._starts
        if not 0 <= sample < starts[-1]:
            raise UserError(f"{self.name} has {starts[-1]} questions, none is {sample}")
        return bisect_right(starts, sample) - 1

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        """Yield the questions of `indices` in ascending order; nothing is counted. A row that is none is unreadable.

        Raises:
            ValueError: there is no such question.
            FileNotFoundError: the files are not under `data.root`.
        """
        wanted: dict[int, list[int]] = {}
        for index in sorted(indices):
            wanted.setdefault(self.context_of(index), []).append(index)
        starts, opening = self._starts, self.instruction + GAP
        for number, asked in self.asked(wanted):
            for index in wanted[number]:
                place = index - starts[number]
                question = asked.questions[place]
                if isinstance(question, str):
                    yield InvalidSample(index, self.name, question, place + 1)
                    continue
                yield Sample(
                    index,
                    self.name,
                    opening + asked.context,
                    GAP + self.ask.replace("{question}", question.text).strip(),
                    "",
                    question.references,
                    self.max_new_tokens,
                    question.choices,
                    place + 1,
                    question.kind,
                    opening,
                )

    @property
    def _starts(self) -> list[int]:
        """The first sample of every context, and behind them the number of samples."""
        return [0, *accumulate(self.counts()[: self.contexts])]
