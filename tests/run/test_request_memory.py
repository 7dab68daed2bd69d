"""What a request takes alone, and how long prompts are."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.extras.efficiency.roofline import weight_bytes
from kvbench.extras.stores.packed import Packed
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.loading.load import read_config
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.loading.weights import shape_config
from kvbench.run.lengths import Lengths, lengths_of
from kvbench.run.plan import PrefillGroup, plan
from kvbench.run.request_memory import RequestMemory, request_memory, request_text, tensor_shapes, weights_of
from tests.live_bytes import LiveBytes


def group_of(words: str) -> PrefillGroup:
    return plan([CellBuilder().cell(tree) for tree in combinations(parse(words.split()))], set()).groups[0]


def test_requests_at_a_time() -> None:
    """One is being read while the others are answered: 100 + 50 + 3 x 20, then 4 x 20 beside the weights."""
    memory = RequestMemory(weights=100, prefill=50, scoring=5, decode=20)
    assert (memory.peak(), memory.peak(4), memory.requests(149), memory.requests(210)) == (150, 210, 0, 4)
    grows = RequestMemory(weights=100, prefill=10, scoring=0, decode=20)
    assert (grows.peak(), grows.requests(120), grows.requests(139), grows.requests(140)) == (120, 1, 1, 2)


@pytest.mark.parametrize(("name", "tokens"), [("llama3.2-1b", 512), ("qwen2.5-7b", 16384)])
def test_a_prompt_takes_at_most_what_is_said(name: str, tokens: int) -> None:
    """Against the live bytes of a prefill, by shapes alone, for 3 layers: no less, and at most a fifth more."""
    words = f"model=shape/{name} task=ruler/niah_single_1 task.context_length={tokens} policy=full"
    cell = group_of(words).cells[0]
    shape = replace(cell.model.shape, config={**cell.model.shape.config, "num_hidden_layers": 3})
    cell = replace(cell, model=replace(cell.model, shape=shape, dtype="bfloat16"))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape_config(shape), dtype=torch.bfloat16).eval()
    bridge.attach(model)
    engine = Engine(model, attend=lambda queries, keys, values, rule: torch.empty_like(queries))
    with LiveBytes() as live:
        engine.prefill(torch.arange(tokens) % 90)
    said = request_memory(cell, Lengths(tokens, 0))
    assert live.peak <= said.prefill <= 1.2 * live.peak
    assert said.weights == weight_bytes(model)


def test_what_eviction_saves_and_what_it_does_not() -> None:
    """32K tokens of Llama 3.1 8B, 128 KiB each: the prompt is held entirely, the answer by a tenth of it."""
    words = "model=shape/llama3.1-8b model.dtype=bfloat16 task=ruler/niah_single_1 task.context_length=32768"
    pair, lengths = 2**17, Lengths(32768, 128)
    after = {cell.policy.name: cell for cell in group_of(f"{words} policy=full,snapkv budget=0.1").cells}
    full, snapkv = (request_memory(after[name], lengths) for name in ("full", "snapkv"))
    assert full.decode == (32768 + 128) * pair and snapkv.decode == (3277 + 128) * pair
    assert snapkv.prefill >= full.prefill > 32768 * pair
    quantised = request_memory(after["snapkv"].with_method(holder=Packed("int8")), lengths)
    assert 0.5 * 3277 * pair < quantised.decode - 128 * pair < 0.6 * 3277 * pair
    (cell,) = group_of(f"{words} policy=snapkv budget=1024 schedule.prefill_block=1024").cells
    blocks = request_memory(cell, lengths)
    assert blocks.prefill < full.prefill / 4 and blocks.decode == (1024 + 128) * pair


def test_weights_and_shapes_are_those_of_the_model() -> None:
    spec = ModelSpec("reference")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(read_config(spec.folder()), dtype=torch.float32)
    assert weights_of(spec) == weight_bytes(model)
    assert sum(map(math.prod, tensor_shapes(spec))) * 4 == weights_of(spec)


def test_lengths_are_promised_or_counted(tmp_path: Path) -> None:
    """The longest line of a file, and its question after the context where it is read after the eviction."""
    file = tmp_path / "mine.jsonl"
    lines = [{"context": "Grass is green. " * n, "question": "Which colour?", "answers": ["green"]} for n in (40, 2)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    group = group_of(f"task=jsonl task.path={file} policy=full")
    whole = lengths_of(group)
    assert whole is not None and whole.is_counted and whole.later == 64 and 160 < whole.read < 500
    apart = lengths_of(group_of(f"task=jsonl task.path={file} policy=full schedule.evict_after=context"))
    assert apart is not None and apart.read + apart.later == whole.read + whole.later and apart.later > 64
    assert f"the longest prompt has {whole.read} tokens" in request_text(group)
    promised = group_of("task=ruler/niah_single_1 task.context_length=512 policy=full")
    assert lengths_of(promised) == Lengths(512, 128)
    timed = group_of("task=efficiency policy=full")
    assert lengths_of(timed) is None and request_text(timed) == "weights: 17.0 MiB"
