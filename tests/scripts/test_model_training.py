"""Attention in blocks, growth, measuring: the parts of the training script that could be wrong unnoticed."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer

from kvbench.support import paths

REFERENCE = paths.assets() / "reference"


@pytest.mark.parametrize("hidden", [False, True], ids=["causal", "evicted"])
def test_attention_in_blocks_is_attention(modules: SimpleNamespace, hidden: bool) -> None:
    torch.manual_seed(5)
    tokens, size = 300, 8
    q = torch.randn(2, 6, tokens, size, requires_grad=True)
    k, v = (torch.randn(2, 3, tokens, size, requires_grad=True) for _ in "kv")
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril().expand(2, 1, -1, -1).clone()
    if hidden:
        seen[:, :, 200:, 5:170] = False
    out, _ = modules.chunked.chunked(torch.nn.Identity(), q, k, v, seen if hidden else None, scaling=0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), seen, scale=0.3
    ).transpose(1, 2)
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    for ours, theirs in zip(
        torch.autograd.grad(out, (q, k, v), grad), torch.autograd.grad(expected, (q, k, v), grad), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_a_grown_model_answers_as_before(modules: SimpleNamespace) -> None:
    from transformers import LlamaForCausalLM

    old = LlamaForCausalLM.from_pretrained(REFERENCE, dtype=torch.float32)
    config = old.config
    grown = modules.trainer.build_model(config.vocab_size, config.hidden_size, config.num_hidden_layers + 2, 3)
    ids = torch.randint(1, 1536, (2, 33))
    modules.growth.start_from(REFERENCE, grown)
    with torch.no_grad():
        torch.testing.assert_close(grown(ids).logits, old(ids).logits)
    with pytest.raises(ValueError, match="give its hidden size"):
        modules.growth.start_from(REFERENCE, modules.trainer.build_model(1536, 32, 9, 3))


def test_measuring_goes_on_where_it_stopped(
    modules: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules.evaluation, "policies", lambda folder, samples: [])
    figures, file = (("ruler/niah_single_1", 512, 42), ("ruler/niah_multikey_2", 384, 42)), tmp_path / "figures.jsonl"
    first = modules.evaluation.measure(REFERENCE, 3, file, None, figures=figures[:1])
    both = modules.evaluation.measure(REFERENCE, 3, file, None, figures=figures)
    assert both["figures"][0] == first["figures"][0]
    assert first["figures"][0]["mean"] == 1.0 and first["figures"][0]["n"] == 3
    assert len(file.read_text().splitlines()) == 3  # two figures, and the policies
    modules.evaluation.measure(REFERENCE, 2, file, None, figures=figures[:1])
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

    model = LlamaForCausalLM.from_pretrained(REFERENCE, dtype=torch.float32).eval()
    monkeypatch.setattr(modules.perplexity, "TOKENS", 150)
    monkeypatch.setattr(modules.perplexity, "SKIPPED", 50)
    books = [" ".join(f"{name} walked {index} miles." for index in range(400)) for name in ("Ann", "Bob", "Cy")]

    def measure(window: int) -> dict:
        monkeypatch.setattr(modules.perplexity, "WINDOW", window)
        return modules.perplexity.perplexity(model, lambda text: tokenizer.encode(text).ids, books)

    wide, narrow = measure(150), measure(9)
    assert wide["difference"] == 0.0 and wide["books"] == 3
    assert narrow["nats_full"] == wide["nats_full"] != narrow["nats_window"]
