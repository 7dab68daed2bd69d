"""Loading what is asked for and refusing what the bridge would get wrong."""

import json
from pathlib import Path

import pytest
import torch
from transformers import MistralConfig

from kvbench.models import bridge
from kvbench.models.load import load, outline
from kvbench.models.spec import HASHED, ModelSpec
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
    loaded = load(outline(ModelSpec("hf", str(folder), dtype=dtype)))  # type: ignore[arg-type]
    assert loaded.engine.model.dtype == (torch.float32 if dtype == "auto" else getattr(torch, dtype))
    assert loaded.stop == {3, 5} and loaded.max_length == 512
    assert outline(ModelSpec("hf", str(folder), max_length=77)).max_length == 77
    assert loaded.engine.prefill(torch.tensor([1, 2, 3])).cache.pairs == 3 * 2 * 3


def test_other_model_types_are_refused_by_name(folder: Path) -> None:
    MistralConfig().save_pretrained(folder)
    with pytest.raises(ValueError, match=r"model type mistral is not supported; legal: .*llama"):
        outline(ModelSpec("hf", str(folder)))


@pytest.mark.parametrize(
    ("options", "what"),
    [({"chunk": 8}, "chunk"), ({"is_causal": False}, "attention that is not causal"), ({}, "attention_mask")],
)
def test_attention_that_would_be_dropped_is_refused(options: dict[str, object], what: str) -> None:
    """Ignoring what a model passes along would be silently wrong."""
    reader = type("Reader", (), {"attend": lambda self, layer, queries, keys, values, rule: queries})()
    heads = torch.zeros(1, 2, 3, 4)
    token = bridge._reader.set(reader)
    try:
        with pytest.raises(ValueError, match=f"Identity asks for {what}, which is not supported"):
            bridge.attention(torch.nn.Identity(), heads, heads, heads, None if options else heads, scaling=1, **options)
    finally:
        bridge._reader.reset(token)


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


def test_a_model_in_several_files_is_hashed_and_loaded_whole(folder: Path) -> None:
    """What is fetched from a hub includes the index that names the files."""
    tiny_llama().save_pretrained(folder, max_shard_size="50KB")
    (folder / "model.safetensors").unlink()
    fetched = folder / "fetched"
    fetched.mkdir()
    for pattern in HASHED:
        for file in folder.glob(pattern):
            (fetched / file.name).write_bytes(file.read_bytes())
    loaded = load(outline(ModelSpec("hf", str(fetched))))
    weights = tiny_llama().state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in loaded.engine.model.state_dict().items())


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_rope_that_depends_on_the_length_is_refused(folder: Path, rope: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 64}
    config["rope_parameters"] = {"rope_type": rope, "factor": 2.0, "rope_theta": 10000.0, **factors}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"rope_type {rope} is not supported"):
        outline(ModelSpec("hf", str(folder)))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_broken_files_are_broken_data(folder: Path, name: str) -> None:
    (folder / name).write_text("{ no")
    with pytest.raises(FileNotFoundError, match=r"model\.path=.*: cannot be loaded"):
        load(outline(ModelSpec("hf", str(folder))))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_files_are_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"the folder holds no (config\.json|\*\.safetensors|tokenizer)"):
        outline(ModelSpec("hf", str(folder)))


def test_a_required_chat_template_must_be_there(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.chat=required"):
        outline(ModelSpec("hf", str(folder), chat="required"))


def test_paths_go_with_hf_only() -> None:
    with pytest.raises(ValueError, match=r"use model=hf model\.path"):
        ModelSpec("reference", "somewhere")
    with pytest.raises(ValueError, match=r"model\.path is missing"):
        ModelSpec("hf")


def test_threads_are_torchs_own_again_for_the_next_model(folder: Path) -> None:
    before = torch.get_num_threads()
    load(outline(ModelSpec("hf", str(folder), threads=before + 1)))
    assert torch.get_num_threads() == before + 1
    load(outline(ModelSpec("hf", str(folder))))
    assert torch.get_num_threads() == before
