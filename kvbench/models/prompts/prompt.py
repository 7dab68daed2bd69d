"""A prompt: the token ids that a model reads."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """Token ids that are read before the eviction (`prefill`) and after it (`question`).

    prefill: the context, and the question too if the eviction follows it. sha256: of the final text.

    prefix_tokens: the first tokens of `prefill`, which precede the content of the sample: special tokens, the system
    turn, the opening of the user's turn and of the task's contexts. suffix_tokens: its newest tokens, which follow the
    user's text: the end of a chat template and the answer prefix, tokenised alone; 0 without a template.
    question_tokens: its newest tokens from the question on, tokenised alone; 0 if `prefill` has no question.

    turn: the tokens of a chat template between the user's text and the answer. border_tokens: how many tokens of the
    whole text are others because it is divided; None if `prefill` and `question` are its tokens. turns: if answers of
    the model's own lie between the tokens of `question`, those before each answer, tokenised alone. blocks: numbers of
    tokens of `prefill` after which a schedule evicts turn by turn. answer: tokens of a recorded answer, which is read.
    """

    prefill: tuple[int, ...]
    question: tuple[int, ...]
    sha256: str
    prefix_tokens: int = 0
    turn: tuple[int, ...] = ()
    border_tokens: int | None = None
    question_tokens: int = 0
    suffix_tokens: int = 0
    turns: tuple[tuple[int, ...], ...] = ()
    blocks: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return len(self.prefill) + len(self.question)

    @property
    def first_question(self) -> tuple[int, ...]:
        """The tokens between `prefill` and the first answer."""
        return self.turns[0] if self.turns else self.question
