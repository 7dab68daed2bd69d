"""Common parts of the tasks of RULER v2. https://github.com/NVIDIA-NeMo/Skills, branch chsieh/ruler2, at 991a743

Prompts follow nemo_skills/dataset/ruler2/prepare_*.py, with the arguments of prepare.py and the same draws.
"""

import random
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from kvbench.extras.ruler_v2.scores import MATCHES, Match
from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles, find, limit_samples, remembered
from kvbench.tasks.ruler.task import CountTokens, DoesNotFit, RulerPrompt, in_sequence
from kvbench.tasks.task import Sample, Task, require_positive, require_samples

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class RulerV2(Task):
    """A task of RULER v2: something is found by its number, or by what it says, among others of its kind.

    - Protocol: `prepare_niah.py`, `prepare_mmlu.py` and `prepare_qa.py` of RULER v2 with the arguments of `prepare.py`.
      Samples come from one generator with seed 42, officially 100 of them. `basic` asks for numbers of ten digits by
      keys of an adjective and a noun. `mk_niah` and `mv_niah` ask for a question of MMLU by its number of seven digits,
      which one question has (mk) or four have (mv). `qa` asks for documents of HotpotQA or for an answer.
    - Length: `task.context_length` counts the prompt alone, as officially. The tokens of a chat template and of the
      answer come on top: leave room for them in models that read no more.
    - Form: `task.form=instruct` as in `prepare.py`; `base` is its form for base models, whose prompts end with the
      beginning of the answer. That beginning is part of the question, as officially, also in a chat. `basic` always
      has one.
    - Split: after the haystack. The five solved examples of `mk_niah_medium` and `mk_niah_hard` come after it.
    - Source: `basic` is generated, with keys of wonderwords 2.2.0; `prepare.py` installs the newest release, whose
      words may be others. `mk_niah` and `mv_niah` ask for test questions of `cais/mmlu` among questions of its
      auxiliary training set, `qa` asks questions of HotpotQA's validation set (distractor setting) among documents of
      its training set.
    - Metric: what follows the last `Answer:` of an answer is scored (`eval_ruler2`). A reference counts 1 if that
      contains it, else 1 less the word error rate, if that is more. `ruler_v2_all` is the mean over references,
      `ruler_v2_2steps` the same for what follows the last empty line, `ruler_v2_part` the best reference.
      `ruler_v2_multichoice` is whether the last box has the right letter (`eval_mcq`).
    - Traps: `ruler/niah_multikey_2` and `ruler/niah_multivalue` are others than `basic`: their numbers have seven
      digits, and the second hides them in essays. The main branch of the repository scores all of an answer, and
      accepts small letters. MMLU and HotpotQA are known to models. `qa_easy` is right with the number of one of the
      documents that the question needs.
    - Differences: answers have a limit here, and none officially. If the smallest haystack is too long, it is drawn
      again up to 100 times. The documents of HotpotQA stand in the order in which they come first; officially it
      differs from run to run (docs/reference/disagreements.md#where-paper-and-code-disagree).
    """

    name: str
    context_length: int = 4096
    samples: int = 50
    seed: int = 42
    max_new_tokens: int
    version = "ruler_v2-991a743.2"
    _unit = "lines"  # of the haystack's size, for messages

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "context_length", "samples", "max_new_tokens")

    @property
    @abstractmethod
    def match(self) -> Match:
        """How an answer is compared with the references."""

    @property
    @abstractmethod
    def _step(self) -> int:
        """Size of the smallest haystack, and what a prompt that is too long loses."""

    @abstractmethod
    def _prompts(self, count_tokens: CountTokens) -> Iterator[RulerPrompt]:
        """Yield prompts in the official order of draws. Raises DoesNotFit."""

    @property
    def metric(self) -> str:
        return f"ruler_v2_{self.match}"

    def score(self, prediction: str, sample: Sample) -> float:
        return MATCHES[self.match](prediction, sample.references)

    def generate(self, count_tokens: CountTokens, indices: Collection[int]) -> Iterator[Sample]:
        """As `Task.generate`. All samples come from one generator in sequence, so that earlier ones are drawn too."""
        try:
            for index, prompt in in_sequence(self._prompts(count_tokens), indices):
                question = prompt.question + prompt.answer_prefix
                yield Sample(index, self.name, prompt.context, question, "", prompt.answers, self.max_new_tokens)
        except DoesNotFit as error:
            raise UserError(
                f"task.context_length={self.context_length} cannot hold {self.name}: the smallest haystack has "
                f"{self._step} {self._unit}, with which prompts have up to {error.longest} tokens: use more"
            ) from None


@dataclass(frozen=True, kw_only=True)
class AskedRows(FromFiles, RulerV2):
    """A task of RULER v2 that asks for rows of the first of its files."""

    form: Literal["instruct", "base"] = "instruct"

    def __post_init__(self) -> None:
        super().__post_init__()
        limit_samples(self, self._available)

    def _available(self) -> int:
        """How many samples there are."""
        return jsonl.count(self.root, self.files[0])

    def generate(self, count_tokens: CountTokens, indices: Collection[int]) -> Iterator[Sample]:
        require_samples(self, indices, self._available())
        yield from super().generate(count_tokens, indices)


def drawn_number(rng: random.Random, digits: int = 7) -> str:
    """Return a number of so many digits."""
    return str(rng.randint(10 ** (digits - 1), 10**digits - 1))


def drawn_places(rng: random.Random, available: int, number: int, size: int) -> list[int]:
    """Return the places of `size` of `number` things, each as often as `available` ones must come to be enough."""
    repeats = max(1, -(-size // available))
    return [place // repeats for place in rng.sample(range(number * repeats), size)]


def reader(read: Callable[[jsonl.Row], Value]) -> Callable[[str | None, str], tuple[Value, ...]]:
    """Return a cached reader of a file: `read` of each row, of which there is at least one.

    The reader raises UserError for a row that `read` refuses: another number of rows would change every draw.
    """

    @remembered
    def values(root: str | None, name: str) -> tuple[Value, ...]:
        row_values = list[Value]()
        for line in jsonl.rows(root, name):
            try:
                row_values.append(read(line.read()))
            except ValueError as error:
                raise UserError(f"{line.place}: {error}") from None
        if not row_values:
            raise UserError(f"{find(root, name)} has no rows")
        return tuple(row_values)

    return values
