"""Loading what is asked for and refusing what the bridge would get wrong."""

from pathlib import Path

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from kvbench.models import bridge
from kvbench.models.load import load
from kvbench.models.spec import ModelSpec
from tests.models.conftest import tiny_llama

TOKENIZER = Path(__file__).parents[1] / "golden" / "ruler" / "tokenizer"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model with a tokenizer and two stop tokens."""
    model = tiny_llama()
    model.generation_config.eos_token_id = [3, 5]
    model.save_pretrained(tmp_path)
    for file in TOKENIZER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize("dtype", ["auto", "float64", "bfloat16"])
def test_a_folder_is_loaded_as_asked(folder: Path, dtype: str) -> None:
    loaded = load(ModelSpec("hf", str(folder), dtype=dtype))  # type: ignore[arg-type]
    assert loaded.engine.model.dtype == (torch.float32 if dtype == "auto" else getattr(torch, dtype))
    assert loaded.stop == {3, 5} and loaded.max_length == 512
    assert load(ModelSpec("hf", str(folder), max_length=77)).max_length == 77
    assert loaded.engine.prefill(torch.tensor([1, 2, 3]), 2).cache.pairs == 3 * 2 * 3


def test_other_model_types_are_refused_by_name(folder: Path) -> None:
    MistralConfig().save_pretrained(folder)
    with pytest.raises(ValueError, match=r"model type mistral is not supported; legal: .*llama"):
        load(ModelSpec("hf", str(folder)))


def test_attention_that_would_be_dropped_is_refused() -> None:
    """A sliding window reaches the bridge as an argument; ignoring it would be silently wrong."""
    model = MistralForCausalLM(
        MistralConfig(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            sliding_window=8,
        )
    )
    bridge.attach(model)
    reader = type("Reader", (), {"attend": lambda self, layer, queries, keys, values, scaling: queries})()
    with pytest.raises(ValueError, match="asks for sliding_window, which is not supported"):
        bridge.forward(model, torch.zeros(1, 4, dtype=torch.long), 0, reader)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/no/such/folder", "model.path=/no/such/folder: no such folder"),
        ("no_such_name", "model.path=no_such_name: no such folder"),
        ("nobody/no-such-model", "model.path=nobody/no-such-model: no such folder, and the hub did not give it"),
    ],
)
def test_a_missing_model_is_missing_data(path: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=message):
        ModelSpec("hf", path).folder()
