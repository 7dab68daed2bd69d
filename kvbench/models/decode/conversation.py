"""Conversations: cells of one context answer turn after turn, each over its own cache and after its own answers.

A cell has a stream of tokens: a question, the answer to it, the next question, and so on. All cells
read one token of their stream at a time, so that they are always at the same position, whatever turn each of them is
in. Batches evict as they do while a single answer is decoded.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.models.decode.batch import DecodeBatch
from kvbench.models.decode.next_token import Choice
from kvbench.models.engine import QUESTION_BLOCK, DecodedAnswer, Engine, Generation, Prefilled
from kvbench.support.errors import UserError

ChooseAt = Callable[[Float[Tensor, "cells vocabulary"], Sequence[tuple[int, int]]], Choice]
"""From logits and the turn and step of every cell, both from 0, to the chosen tokens."""


@dataclass(frozen=True)
class QuestionTokens:
    """The tokens of a turn before its answer, and the most that the answer may have."""

    ids: tuple[int, ...]
    max_new_tokens: int


@dataclass
class _Stream:
    """The conversation of a cell. waiting: tokens of the turn that it has still to read before it answers."""

    questions: Sequence[QuestionTokens]
    answers: list[DecodedAnswer]
    waiting: deque[int] = field(default_factory=deque)

    @property
    def running(self) -> bool:
        return self.answers[-1].generation.running

    @property
    def place(self) -> tuple[int, int]:
        return len(self.answers) - 1, len(self.answers[-1].generation.ids)

    def fail(self, error: str) -> None:
        """End the conversation. The turns after this one have no answer either."""
        self.answers[-1].error, self.answers[-1].generation.running = error, False
        later = f"turn {len(self.answers)} of the conversation failed: {error}"
        num_unanswered = len(self.questions) - len(self.answers)
        self.answers += [DecodedAnswer(Generation(running=False), later) for _ in range(num_unanswered)]


@torch.inference_mode()
def converse(
    engine: Engine,
    prefilled: Prefilled,
    batch: DecodeBatch,
    conversations: Sequence[Sequence[QuestionTokens]],
    stop: Collection[int],
    at_least: int,
    choose: ChooseAt,
    max_length: int,
) -> list[list[DecodedAnswer]]:
    """Return the answers of every active cell to its questions, which begin with the same one for all cells.

    A stop token ends an answer and is not read; the next question follows the answer without it. A turn for which the
    conversation is too long, for `max_length` or for the rotation of the model, has an error, as have those after it.
    """
    streams = [_Stream(questions, []) for questions in conversations]
    clock, logits = time.perf_counter(), prefilled.logits.expand(batch.cells, -1)
    batch.stepped = "one by one: cells are in different turns of a conversation"
    first = torch.tensor(conversations[0][0].ids, dtype=torch.long, device=engine.device)
    for block in first.split(QUESTION_BLOCK) if len(first) else ():
        logits = engine.read(batch, block.expand(batch.cells, -1))
    for cell, stream in enumerate(streams):
        stream.answers.append(DecodedAnswer(tokens=batch.num_tokens + batch.num_new_tokens))
        _check_failure(batch, cell, stream)
    forbidden = torch.tensor(sorted(stop), dtype=torch.long, device=logits.device)
    while any(stream.running for stream in streams):
        short = [cell for cell, stream in enumerate(streams) if stream.place[1] < at_least]
        if short:
            logits = logits.clone()
            logits[torch.tensor(short, device=logits.device)[:, None], forbidden] = -torch.inf
        tokens, gaps = choose(logits, [stream.place for stream in streams])
        chosen, ids = torch.stack((tokens.double(), gaps), dim=1).tolist(), list[int]()
        share, clock = time.perf_counter() - clock, time.perf_counter()
        share /= sum(stream.running for stream in streams)
        for cell, stream in enumerate(streams):
            token, gap = chosen[cell]
            ids.append(_next(engine, batch, cell, stream, int(token), gap, share, stop, max_length))
        if any(stream.running for stream in streams):
            ids += [0] * (batch.cells - len(ids))
            logits = engine.read(batch, torch.tensor(ids)[:, None])
            for cell, stream in enumerate(streams):
                _check_failure(batch, cell, stream)
    return [stream.answers for stream in streams]


def _next(
    engine: Engine,
    batch: DecodeBatch,
    cell: int,
    stream: _Stream,
    token: int,
    gap: float,
    seconds: float,
    stop: Collection[int],
    max_length: int,
) -> int:
    """Return the token that a cell reads next; any for a cell that has ended. `token` was chosen, with a `gap` of
    logits.
    """
    if not stream.running:
        return 0
    answer, question = stream.answers[-1], stream.questions[len(stream.answers) - 1]
    if stream.waiting:
        answer.generation.seconds += seconds
        return stream.waiting.popleft()
    answer.generation.add(token, gap, seconds, stop)
    if answer.generation.broken:
        stream.fail(f"the logits are no numbers (NaN or infinite) after {len(answer.generation.ids)} new tokens")
    elif answer.generation.running and len(answer.generation.ids) < question.max_new_tokens:
        return token
    answer.generation.running = False
    answer.peak_bytes = _peak_bytes(batch, cell, answer.tokens + question.max_new_tokens)
    answer.evictions = batch.evictions(cell)
    answer.read = batch.bytes_read(cell, answer.tokens - batch.num_tokens, len(answer.generation.ids) - 1)
    if len(stream.answers) == len(stream.questions):
        batch.close(cell)
        return 0
    question = stream.questions[len(stream.answers)]
    stream.waiting.extend(question.ids if token in stop else (token, *question.ids))
    tokens = batch.num_tokens + batch.num_new_tokens + len(stream.waiting)
    stream.answers.append(DecodedAnswer(tokens=tokens))
    try:
        engine.check_length(batch.num_tokens, tokens - batch.num_tokens + question.max_new_tokens - 1)
        if tokens + question.max_new_tokens > max_length:
            raise UserError(
                f"the conversation has {tokens} tokens before this answer, the model reads at most "
                f"{max_length - question.max_new_tokens}; ask fewer questions about a context, or use shorter contexts"
            )
    except UserError as error:
        stream.fail(str(error))
        batch.close(cell)
        return 0
    return stream.waiting.popleft()


def _check_failure(batch: DecodeBatch, cell: int, stream: _Stream) -> None:
    if cell in batch.failures and stream.running:
        stream.fail(batch.failures[cell])


def _peak_bytes(batch: DecodeBatch, cell: int, tokens: int) -> int:
    """`peak_bytes` of a cell if the batch had room for so many tokens of the conversation, and no more."""
    room, batch.max_new_tokens = batch.max_new_tokens, tokens - batch.num_tokens
    peak, batch.max_new_tokens = batch.peak_bytes[cell], room
    return peak
