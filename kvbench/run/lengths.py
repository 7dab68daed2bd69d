"""How long the prompts of a task are: as the task promises, or counted where its texts have their own lengths."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import nlargest

from kvbench.eviction.schedule import EvictAfter
from kvbench.models.loading.load import model_info
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.prompts.build import build
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.tokens import TokensOf, template_tokens
from kvbench.run.plan import PrefillGroup
from kvbench.tasks.task import Sample, Task

COUNTED = 8
"""Texts with the most bytes, of which the tokens are counted: a benchmark has thousands."""


@dataclass(frozen=True)
class Lengths:
    """The most tokens of a prompt and its answer.

    read: before the eviction. later: after it, the answer included. is_counted: whether tokens of the longest texts
    were counted; otherwise `read` is the length that the task allows for a whole prompt.
    """

    read: int
    later: int
    is_counted: bool = False


def lengths_of(group: PrefillGroup) -> Lengths | None:
    """Return the lengths of a group's prompts; None for texts and timed batches, which have no prompts, and where no
    prompt is short enough for the model.

    Raises as `kvbench.models.loading.load.model_info` and `Task.generate` where texts are counted.
    """
    task = group.task
    if not task.has_prompts:
        return None
    if task.context_length is not None:
        return Lengths(task.context_length, task.max_new_tokens)
    return _counted(group.model, task, group.cells[0].schedule.evict_after)


@lru_cache
def _counted(spec: ModelSpec, task: Task, evict_after: EvictAfter) -> Lengths | None:
    info = model_info(replace(spec, device="cpu", device_map=None, attention="sdpa", kernels=None))  # of the tokenizer
    tokens = TokensOf(info.tokenizer, template_tokens(info.tokenizer, spec.chat, spec.system, task.chat))
    samples = (sample for sample in task.generate(tokens, range(task.samples)) if isinstance(sample, Sample))

    def prompts() -> Iterator[Prompt]:
        for sample in nlargest(COUNTED, samples, key=_bytes):
            most = info.max_length - sample.max_new_tokens
            try:
                yield build(info.tokenizer, sample, task, most, spec.chat, spec.system, evict_after)
            except ValueError:  # its row will say so
                continue

    built = list(prompts())
    if not built:
        return None
    later = max(len(prompt.question) for prompt in built) + task.max_new_tokens
    return Lengths(max(len(prompt.prefill) for prompt in built), later, is_counted=True)


def _bytes(sample: Sample) -> int:
    texts = (sample.context, sample.question, *(text for _, text in sample.messages))
    return sum(len(text.encode("utf-8", "replace")) for text in texts)
