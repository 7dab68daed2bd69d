"""Answers to prompts: the procedure of most tasks. Several prompts are decoded together where a batch has room."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from kvbench.eviction.schedule import TURN
from kvbench.models.loading.load import LoadedModel
from kvbench.records.folder import ResultsFolder
from kvbench.records.sidecars import KeptDetail
from kvbench.run.joint_batch import JointBatch, decodes_jointly
from kvbench.run.local import OneByOne
from kvbench.run.plan import PrefillGroup, PrefillJob
from kvbench.run.prefill_job import run_prefill_job
from kvbench.run.procedure import Samples
from kvbench.run.rows import JobResult
from kvbench.support.quantity import count_noun
from kvbench.tasks.task import Sample


class Answers(OneByOne):
    """Prefills a prompt or context for all cells; each evicts and answers."""

    def __init__(self, model: LoadedModel, group: PrefillGroup, results: ResultsFolder, kept: KeptDetail) -> None:
        super().__init__(model, group, results, kept)
        self._waiting: list[tuple[PrefillJob, Samples]] = []
        self._joint = JointBatch(model, self.environment_id, kept) if decodes_jointly(model, group.cells) else None

    @classmethod
    def when(cls, group: PrefillGroup) -> str:
        schedule = group.cells[0].schedule
        if schedule.prefill_block is None:
            return f"evicted after the {schedule.evict_after}"
        block = "turn" if schedule.prefill_block == TURN else f"{schedule.prefill_block} tokens"
        blocks = f"evicted after every {block} of the {schedule.evict_after}"
        return f"{blocks}: later blocks attend to what was kept, so this cell shares its prefill with no other"

    @classmethod
    def cost(cls, group: PrefillGroup) -> str:
        task, prefills = group.task, len(group.jobs)
        read = f"prefill: {count_noun(prefills, group.cells[0].schedule.evict_after)}"
        if task.context_length is not None:
            alone = group.rows_to_do * task.context_length
            read += f", at most {prefills * task.context_length} tokens ({alone} without sharing)"
        written = group.rows_to_do * task.max_new_tokens
        return f"{read}; answers: {group.rows_to_do}, at most {written} tokens"

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def rows(self, job: PrefillJob, samples: Sequence[Sample]) -> JobResult:
        return run_prefill_job(self.model, job, samples, self.environment_id, self.kept)

    def make(self, job: PrefillJob, samples: Samples, most_waiting: int) -> Iterator[JobResult]:
        """As `Procedure.make`. A job that is made by itself ends the waiting of the others first, which takes memory,
        as a full batch does.
        """
        waits = False
        if self._joint is not None and len(samples) == 1 and isinstance(samples[0], Sample):
            with suppress(Exception):  # made by itself, so that its rows say what is wrong
                waits = self._joint.add(job, samples[0])
        if not waits:
            yield from self.finish()
            yield self.result(job, samples)
            return
        self._waiting.append((job, samples))
        if self._joint is not None and (self._joint.is_full or len(self._waiting) >= most_waiting):
            yield from self.finish()

    def finish(self) -> Iterator[JobResult]:
        waiting, self._waiting, made = self._waiting, [], dict[int, JobResult]()
        if self._joint is not None:
            with suppress(Exception):
                made = self._joint.finish()
        for job, samples in waiting:
            yield self.result(job, samples, made.get(job.key))
