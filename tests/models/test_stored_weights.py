"""How a checkpoint says that its weights are stored, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kvbench.models.loading.load import model_info
from kvbench.models.loading.spec import ModelSpec, quantization
from tests.models.conftest import tiny_llama


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "gptq", "bits": 4}, "gptq 4 bits"),
        (None, None),
    ],
)
@pytest.mark.parametrize("part", ["", "text_config"])
def test_a_checkpoint_names_how_its_weights_are_stored(
    tmp_path: Path, settings: dict[str, object] | None, name: str | None, part: str
) -> None:
    folder = tmp_path / "model"
    tiny_llama().save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    config = json.loads((folder / "config.json").read_text())
    (config.setdefault(part, {}) if part else config)["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(config))
    assert quantization(ModelSpec("hf", str(folder))) == name


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_weights_that_are_codes_without_their_meaning_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    """They would be cast and run, and answer nonsense."""
    model = tiny_llama()
    model.save_pretrained(tmp_path)
    golden = Path(__file__).parents[1] / "golden" / "ruler" / "tokenizer"
    for source in golden.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    name = "model.layers.0.self_attn.q_proj.weight"
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    save_file(weights | {name: weights[name].to(dtype)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match=rf"1 weights are stored as codes, such as {name} as \w+, but config\.json has no"
    ):
        model_info(ModelSpec("hf", str(tmp_path)))
