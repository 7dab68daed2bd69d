"""The network, its growth, measuring: the parts of the training script that could be wrong unnoticed."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer

from tests.embedded import FOLDER, KV_HEADS, LAYERS, QUERY_HEADS, VOCABULARY


@pytest.mark.parametrize("evicted", [pytest.param(False, marks=pytest.mark.slow), True], ids=["causal", "evicted"])
def test_the_network_is_that_of_transformers(modules: SimpleNamespace, evicted: bool) -> None:
    """Over more than one block, with positions that skip ahead; bfloat16 products differ by their rounding."""
    from transformers import LlamaForCausalLM

    expected = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    network = grown_to(modules)
    ids = torch.randint(1, VOCABULARY, (2, 200), generator=torch.Generator().manual_seed(2))
    positions = torch.arange(200).expand(2, -1) + 50 * (torch.arange(200) > 90)
    hidden, blind_from = torch.zeros(2, 200, dtype=torch.bool), torch.tensor([200, 200])
    seen = torch.ones(200, 200, dtype=torch.bool).tril().expand(2, 1, -1, -1).clone()
    if evicted:
        hidden[1, 5:120], blind_from[1] = True, 150
        seen[1, :, 150:, 5:120] = False
    with torch.no_grad():
        logits = network.logits(network(ids, positions, hidden, blind_from))
        target = expected(ids, position_ids=positions, attention_mask=seen).logits
    assert (logits - target).abs().mean() < 0.02 * target.std()
    assert (logits.argmax(-1) == target.argmax(-1)).float().mean() > 0.95


def test_a_grown_model_answers_as_before(modules: SimpleNamespace) -> None:
    heads, kv_heads = QUERY_HEADS, KV_HEADS
    larger = {"layers": LAYERS + 2, "query_heads": 2 * heads, "kv_heads": 2 * kv_heads}
    old, grown = grown_to(modules), grown_to(modules, **larger, inner=768, vocabulary=VOCABULARY + 4)
    ids = torch.randint(1, VOCABULARY, (2, 33))
    rest = torch.arange(33).expand(2, -1), torch.zeros(2, 33, dtype=torch.bool), torch.tensor([33, 33])
    with torch.no_grad():
        before, after = (model.logits(model(ids, *rest)) for model in (old, grown))
    torch.testing.assert_close(after[..., :VOCABULARY], before, atol=0.1, rtol=0.02)
    queries = grown.state_dict()["model.layers.0.self_attn.q_proj.weight"]
    assert queries[64 * heads :].std() > 0.01, "new heads can learn"
    with pytest.raises(ValueError, match="give the same hidden size"):
        grown_to(modules, hidden=32)


@pytest.mark.slow
def test_a_layer_that_begins_as_suppression_takes_named_values_away(
    modules: SimpleNamespace, source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules.suppression, "BATCHES", 1)
    monkeypatch.setattr(modules.suppression, "ROWS", 6)
    place, layers = 2, LAYERS + 1
    network, families = grown_to(modules, added={place}, layers=layers), modules.families.Families(source)
    batch = modules.rows.collate([families.row(random.Random(seed), "values/essay", 400) for seed in range(12)], 400)
    before = named_and_right(network, batch)
    modules.suppression.suppress(network, place, families)
    named, right = named_and_right(network, batch) - before
    assert named < -0.2 and right > -0.1, "nats; right ones are likely already, the embedded model has such a layer"
    narrow = modules.network.Shape(VOCABULARY, kv_heads=2)
    with pytest.raises(ValueError, match="3 KV heads of 64, the model has 2"):
        modules.suppression.suppress(modules.network.TrainingLlama(narrow), place, families)


def named_and_right(network, batch) -> torch.Tensor:
    """Mean log probability of values that an answer has named, and of those it has not, where one is due."""
    arrays = (torch.from_numpy(part) for part in (batch.ids, batch.positions, batch.hidden, batch.blind_from))
    with torch.no_grad():
        logs = network.logits(network(*arrays)).log_softmax(-1)
    means = []
    for index, row in enumerate(batch.rows):
        for begin, end in row.answers:
            firsts = [first for first, _ in row.values if begin <= first < end]
            for place, first in enumerate(firsts[1:], 1):
                right = row.alternatives.get(first, [row.ids[first]])
                named = [row.ids[earlier] for earlier in firsts[:place]]
                means.append(torch.stack([logs[index, first - 1, ids].logsumexp(0) for ids in (named, right)]))
    return torch.stack(means).mean(0)


def grown_to(modules: SimpleNamespace, added=(), **larger: int):
    """The reference model in the training network, as large or larger."""
    network = modules.network.TrainingLlama(modules.network.Shape(**{"vocabulary": VOCABULARY} | larger))
    modules.growth.start_from(FOLDER, network, added)
    return network


def test_measuring_goes_on_where_it_stopped(
    modules: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules.evaluation, "policies", lambda folder, samples: [])
    figures, file = (("ruler/niah_single_1", 512, 42), ("ruler/niah_multikey_2", 384, 42)), tmp_path / "figures.jsonl"
    first = modules.evaluation.measure(FOLDER, 3, file, None, figures=figures[:1])
    both = modules.evaluation.measure(FOLDER, 3, file, None, figures=figures)
    assert both["figures"][0] == first["figures"][0]
    assert first["figures"][0]["mean"] == 1.0 and first["figures"][0]["n"] == 3
    assert len(file.read_text().splitlines()) == 3  # two figures, and the policies
    modules.evaluation.measure(FOLDER, 2, file, None, figures=figures[:1])
    assert len(file.read_text().splitlines()) == 5  # other samples are another measurement


def test_held_out_words_are_found_in_every_asked_key(modules: SimpleNamespace) -> None:
    question = (
        "\nWhat are all the special magic numbers for blue-age, teeny-tiny-cat, and odd-sea mentioned in the text?"
    )
    assert set(modules.evaluation._key_words(question, frozenset({"teeny-tiny", "sea", "tiny"}))) == {
        "teeny-tiny",
        "sea",
    }


def test_a_window_as_long_as_the_text_changes_no_perplexity(
    modules: SimpleNamespace, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    monkeypatch.setattr(modules.perplexity, "TOKENS", 150)
    monkeypatch.setattr(modules.perplexity, "SKIPPED", 50)
    books = [" ".join(f"{name} walked {index} miles." for index in range(400)) for name in ("Ann", "Bob", "Cy")]

    def measure(window: int) -> dict:
        monkeypatch.setattr(modules.perplexity, "WINDOW", window)
        return modules.perplexity.perplexity(model, lambda text: tokenizer.encode(text).ids, books)

    wide, narrow = measure(150), measure(9)
    assert wide["difference"] == 0.0 and wide["books"] == 3
    assert narrow["nats_full"] == wide["nats_full"] != narrow["nats_window"]
