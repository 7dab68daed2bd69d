"""How a checkpoint says that its weights are stored, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kvbench.models.loading.load import model_info
from kvbench.models.loading.spec import ModelSpec, quantization
from tests.models.conftest import save, tiny_llama


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
    for file in ("tokenizer.json", "model.safetensors"):
        (tmp_path / file).write_text("never read")
    config = {"quantization_config": settings}
    (tmp_path / "config.json").write_text(json.dumps({part: config} if part else config))
    assert quantization(ModelSpec("hf", str(tmp_path))) == name


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_weights_that_are_codes_without_their_meaning_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    """They would be cast and run, and answer nonsense."""
    model = tiny_llama()
    save(model, tmp_path)
    name = "model.layers.0.self_attn.q_proj.weight"
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    save_file(weights | {name: weights[name].to(dtype)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match=rf"1 weights are stored as codes, such as {name} as \w+, but config\.json has"
    ):
        model_info(ModelSpec("hf", str(tmp_path)))
