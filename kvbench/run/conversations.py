"""Conversations: the procedure of questions that follow the model's own answers, in the cache of each cell."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from kvbench.models.decode.batch import DecodeBatch
from kvbench.models.decode.conversation import QuestionTokens, converse
from kvbench.models.decode.next_token import Choice, Sampled, greedy
from kvbench.models.engine import DecodedAnswer
from kvbench.run.answers import Answers
from kvbench.run.plan import PrefillJob
from kvbench.run.prefill_job import DecodeJob, run_prefill_job
from kvbench.run.rows import JobResult
from kvbench.tasks.task import Sample, Task


class Conversations(Answers):
    """Prefills a context for all cells; each evicts, and answers question after question."""

    def rows(self, job: PrefillJob, samples: Sequence[Sample]) -> JobResult:
        return run_prefill_job(self.model, job, samples, self.environment_id, self.kept, ConversationJob)


@dataclass(frozen=True)
class ConversationJob(DecodeJob):
    """Work after the prefill of a context: one conversation of each cell, up to its last turn that lacks a row."""

    def together(self) -> list[list[Sample]]:
        return [list(self.samples)]

    def room(self, samples: Sequence[Sample]) -> int:
        return min(super().room(samples), self.model.max_length - self.prefill.prefilled.cache.num_tokens)

    def decode(
        self, batch: DecodeBatch, task: Task, samples: Sequence[Sample], stop: Collection[int]
    ) -> list[dict[int, DecodedAnswer]]:
        """Return the answers of each cell up to its sample, by sample."""
        turns = [zip(self.prompts[last.id].turns, (*last.earlier, last), strict=True) for last in samples]
        questions = [[QuestionTokens(ids, turn.max_new_tokens) for ids, turn in each] for each in turns]
        answered = [range(last.id - self.draws * len(last.earlier), last.id + 1, self.draws) for last in samples]
        uniforms_of = [
            [self.uniforms(sample, turn.max_new_tokens + 1) for sample, turn in zip(*each, strict=True)]
            for each in zip(answered, questions, strict=True)
            if task.temperature
        ]  # one more than an answer has: a cell that has ended is still asked

        def choose(logits: torch.Tensor, places: Sequence[tuple[int, int]]) -> Choice:
            if not task.temperature:
                return greedy(logits)
            row = [of_turns[turn][step] for of_turns, (turn, step) in zip(uniforms_of, places, strict=True)]
            return Sampled(task.temperature, task.top_p, torch.tensor([row], device=logits.device))(logits, 0)

        prefilled, at_least, most = self.prefill.prefilled, task.min_new_tokens, self.model.max_length
        answers = converse(self.model.engine, prefilled, batch, questions, stop, at_least, choose, most)
        return [dict(zip(*each, strict=True)) for each in zip(answered, answers, strict=True)]
