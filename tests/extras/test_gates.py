"""Gates against those of kvpress in float64 (scripts/golden_methods.py), files of weights, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kvbench.extras.gates.gates import FastKVzip, KVzap
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.support.errors import MissingFile, UserError
from scripts.golden_methods import FOLDER, gate_weights
from tests.arrays import random_layer
from tests.models.families import tiny
from tests.models.test_rotation import PROMPT

GOLDEN = json.loads((FOLDER / "gates.json").read_text("utf-8"))
SCORES = {"linear": KVzap, "kvzap": KVzap, "fastkvzip": FastKVzip}


def layers(kind: str) -> list[dict[str, torch.Tensor]]:
    return [{name: torch.from_numpy(part) for name, part in layer.items()} for layer in gate_weights(kind)]


def written(folder: Path, kind: str, leave_out: str = "") -> str:
    """A safetensors file of these gates, without what ends in a name."""
    named = {f"layers.{i}.{name}": part for i, layer in enumerate(layers(kind)) for name, part in layer.items()}
    path = folder / f"{kind}.safetensors"
    save_file({name: part for name, part in named.items() if not leave_out or not name.endswith(leave_out)}, path)
    return str(path)


@pytest.mark.parametrize("kind", SCORES)
def test_scores_are_those_of_kvpress(kind: str, tmp_path: Path) -> None:
    score = SCORES[kind](written(tmp_path, kind))
    hidden, expected = (torch.tensor(part, dtype=torch.float64) for part in (GOLDEN["hidden"], GOLDEN["scores"][kind]))
    wide = score.gate({name: part.double() for name, part in layers(kind)[1].items()}, hidden)
    torch.testing.assert_close(wide, expected, rtol=1e-9, atol=1e-9)
    scores = score.read_hidden(random_layer(30, index=1), hidden)
    torch.testing.assert_close(scores.double(), wide, rtol=1e-4, atol=1e-5)  # sums of float32 in any order
    assert score.check_model(3, 2, "any") is None


def test_the_published_form_of_fast_kvzip_is_read(tmp_path: Path) -> None:
    torch.save({"module": layers("fastkvzip")}, tmp_path / "gates.pt")
    own, same = FastKVzip(str(tmp_path / "gates.pt")), FastKVzip(written(tmp_path, "fastkvzip"))
    hidden, layer = torch.tensor(GOLDEN["hidden"]), random_layer(30, index=2)
    assert torch.equal(own.read_hidden(layer, hidden), same.read_hidden(layer, hidden))
    torch.save({"module": [Path]}, tmp_path / "code.pt")
    with pytest.raises(UserError, match=r"code\.pt holds more than tensors, or is no file of torch: it is not read"):
        FastKVzip(str(tmp_path / "code.pt"))


def test_a_prompt_is_scored_block_by_block_as_at_once(tmp_path: Path) -> None:
    model = tiny("llama")
    hidden, heads = model.config.hidden_size, model.config.num_key_value_heads
    parts = {}
    for index in range(model.config.num_hidden_layers):
        parts[f"layers.{index}.weight"] = torch.randn(heads, hidden)
        parts[f"layers.{index}.bias"] = torch.randn(heads)
    save_file(parts, tmp_path / "gates.safetensors")
    score = KVzap(str(tmp_path / "gates.safetensors"))
    bridge.attach(model)
    whole, split = (
        Engine(model, prefill_chunk=block, max_length=61).prefill(PROMPT, (), [score]).cache.layers
        for block in (61, 13)
    )
    for whole_layer, split_layer in zip(whole, split, strict=True):
        torch.testing.assert_close(whole_layer.recordings[score], split_layer.recordings[score], rtol=1e-4, atol=1e-5)
        assert score(whole_layer, None, "sum") is whole_layer.recordings[score]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"score\.gates=none: no such file"):
        KVzap("none")
    (tmp_path / "text.safetensors").write_text("no weights", "utf-8")
    with pytest.raises(UserError, match=r"text\.safetensors cannot be read"):
        KVzap(str(tmp_path / "text.safetensors"))
    with pytest.raises(UserError, match=r"for layer 0; score fastkvzip needs for each layer: b, k_base"):
        FastKVzip(written(tmp_path, "kvzap"))
    with pytest.raises(UserError, match=r"holds weight for layer 1; score kvzap needs for each layer: bias, weight or"):
        KVzap(written(tmp_path, "linear", leave_out="1.bias"))
    save_file({"layers.1.weight": torch.ones(2, 20)}, tmp_path / "first.safetensors")
    with pytest.raises(UserError, match=r"has gates of layers \[1\]; expected names layers\.0\.NAME"):
        KVzap(str(tmp_path / "first.safetensors"))
    score = KVzap(written(tmp_path, "linear"))
    with pytest.raises(UserError, match=r"gates of 3 layers of 2 KV heads do not fit a model of 5 layers of 2 KV"):
        score.check_model(5, 2, "any")
    with pytest.raises(UserError, match=r"do not fit layer 0 with 2 KV heads and hidden size 16"):
        score.read_hidden(random_layer(5), torch.ones(5, 16))
