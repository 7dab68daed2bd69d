"""The choice of products and of the dtype by timing: what is fastest, remembered, and told."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvbench.extras.cpu_timing import product_times
from kvbench.extras.cpu_timing.product_times import fastest_products, half_is_slower, remembered
from kvbench.models.linear_layers import MixedLinear, OneDnnLinear, TorchLinear, chosen_products
from kvbench.models.loading.load import load, model_info
from kvbench.models.loading.spec import ModelSpec
from kvbench.run.local import differences, products_of
from kvbench.support.errors import UserError
from tests.models.conftest import tiny_llama


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def timed(torch_prompt: float, torch_batch: float, agrees: float = 1.0) -> Mapping[str, float]:
    sides = {"onednn_prompt": 1.0, "onednn_batch": 1.0, "torch_prompt": torch_prompt, "torch_batch": torch_batch}
    return sides | {"torch_agrees": agrees}


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [
        (timed(1.2, 1.2), "onednn"),
        (timed(0.95, 0.95), "onednn"),  # too little to change the bits of rows
        (timed(0.5, 0.6), "torch"),
        (timed(0.5, 1.5), "mixed"),
        (timed(0.5, 0.6, agrees=0.0), "mixed"),  # its batches would need the rows of a whole one
        (timed(1.5, 0.1, agrees=0.0), "onednn"),
    ],
)
def test_the_fastest_products_are_taken(seconds: Any, fastest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_times, "_seconds_of_products", lambda layers: seconds)
    assert fastest_products([torch.nn.Linear(1024, 1024)]) == fastest
    assert fastest_products([torch.nn.Linear(3, 4)]) == "onednn", "too small to be timed"


def test_products_are_timed_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [torch.nn.Linear(400, 1100), torch.nn.Linear(1100, 400), torch.nn.Linear(400, 1100)]
    first = fastest_products(layers)
    (file,) = (home / "products").iterdir()
    seconds = json.loads(file.read_text())["seconds"]
    assert all(seconds[f"{side}_{part}"] > 0 for side in ("onednn", "torch") for part in ("prompt", "batch"))
    monkeypatch.setattr(product_times, "_seconds_of_products", lambda layers: pytest.fail("timed again"))
    assert fastest_products(layers) == first


def test_processes_at_the_same_moment_take_one_measurement(home: Path) -> None:
    """The slower one gets what the faster one wrote meanwhile; a broken file is measured again."""

    def slower() -> Mapping[str, float]:
        assert remembered("test", {}, lambda: {"seconds": 1.0}) == {"seconds": 1.0}
        return {"seconds": 2.0}

    assert remembered("test", {}, slower) == {"seconds": 1.0}
    (file,) = (home / "products").iterdir()
    file.write_text("{")
    assert remembered("test", {}, lambda: {"seconds": 3.0}) == {"seconds": 3.0}
    assert remembered("test", {"other": 1}, lambda: {"seconds": 4.0}) == {"seconds": 4.0}


def test_without_a_writable_folder_it_is_timed_each_time(home: Path) -> None:
    home.write_text("a file")
    assert remembered("test", {}, lambda: {"seconds": 1.0}) == {"seconds": 1.0}
    assert remembered("test", {}, lambda: {"seconds": 2.0}) == {"seconds": 2.0}
    assert os.listdir(home.parent) == ["home"]


def test_products_that_a_model_cannot_have_are_refused() -> None:
    wide = tiny_llama(torch.float64)
    assert chosen_products(wide, "auto") is None and chosen_products(wide, "torch") is None
    with pytest.raises(UserError, match=r"model\.products=onednn needs float32 on a CPU, not float64 on cpu"):
        chosen_products(wide, "onednn")
    assert chosen_products(tiny_llama(), "mixed") == "mixed"
    assert chosen_products(tiny_llama(), "auto", recorded="torch") == "torch"
    assert chosen_products(tiny_llama(), "onednn", recorded="torch") == "onednn"


def test_a_loaded_model_records_its_products() -> None:
    spec = ModelSpec("reference", threads=1)
    for setting, layer in (("onednn", OneDnnLinear), ("torch", TorchLinear), ("mixed", MixedLinear)):
        loaded = load(model_info(replace(spec, products=setting)))
        assert loaded.device["products"] == setting and type(loaded.engine.model.lm_head) is layer
        assert loaded.notes == ()
    assert load(model_info(spec), "torch").device["products"] == "torch"


@pytest.mark.parametrize("slower", [True, False])
def test_half_precision_is_widened_where_it_is_slower(
    slower: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    tiny_llama(torch.bfloat16).save_pretrained(folder)
    embedded = model_info(ModelSpec("reference"))
    spec = ModelSpec("hf", str(folder), threads=1)
    monkeypatch.setattr(product_times, "half_is_slower", lambda dtype: slower)
    info = replace(embedded, spec=spec, folder=folder, config=tiny_llama().config)
    loaded = load(info)
    assert loaded.device["dtype"] == ("float32" if slower else "bfloat16")
    assert ("products" in loaded.device) == slower
    assert ("".join(loaded.notes)[:10] != "") == slower
    if slower:
        assert "stored in bfloat16" in loaded.notes[0] and "model.dtype=bfloat16 keeps" in loaded.notes[0]
    assert load(replace(info, spec=replace(spec, dtype="bfloat16"))).device["dtype"] == "bfloat16"


def test_dtypes_are_timed(home: Path) -> None:
    assert isinstance(half_is_slower(torch.float16), bool)
    (file,) = (home / "products").iterdir()
    assert set(json.loads(file.read_text())["seconds"]) == {"half", "float32"}


def test_a_folder_keeps_its_products_and_differences_are_told() -> None:
    onednn, other = ({"name": "cpu, 1 threads", "dtype": "float32", "products": name} for name in ("onednn", "torch"))
    half = {"name": "cpu, 1 threads", "dtype": "bfloat16"}
    assert products_of([onednn, half]) == "onednn" and products_of([onednn, other]) is None and products_of([]) is None
    assert differences(onednn, []) == differences(onednn, [onednn, other]) == []
    (note,) = differences(other, [onednn])
    assert "model.dtype=float32 model.products=torch, the rows that the folder has with" in note
    assert "model.products=onednn" in note
