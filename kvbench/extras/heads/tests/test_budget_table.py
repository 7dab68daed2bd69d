"""LU-KV's budget tables: the published solver's numbers, and utilities written out."""

import json

import numpy as np
import torch

from kvbench.extras.heads.budget_table import evicted_parts, utilities
from kvbench.extras.probes.scene import Scene
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt
from kvbench.run.rows import TimedPrefill
from scripts.golden_methods import FOLDER
from scripts.golden_methods import utilities as drawn
from tests.models.families import tiny
from tests.models.test_rotation import PROMPT

GOLDEN = json.loads((FOLDER / "lukv_table.json").read_text("utf-8"))


def test_the_table_of_a_prompt_is_that_of_the_published_code() -> None:
    tokens, compared = GOLDEN["shape"][2], slice(GOLDEN["sink"], GOLDEN["shape"][2] - GOLDEN["recent"])
    utility, scores = drawn(GOLDEN["seed"], *GOLDEN["shape"])
    table = evicted_parts(utility[..., compared], scores[..., compared], tokens)
    kept = (tokens - table * tokens).round().astype(int)
    assert kept.tolist() == GOLDEN["kept"]
    assert (kept.sum(axis=(1, 2))[:90] == [round(6 * tokens * (1 - part / 100)) for part in range(1, 91)]).all()
    assert kept[79].min() < 20 < kept[79].max()


def test_the_utility_is_the_largest_weight_of_an_answer_times_a_share_of_norms() -> None:
    """Against the attention weights that transformers returns for context, question and answer at once."""
    model = tiny("llama")
    model.config._attn_implementation = "eager"
    context, question, answer = PROMPT.tolist()[:50], PROMPT.tolist()[50:], []
    with torch.inference_mode():
        for _ in range(6):
            output = model(torch.tensor([[*context, *question, *answer]]), use_cache=False, output_attentions=True)
            answer.append(int(output.logits[0, -1].argmax()))
    values = []
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda *call: values.append(call[2][0].detach()))
    bridge.attach(model)
    engine = Engine(model, prefill_chunk=50, max_length=512)
    prefilled = engine.prefill(torch.tensor(context))
    prompt = Prompt(tuple(context), tuple(question), "")
    scene = Scene(LoadedModel(engine, None, frozenset(), 512, {}), prompt, TimedPrefill(prefilled, 0.0))
    by_layer = utilities(scene, frozenset(), 6)
    for index, utility in enumerate(by_layer):
        layer = prefilled.cache.layers[index]
        group = layer.query_heads // layer.cache_heads
        output_matrix = model.model.layers[index].self_attn.o_proj.weight.detach()
        by_head = values[index].view(50, layer.cache_heads, -1)
        norms = torch.stack(
            [
                (by_head[:, head // group] @ part.T).norm(dim=1)
                for head, part in enumerate(output_matrix.split(by_head.shape[2], dim=1))
            ]
        )
        weights = output.attentions[index][0, :, len(context) + len(question) :, :50].amax(dim=1)
        expected = (weights * norms / norms.sum()).view(layer.cache_heads, group, 50).amax(dim=1)
        np.testing.assert_allclose(utility, expected.numpy(), rtol=1e-4, atol=1e-9)
