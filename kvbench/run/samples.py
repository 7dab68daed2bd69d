"""The samples of which a plan lacks rows, made by their task."""

from collections.abc import Iterator
from typing import Any

from kvbench.models.prompts.prompt import TokensOf, template_tokens
from kvbench.run.plan import PrefillGroup, PrefillJob
from kvbench.tasks.task import InvalidSample, Sample


def samples_of(tokenizer: Any, group: PrefillGroup) -> Iterator[Sample | InvalidSample]:
    """Return the samples of which rows are missing, in ascending order."""
    missing = [sample for job in group.jobs for sample in job.missing]
    template = template_tokens(tokenizer, group.model.chat, group.model.system, group.task.chat)
    return group.task.numbered_answers(TokensOf(tokenizer, template), missing)


def jobs_with_samples(tokenizer: Any, group: PrefillGroup) -> Iterator[tuple[PrefillJob, list[Sample | InvalidSample]]]:
    """Jobs with their samples, each as soon as its last sample is made."""
    job_of = {sample: job for job in group.jobs for sample in job.missing}
    job_samples: dict[int, list[Sample | InvalidSample]] = {}
    for sample in samples_of(tokenizer, group):
        job = job_of[sample.id]
        samples = job_samples.setdefault(job.key, [])
        samples.append(sample)
        if len(samples) == len(job.missing):
            yield job, job_samples.pop(job.key)
