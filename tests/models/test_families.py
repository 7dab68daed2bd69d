"""Every family against transformers' own eager forward pass, keep-all: blocks, a question of several tokens, steps."""

import pytest
import torch

from kvbench.models import bridge
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from kvbench.models.loading.architecture import check_architecture
from kvbench.models.loading.check import check_model, eager_logits
from tests.models.families import FAMILIES, PROMPT, RECURRENT, tiny

QUESTION, STEPS = 5, 4


@pytest.mark.parametrize("family", FAMILIES | RECURRENT)
def test_keep_all_has_the_logits_of_transformers(family: str) -> None:
    """And the check of a loaded model passes. Nemotron-H reads a single token otherwise than the same among others."""
    model = tiny(family)
    check_architecture(model.config, "a test")
    more = torch.randint(3, 97, (QUESTION + STEPS,), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        expected = model(torch.cat((PROMPT, more))[None], use_cache=False).logits[0, len(PROMPT) - 1 :]
    of_few_tokens = eager_logits(model)
    bridge.attach(model)
    engine = Engine(model, prefill_chunk=13, max_batch=2, max_length=512)
    check_model(engine, of_few_tokens)
    prefilled = engine.prefill(PROMPT)
    tile = RaggedBatch([prefilled.cache], engine.max_batch, max_new_tokens=QUESTION + STEPS)
    logits = [prefilled.logits]
    for tokens in (more[:QUESTION], *more[QUESTION:].split(1)):
        logits.append(engine.read(tile, tokens.expand(engine.max_batch, -1))[0])
    assert expected.std() > 0.05
    difference = (torch.stack(logits) - expected[[0, *range(QUESTION, len(expected))]]).abs().max()
    assert difference <= (2e-3 if family == "nemotron_h" else 1e-4)
