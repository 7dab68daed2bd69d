"""Models by their dimensions: sizes as published, weights from a seed, names from both."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvbench.config.entries import load_entry, options
from kvbench.models.loading.load import LoadedModel, load, model_info
from kvbench.models.loading.spec import ModelSpec, Shape, describe_model
from kvbench.models.loading.weights import random, shape_config

SHAPES = [name.removeprefix("shape/") for name in options("model") if name.startswith("shape/")]
PARAMETERS = {
    "llama3.1-8b": 8_030_261_248,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "mistral-7b": 7_248_023_552,
    "gemma2-9b": 9_241_705_984,
}
"""As counted in the published weights, tied ones once."""


def spec(name: str, **config: Any) -> ModelSpec:
    """The model of a file, some of its dimensions changed."""
    tree: Any = load_entry("model", f"shape/{name}")
    shape = Shape(tree["shape"]["model_type"], tree["shape"]["config"] | config, tree["shape"]["seed"])
    return ModelSpec(name=tree["name"], dtype=tree["dtype"], threads=1, shape=shape)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_have_the_size_of_their_models(name: str) -> None:
    shape = spec(name).shape
    assert shape is not None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape_config(shape))
    if name in PARAMETERS:
        assert model.num_parameters() == PARAMETERS[name]
    else:
        assert name.startswith("tiny-") and model.num_parameters() < 2 * 10**6


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_read_as_transformers_reads_it(name: str) -> None:
    """The try-out of loading, with large dimensions cut down to what a test can hold."""
    model_spec = spec(name)
    if not name.startswith("tiny-"):
        assert model_spec.shape is not None
        small = {"intermediate_size": 64, "vocab_size": 2048, "num_hidden_layers": 2}
        model_spec = spec(name, hidden_size=8 * model_spec.shape.config["num_attention_heads"], **small)
    loaded = load(model_info(model_spec))
    assert loaded.stop == frozenset() and loaded.engine.prefill(torch.arange(30)).cache.num_tokens == 30


def first_weight(loaded: LoadedModel) -> torch.Tensor:
    return next(loaded.engine.model.parameters())


def test_weights_depend_on_the_seed_and_on_nothing_else() -> None:
    first, second = spec("tiny-llama"), spec("tiny-llama")
    assert second.shape is not None
    torch.manual_seed(1)
    before = torch.get_rng_state()
    weights = first_weight(load(model_info(first)))
    assert torch.equal(torch.get_rng_state(), before), "the generator of the process is nobody's to use"
    torch.manual_seed(2)
    assert torch.equal(first_weight(load(model_info(second))), weights)
    changed = replace(second, shape=replace(second.shape, seed=5))
    assert not torch.equal(first_weight(load(model_info(changed))), weights)


def test_a_shape_is_named_by_its_dimensions_and_seed() -> None:
    model_spec = spec("tiny-llama")
    assert model_spec.shape is not None
    assert hash(model_spec) == hash(spec("tiny-llama")) and model_spec == spec("tiny-llama")
    assert describe_model(model_spec) == describe_model(replace(model_spec, device="cpu", threads=2))
    for other in (
        spec("tiny-llama", num_hidden_layers=3),
        replace(model_spec, shape=replace(model_spec.shape, seed=5)),
    ):
        assert describe_model(other) != describe_model(model_spec)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (Shape("nope", {}), r"model\.shape\.model_type=nope is not known to transformers"),
        (Shape("llama", {"hidden": 8}), r"model\.shape\.config\.hidden is not a setting of llama"),
        (Shape("llama", {"hidden_size": "wide"}), r"model\.shape\.config is refused by llama: .*hidden_size"),
        (Shape("llama", {"vocab_size": 99}), r"vocab_size=99 is less than the \d+ tokens of the embedded tokenizer"),
        (Shape("mamba", {}), "model=shape/x: no layer of mamba caches keys"),
    ],
)
def test_shapes_that_cannot_be_are_refused(shape: Shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_info(ModelSpec("shape/x", shape=shape))


def test_automatic_type_is_float32() -> None:
    shape = spec("tiny-llama").shape
    assert shape is not None
    assert random(shape_config(shape), 0, "auto", torch.device("cpu")).dtype == torch.float32


def test_a_configuration_leaves_its_shape_as_it_was() -> None:
    """transformers completes nested settings in place, and cells are named by the shape."""
    shape = Shape("qwen3_next", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})
    before = hash(shape)
    shape_config(shape)
    assert hash(shape) == before
