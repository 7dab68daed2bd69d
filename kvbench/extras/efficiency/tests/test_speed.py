"""The time of a plan by the speed of a machine."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.extras.efficiency.roofline import shape_of
from kvbench.extras.efficiency.speed import Speed, model_shape, seconds_by_speed
from kvbench.models.loading.load import read_config
from kvbench.models.loading.spec import ModelSpec
from kvbench.run.plan import PrefillGroup, plan


def group_of(words: str) -> PrefillGroup:
    return plan([CellBuilder().cell(tree) for tree in combinations(parse(words.split()))], set()).groups[0]


def test_the_shape_of_files_is_the_shape_of_their_model() -> None:
    spec = ModelSpec("reference")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(read_config(spec.folder()), dtype=torch.float32)
    assert model_shape(spec) == shape_of(model)


def test_seconds_by_speed_follow_the_slower_of_two() -> None:
    """Twice as many prompts take twice as long; with endless arithmetic, steps take what their bytes take: the weights
    are read once for the cells of both prompts.
    """
    words = "task=ruler/niah_single_1 task.context_length=512 policy=full,snapkv budget=0.5 task.max_new_tokens=10"
    few, many = (group_of(f"{words} task.samples={samples}") for samples in (2, 4))
    speed = Speed(1e9, 1e9)
    assert seconds_by_speed(many, speed) == pytest.approx(2 * seconds_by_speed(few, speed))
    shape = model_shape(few.model)
    pair = len(shape.windows) * shape.kv_heads * shape.pair_bytes
    step = shape.pass_bytes + 2 * (512 + 256 + 2 * 5) * pair
    reading = shape.pass_bytes + 512 * pair
    assert seconds_by_speed(few, Speed(1e30, 1e9)) == pytest.approx((2 * reading + 10 * step) / 1e9)
