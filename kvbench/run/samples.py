"""The samples of a group, as the tokenizer of its model makes them."""

from collections.abc import Iterator
from typing import Any

from kvbench.models.prompts.tokens import TokensOf, template_tokens
from kvbench.run.plan import PrefillGroup
from kvbench.tasks.task import InvalidSample, Sample


def samples_of(tokenizer: Any, group: PrefillGroup) -> Iterator[Sample | InvalidSample]:
    """Yield the samples of which rows are missing, in ascending order."""
    template = template_tokens(tokenizer, group.model.chat, group.model.system, group.task.chat)
    missing = [sample for job in group.jobs for sample in job.missing]
    yield from group.task.numbered_answers(TokensOf(tokenizer, template), missing)
