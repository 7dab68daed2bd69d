"""How long a plan takes by the measured speed of this machine, where no similar rows say it.

By a roofline: matrix products and attention take the speed of a matrix product, weights and caches the speed of a
copy. What a score computes and element-wise work are not in it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from kvbench.extras.efficiency import roofline
from kvbench.models.loading.architecture import cache_heads, sliding_windows
from kvbench.models.loading.load import choose_device
from kvbench.models.loading.spec import ModelSpec
from kvbench.run.cell import Cell
from kvbench.run.joint_batch import may_decode_jointly
from kvbench.run.lengths import lengths_of
from kvbench.run.memory import catch_oom, text_and_dtype
from kvbench.run.plan import PrefillGroup
from kvbench.run.request_memory import tensor_shapes
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun
from kvbench.work.plan_text import written


@dataclass(frozen=True)
class Speed:
    """Operations per second of a matrix product, and bytes per second of a copy."""

    flops: float
    bytes: float

    def __str__(self) -> str:
        return f"{self.flops / 1e9:.3g} GFLOP/s and {self.bytes / 1e9:.3g} GB/s"

    def seconds(self, flops: float, bytes: float) -> float:
        """Return the longer of computing and moving."""
        return max(flops / self.flops, bytes / self.bytes)


SCALE = {"cuda": 1.0, "cpu": 0.5}
"""Of the sizes of `kvbench.extras.efficiency.roofline.ceiling`: a tenth of a second, so that a plan stays quick."""


@lru_cache
def speed_of(device: torch.device, dtype: torch.dtype) -> Speed | None:
    """Return the speed of a device, measured once; None where its memory is taken."""
    measured = catch_oom(lambda: roofline.ceiling(device, dtype, SCALE[device.type]))
    if isinstance(measured, str):
        return None
    return Speed(measured["device_flops_per_second"], measured["device_copy_bytes_per_second"])


def model_shape(spec: ModelSpec) -> roofline.Shape:
    """Return the dimensions of a model, of its files: matrices of vocabulary times hidden size are embeddings or the
    head.
    """
    text, dtype = text_and_dtype(spec)
    table, matrices = (text.vocab_size, text.hidden_size), [shape for shape in tensor_shapes(spec) if len(shape) > 1]
    kv_heads, head_dim = cache_heads(text)
    return roofline.Shape(
        inner=sum(math.prod(shape) for shape in matrices if shape != table),
        head=math.prod(table),
        bytes_each=dtype.itemsize,
        heads=text.num_attention_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        windows=tuple(sliding_windows(text).values()),
    )


def speed_text(groups: Sequence[PrefillGroup], starting: float) -> str | None:
    """Return the line of a plan about the time of groups without similar rows; None where no speed tells it.

    starting: seconds until the models are loaded.
    """
    groups = [group for group in groups if group.model.runs_here and lengths_of(group)]
    speeds = {group.key: speed for group in groups if (speed := _speed_of_group(group))}
    if not speeds or len(speeds) < len(groups):
        return None
    seconds = sum(seconds_by_speed(group, speeds[group.key]) for group in groups)
    text = " or ".join(dict.fromkeys(map(str, speeds.values())))
    longest = count_noun(max(lengths.later for group in groups if (lengths := lengths_of(group))), "token")
    return (
        f"time by the speed of this machine, measured just now ({text}): about {written(starting + seconds)}: "
        f"{written(starting)} until models are loaded, the rest if every answer is as long as it may be, up to "
        f"{longest}; scoring and element-wise work come on top"
    )


def _speed_of_group(group: PrefillGroup) -> Speed | None:
    try:
        device = choose_device(group.model)
    except UserError:  # a plan is also made where the device is not
        return None
    half = device.type == "cuda"  # a CPU computes in float32 where half precision is slower
    return speed_of(device, text_and_dtype(group.model)[1] if half else torch.float32)


def seconds_by_speed(group: PrefillGroup, speed: Speed) -> float:
    """Return seconds of what is left of a group, if prompts and answers have the most tokens."""
    lengths, shape = lengths_of(group), model_shape(group.model)
    assert lengths is not None
    tokens, later = lengths.read, lengths.later
    seconds = len(group.jobs) * speed.seconds(
        roofline.prefill_flops(shape, tokens), roofline.prefill_bytes(shape, tokens)
    )
    pairs = len(shape.windows) * shape.kv_heads
    kept = {
        cell.id: min(cell.policy.resolve(0, tokens, cell.budget).pairs(cell.budget, tokens), tokens)
        for cell in group.cells
    }
    for cells in decode_batches(group):
        batch = [kept[cell.id] * pairs for cell in cells]
        flops = roofline.step_flops(shape, [(held, shape.heads // shape.kv_heads) for held in batch], later / 2)
        tails = len(batch) * pairs * later / 2 * shape.pair_bytes
        seconds += later * speed.seconds(flops, roofline.step_bytes(shape, sum(batch) * shape.pair_bytes, tails))
    return seconds


def decode_batches(group: PrefillGroup) -> Iterator[Sequence[Cell]]:
    """Yield the cells that decode together, from several prompts where they can."""
    size, waiting = group.model.max_batch, list[Cell]()
    joint = may_decode_jointly(group.cells, size) and all(len(job.missing) == 1 for job in group.jobs)
    for cells in (cells for job in group.jobs for cells in job.missing.values()):
        if waiting and not (joint and len(waiting) + len(cells) <= size):
            yield waiting
            waiting = []
        *full, rest = (cells[start : start + size] for start in range(0, len(cells), size))
        yield from full
        waiting = [*waiting, *rest]
    if waiting:
        yield waiting
