"""Every family against transformers' own eager forward pass, keep-all: blocks, a question of several tokens, steps."""

import pytest
import torch

from kvbench.models import bridge
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from tests.models.families import FAMILIES, RECURRENT, tiny

PROMPT, QUESTION, STEPS = 61, 5, 4


def logit_difference(family: str) -> float:
    """Largest difference of a logit, over everything that is read after the prompt's last token."""
    model = tiny(family)
    ids = torch.randint(3, 97, (PROMPT + QUESTION + STEPS,), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        expected = model(ids[None], use_cache=False).logits[0]
    bridge.attach(model)
    engine = Engine(model, prefill_chunk=13, max_batch=2, max_length=512)
    prefilled = engine.prefill(ids[:PROMPT])
    tile = RaggedBatch([prefilled.cache], engine.max_batch, max_new_tokens=QUESTION + STEPS)
    logits = [prefilled.logits]
    for tokens in (ids[PROMPT : PROMPT + QUESTION], *ids[PROMPT + QUESTION :].split(1)):
        logits.append(engine.read(tile, tokens.expand(engine.max_batch, -1))[0])
    rows = [PROMPT - 1, *range(PROMPT + QUESTION - 1, len(ids))]
    assert expected.std() > 0.05
    return float((torch.stack(logits) - expected[rows]).abs().max())


@pytest.mark.parametrize("family", FAMILIES | RECURRENT)
def test_keep_all_has_the_logits_of_transformers(family: str) -> None:
    """A single token through transformers' Nemotron-H differs from the same token among others."""
    assert logit_difference(family) <= (2e-3 if family == "nemotron_h" else 1e-4)


if __name__ == "__main__":
    print("largest difference of a logit to transformers, eager, float32, everything kept")
    for name in FAMILIES | RECURRENT:
        print(f"{name:16} {logit_difference(name):8.1e}")
