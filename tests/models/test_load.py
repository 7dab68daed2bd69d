"""Loading what is asked for and refusing what the bridge would get wrong."""

import json
from copy import deepcopy
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, pre_tokenizers
from transformers import AutoConfig, AutoTokenizer
from transformers.utils.logging import add_handler, remove_handler

from kvbench.models import bridge
from kvbench.models.loading.architecture import sliding_windows
from kvbench.models.loading.load import ends_unseen, load, model_info
from kvbench.models.loading.spec import HASHED, ModelSpec, Shape
from kvbench.models.loading.tokenizer_file import check_reading
from kvbench.records import environment, environment_id
from kvbench.support.errors import MissingFile, UserError
from tests.models.conftest import save, tiny_llama
from tests.models.families import tiny
from tests.models.tokenizers import TURNS, of_bytes, of_words


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model with a tokenizer and two stop tokens."""
    model = tiny_llama()
    model.generation_config.eos_token_id = [3, 5]
    return save(model, tmp_path)


@pytest.mark.parametrize("dtype", ["auto", "float64"])
def test_a_folder_is_loaded_as_asked(folder: Path, dtype: str) -> None:
    loaded = load(model_info(ModelSpec("hf", str(folder), dtype=dtype)))  # type: ignore[arg-type]
    assert loaded.engine.model.dtype == (torch.float32 if dtype == "auto" else getattr(torch, dtype))
    assert loaded.stop == {3, 5} and loaded.max_length == 512
    assert model_info(ModelSpec("hf", str(folder), max_length=77)).max_length == 77
    assert loaded.engine.prefill(torch.tensor([1, 2, 3])).cache.pairs == 3 * 2 * 3


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "mistral window", "qwen3_moe", "phi3"])
def test_other_families_are_loaded_from_their_files(family: str, folder: Path) -> None:
    """With their own weights, norms and sinks, through the check and to a cache that knows its local layers."""
    (folder / "model.safetensors").unlink()
    model = tiny(family)
    model.save_pretrained(folder)
    loaded = load(model_info(ModelSpec("hf", str(folder))))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.engine.model.state_dict().items())
    cache = loaded.engine.prefill(torch.arange(40)).cache
    local = [window is not None for window in sliding_windows(model.config).values()]
    assert [not layer.evictable for layer in cache.layers] == local


@pytest.mark.parametrize("ends", ["x", [3, None], -1, 2.5])
def test_what_ends_an_answer_is_a_token(folder: Path, ends: object) -> None:
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": ends}))
    with pytest.raises(UserError, match=r"eos_token_id of generation_config.json is .*: allowed: numbers of tokens"):
        load(model_info(ModelSpec("hf", str(folder))))


def test_tensors_of_another_shape_are_named_in_one_message(folder: Path) -> None:
    """Without the page that transformers logs about them."""
    file, handler = folder / "config.json", BufferingHandler(100)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_key_value_heads": 1}))
    add_handler(handler)
    try:
        with pytest.raises(MissingFile, match=r"not those of a LlamaForCausalLM as config\.json .* of another shape: "):
            load(model_info(ModelSpec("hf", str(folder))))
    finally:
        remove_handler(handler)
    assert not handler.buffer


def test_a_model_that_is_not_known_is_refused_before_its_weights(folder: Path) -> None:
    AutoConfig.for_model("llama4_text").save_pretrained(folder)
    (folder / "model.safetensors").write_text("never read")
    with pytest.raises(ValueError, match=rf"model.path={folder}: 36 of 48 layers of llama4_text .* chunked_attention"):
        model_info(ModelSpec("hf", str(folder)))


def test_a_model_that_is_read_wrongly_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.models.loading.check.explicit", lambda queries, keys, values, rule: queries)
    with pytest.raises(ValueError, match=rf"{folder}: LlamaForCausalLM does not match transformers"):
        load(model_info(ModelSpec("hf", str(folder))))


@pytest.mark.parametrize(
    ("options", "what"),
    [({"chunk": 8}, "chunk"), ({"is_causal": False}, "attention that is not causal"), ({}, "attention_mask")],
)
def test_attention_that_would_be_dropped_is_refused(options: dict[str, object], what: str) -> None:
    reader = type("Reader", (), {"attend": lambda self, layer, queries, keys, values, rule: queries})()
    heads = torch.zeros(1, 2, 3, 4)
    token = bridge._attention_cache.set(reader)
    try:
        with pytest.raises(ValueError, match=f"Identity asks for {what}, which is not supported"):
            bridge.attention(torch.nn.Identity(), heads, heads, heads, None if options else heads, scaling=1, **options)
    finally:
        bridge._attention_cache.reset(token)


@pytest.mark.parametrize(
    ("path", "lacking"),
    [("/no/such/folder", "folder"), ("nobody/no-such-model", "folder, and no download from the hub")],
)
def test_a_missing_model_is_missing_data(path: str, lacking: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"model.path={path}: no such {lacking}"):
        ModelSpec("hf", path).folder()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_broken_and_missing_files_are_named(folder: Path, name: str) -> None:
    (folder / name).write_text("{ no")
    with pytest.raises(FileNotFoundError, match=r"model\.path=.*: cannot be loaded"):
        load(model_info(ModelSpec("hf", str(folder))))
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"the folder holds no (config\.json|\*\.safetensors|tokenizer)"):
        model_info(ModelSpec("hf", str(folder)))


def test_a_model_in_several_files_is_hashed_and_loaded_whole(folder: Path) -> None:
    """What is fetched from a hub includes the index that names the files."""
    tiny_llama().save_pretrained(folder, max_shard_size="50KB")
    (folder / "model.safetensors").unlink()
    fetched = folder / "fetched"
    fetched.mkdir()
    for pattern in HASHED:
        for file in folder.glob(pattern):
            (fetched / file.name).write_bytes(file.read_bytes())
    loaded = load(model_info(ModelSpec("hf", str(fetched))))
    weights = tiny_llama().state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in loaded.engine.model.state_dict().items())


def test_a_tokenizer_that_is_not_read_as_its_file_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte-level tokens under a class that makes words of SentencePiece lose their blanks."""
    of_bytes().save_pretrained(folder)
    read = AutoTokenizer.from_pretrained(folder)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: read)
    assert model_info(ModelSpec("hf", str(folder))).tokenizer is read
    read.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    with pytest.raises(UserError, match=r"tokens in a text that has \d+ by tokenizer.json.*transformers>=5\.22"):
        model_info(ModelSpec("hf", str(folder)))


@pytest.mark.parametrize("kind", ["first", "never", "always", "legacy", "bytes"])
def test_a_blank_at_the_start_is_no_other_reading(folder: Path, kind: Any) -> None:
    tokenizer = deepcopy(of_words("always" if kind == "never" else kind))
    tokenizer.save_pretrained(folder)
    if kind == "never":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    check_reading(tokenizer, folder)


def test_an_end_of_turn_that_does_not_end_an_answer_is_told() -> None:
    """Also one that is not named as special, as <|eot_id|> of Llama 3, which its first settings did not have."""
    template = TURNS.replace("| trim }}", "| trim }}{% if m.role == 'assistant' %}</s>{% endif %}")
    tokenizer = of_bytes(template=template)
    (note,) = ends_unseen(tokenizer, None, frozenset([4]), "model")
    assert "with '</s>'" in note and "('<|bot|>')" in note and "task.stop=['</s>']" in note and "add 1 to" in note
    assert ends_unseen(tokenizer, None, frozenset([1, 4]), "model") == ()
    tokenizer = deepcopy(of_bytes(template=TURNS.replace("| trim }}", "| trim }}<|eot|>")))
    tokenizer.add_tokens([AddedToken("<|eot|>", special=True, normalized=False)])
    assert tokenizer.convert_tokens_to_ids("<|eot|>") not in tokenizer.all_special_ids
    (note,) = ends_unseen(tokenizer, None, frozenset([1]), "model")
    assert "with '<|eot|>'" in note and "('</s>')" in note and "task.stop=['<|eot|>']" in note


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "reference", "path": "somewhere"}, r"use model=hf model\.path"),
        ({"name": "shape/x", "path": "x", "shape": Shape("llama", {})}, r"model\.path=x: model=shape/x has its own"),
        ({"name": "hf"}, r"model\.path is missing"),
        ({"name": "reference", "device": "gpu"}, r"model\.device=gpu: allowed: cpu, cuda"),
        (
            {"name": "reference", "device": "cuda", "device_map": "auto"},
            r"model\.device=cuda and model\.device_map=auto",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSpec(**settings)


def test_threads_are_torchs_own_again_for_the_next_model(folder: Path) -> None:
    before = torch.get_num_threads()
    load(model_info(ModelSpec("hf", str(folder), threads=before + 1)))
    assert torch.get_num_threads() == before + 1
    load(model_info(ModelSpec("hf", str(folder))))
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "cuda:7"}, r"model\.device=cuda:7: torch sees (no GPU|\d+ GPUs)"),
        ({"attention": "flash"}, r"model\.attention=flash needs flash-attn: pip install 'kvbench\[flash\]'"),
        ({"device_map": "auto"}, r"model\.device_map=auto needs accelerate: pip install 'kvbench\[accelerate\]'"),
        ({"chat": "required"}, r"model\.chat=required"),
    ],
)
def test_what_is_not_there_is_a_usage_error(
    folder: Path, settings: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any weight is read, and with the command that mends it."""
    monkeypatch.setattr("kvbench.models.loading.load.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=message):
        model_info(ModelSpec("hf", str(folder), **settings))  # type: ignore[arg-type]


def test_eager_reads_as_sdpa_does(folder: Path) -> None:
    prompt = torch.arange(50)
    logits = [
        load(model_info(ModelSpec("hf", str(folder), attention=attention))).engine.prefill(prompt).logits
        for attention in ("sdpa", "eager")
    ]
    assert 0 < (logits[0] - logits[1]).abs().max() < 1e-4


def test_where_and_how_a_model_runs_is_told(folder: Path) -> None:
    device = load(model_info(ModelSpec("hf", str(folder), device="cpu", dtype="bfloat16"))).device
    assert device["name"].startswith("cpu, ") and device["dtype"] == "bfloat16" and device["attention"] == "sdpa"
    assert (device["prefill_chunk"], device["max_batch"]) == (4096, 24)
    assert device["float32_logits"] and device["tf32"] is False
    assert device["deterministic_algorithms"] and "cudnn" not in device["sdpa_kernels"]
    wide = load(model_info(ModelSpec("hf", str(folder), device="cpu", dtype="float32", max_batch=7))).device
    assert wide["max_batch"] == 7 and wide["narrow"] == "any" and isinstance(device["narrow"], list)
    assert environment_id(environment(device, {}))
