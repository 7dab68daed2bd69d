"""The peak that a plan tells against counted bytes: of a whole prompt, from its prefill to the batch of its cells.

By shapes alone, for eight layers of the widths of Llama 3.1 8B: tensors without data, whose fused attention allocates
its outputs.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import LlamaConfig, LlamaForCausalLM

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt
from kvbench.run.decode_batch import batch_of
from kvbench.run.evict_cell import HeldCache, SharedPrefill, evict_cells
from kvbench.run.plan import PrefillGroup, plan
from kvbench.run.plan_memory import memory_of, memory_text
from kvbench.run.prefill_job import prefill
from tests.live_bytes import LiveBytes

LAYERS, TOKENS, BLOCK, NEW = 8, 16384, 4096, 16
CASES = {
    "full": "policy=full",
    "snapkv": "policy=snapkv budget=0.2",
    "key_norm": "policy=plain score=key_norm budget=0.5",
    "h2o": "policy=h2o budget=0.2",
    "h2o_kvzip": "policy=h2o_kvzip budget=0.2",
    "kvzip_uniform": "policy=kvzip_uniform budget=0.2",
    "recorded queries": "policy=h2o policy.reduce=observed_attention budget=0.2",
    "four cells": "policy=full,snapkv budget=0.2,0.4,0.6",
}

QUICK = ("full", "snapkv", "four cells")


def group_of(case: str) -> PrefillGroup:
    """The cells of a case and their model, of fewer layers."""
    words = "model=shape/llama3.1-8b model.dtype=bfloat16 model.max_batch=8 task=ruler/niah_single_1 task.samples=1"
    words += f" task.context_length={TOKENS} task.max_new_tokens={NEW} {CASES[case]}"
    cells = [CellBuilder().cell(tree) for tree in combinations(parse(words.split()))]
    shape = cells[0].model.shape
    assert shape is not None
    spec = replace(cells[0].model, shape=replace(shape, config={**shape.config, "num_hidden_layers": LAYERS}))
    (group,) = plan([replace(cell, model=spec) for cell in cells], set()).groups
    return group


def counted(group: PrefillGroup, block: int, tokenizer: Any) -> int:
    """The most bytes beside the weights."""
    shape = OmegaConf.load(Path(__file__).parents[2] / "conf" / "model" / "shape" / "llama3.1-8b.yaml").shape.config
    config = LlamaConfig(**{**OmegaConf.to_container(shape), "num_hidden_layers": LAYERS})
    with torch.device("meta"):
        llama = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16, attn_implementation="eager").eval()
    bridge.attach(llama)
    options = {"max_length": 2 * TOKENS, "prefill_chunk": block, "max_batch": 8}
    engine = Engine(llama, attend=lambda queries, keys, values, rule: torch.empty_like(queries), **options)
    model, prompt = LoadedModel(engine, tokenizer, frozenset(), 2 * TOKENS, {}), Prompt((7,) * TOKENS, (), "")
    with LiveBytes() as live, torch.inference_mode():
        live.kept = config.num_key_value_heads * TOKENS // 5
        read = prefill(model, {0: prompt}, group.cells)
        shared = SharedPrefill(read.prefilled.cache, prompt, group.cells)
        outcomes = evict_cells(model, group.cells, shared, copy=False)
        held = [outcome for outcome in outcomes if isinstance(outcome, HeldCache)]
        assert len(held) == len(outcomes)
        del outcomes
        batch = batch_of(engine, held, NEW)
        assert batch.num_active == len(group.cells)
    return live.peak


@pytest.mark.parametrize(
    ("case", "block"),
    [
        pytest.param(case, block, marks=() if case in QUICK else pytest.mark.slow, id=f"{case} {block}")
        for case in CASES
        for block in (BLOCK, TOKENS)
    ],
)
def test_the_peak_of_a_plan_is_what_is_counted(case: str, block: int, tokenizer: Any) -> None:
    """Within a tenth, in blocks and in one pass."""
    group = group_of(case)
    memory, bytes_counted = memory_of(group, block), counted(group, block, tokenizer)
    assert memory is not None
    assert 0.9 < memory.peak / bytes_counted < 1.1
    whole = memory_of(group, TOKENS)
    assert whole is not None and f"at its peak {memory_of(group).peak / 2**20:.1f} MiB" in str(memory_text(group))
    assert f"({whole.peak / 2**20:.1f} MiB read in one pass)" in str(memory_text(group))
