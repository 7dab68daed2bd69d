"""Checkpoints with tensors missing, renamed, added or of another shape, and weights that no hash covers."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kvbench.models.loading import load as loading
from kvbench.models.loading.load import load, model_info
from kvbench.models.loading.spec import ModelSpec
from tests.cli.conftest import Command
from tests.forked import Forked
from tests.models.conftest import tiny_llama

TOKENIZER = Path(__file__).parents[1] / "golden" / "ruler" / "tokenizer"
UP = "model.layers.1.mlp.up_proj.weight"
Damage = Callable[[dict[str, Tensor]], object]


def saved(folder: Path, **changes: Any) -> Path:
    tiny_llama(**changes).save_pretrained(folder, max_shard_size=changes.get("max_shard_size", "1GB"))
    for file in TOKENIZER.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def damaged(folder: Path, damage: Damage) -> ModelSpec:
    tensors = load_file(folder / "model.safetensors")
    damage(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return ModelSpec("hf", str(folder))


def in_shards(folder: Path) -> dict[str, Any]:
    """The same model in several files; the content of their index."""
    (saved(folder) / "model.safetensors").unlink()
    tiny_llama().save_pretrained(folder, max_shard_size="50KB")
    return json.loads((folder / "model.safetensors.index.json").read_text())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda held: held.pop(UP), rf"describes it: missing: {UP}; fetch"),
        (lambda held: held.pop("lm_head.weight"), r"missing: lm_head\.weight;"),
        (
            lambda held: held.__setitem__("model.layers.1.mlp.up.weight", held.pop(UP)),
            rf"missing: {UP}; unknown to the model: model\.layers\.1\.mlp\.up\.weight;",
        ),
        (lambda held: held.__setitem__("model.layers.3.x", torch.ones(2)), r": unknown to the model: model\.layers\.3"),
        (
            lambda held: held.__setitem__(UP, held[UP][:-1].clone()),
            rf"of another shape: {UP} \[79, 48\], not \[80, 48\];",
        ),
        (
            lambda held: [held.pop(name) for name in sorted(held) if ".2." in name],
            r"missing: model\.layers\.2\.input_layernorm\.weight, .* and 6 more;",
        ),
    ],
    ids=["missing", "untied_head", "renamed", "added", "shape", "many"],
)
def test_a_checkpoint_that_is_not_the_models_is_refused(tmp_path: Path, damage: Damage, message: str) -> None:
    """transformers draws what is missing at random, in every run anew."""
    spec = damaged(saved(tmp_path), damage)
    with pytest.raises(FileNotFoundError, match=rf"model\.path={tmp_path}: the weights are not .*LlamaForC.*{message}"):
        load(model_info(spec))


def test_tied_weights_and_old_buffers_are_known(tmp_path: Path) -> None:
    tied = saved(tmp_path / "tied", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tied / "model.safetensors")
    load(model_info(ModelSpec("hf", str(tied))))
    buffer = "model.layers.0.self_attn.rotary_emb.inv_freq"
    load(model_info(damaged(saved(tmp_path / "old"), lambda held: held.__setitem__(buffer, torch.ones(4)))))


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "../w.safetensors", "/outside/w.safetensors", "part/w.safetensors", "..\\w.safetensors"],
)
def test_weights_outside_the_hash_are_refused_before_they_are_opened(
    tmp_path: Path, kvbench: Command, name: str
) -> None:
    folder = tmp_path / "model"
    index = in_shards(folder)
    index["weight_map"][UP] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors\.index\.json, which names .*; allowed: safetens"):
        ModelSpec("hf", str(folder)).sha256()
    finished = kvbench("run", "model=hf", f"model.path={folder}", "policy=full", "task.samples=1")
    assert finished.code == 3 and name in finished.err and finished.err.count("\n") == 1
    config = json.loads((saved(folder) / "config.json").read_text()) | {"transformers_weights": name}
    (folder / "model.safetensors.index.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FileNotFoundError, match=r"config\.json, which names"):
        ModelSpec("hf", str(folder)).folder()


def test_every_file_of_an_index_is_there_and_in_the_hash(tmp_path: Path) -> None:
    files = sorted(set(in_shards(tmp_path)["weight_map"].values()))
    spec = ModelSpec("hf", str(tmp_path))
    assert len(files) > 2 and load(model_info(spec)).engine.model.dtype == torch.float32
    hashes = {spec.sha256()}
    for file in files:
        content = bytearray((tmp_path / file).read_bytes())
        content[-1] ^= 1
        (tmp_path / file).write_bytes(content)
        hashes.add(spec.sha256())
    assert len(hashes) == len(files) + 1
    (tmp_path / files[1]).unlink()
    with pytest.raises(FileNotFoundError, match=rf"but not {files[1]}, which it names: download the model again"):
        spec.folder()


def print_opened(folder: Path) -> int:
    """Load a model; every file of its folder that is opened is printed. An audit hook stays as long as its process."""
    opened = set()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if (
            event == "open"
            and isinstance(arguments[0], str | os.PathLike)
            and Path(arguments[0]).is_relative_to(folder)
        ):
            opened.add(os.path.relpath(arguments[0], folder))

    sys.addaudithook(note)
    load(model_info(ModelSpec("hf", str(folder))))
    print(*opened, sep="\n")
    return 0


def test_every_file_that_is_opened_is_in_the_hash(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Weights and what changes the tokens of a prompt: added tokens and templates of other purposes too."""
    saved(tmp_path)
    (tmp_path / "added_tokens.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool.jinja").write_text("{{ messages }}")
    loading_process = Forked(lambda: print_opened(tmp_path), tmp_path, tmp_path_factory.mktemp("said"))
    printed, errors = loading_process.communicate()
    assert loading_process.returncode == 0, errors
    opened = printed.split()
    assert {"config.json", "tokenizer.json", "added_tokens.json", "additional_chat_templates/tool.jinja"} <= {*opened}
    spec = ModelSpec("hf", str(tmp_path))
    for name in opened:
        before, content = spec.sha256(), (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content + b" ")
        assert spec.sha256() != before, name


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": null}', '{"metadata": {}}'])
def test_a_broken_index_is_named(tmp_path: Path, text: str) -> None:
    in_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors\.index\.json, which is not an index of weights"):
        ModelSpec("hf", str(tmp_path)).folder()


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation", "_attn_implementation_internal"])
def test_no_configuration_chooses_the_attention(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a kernel from a hub, which transformers would fetch and run, and no other of its own."""
    chosen = []

    def spying(model: Any) -> Tensor:
        chosen.append({part.config._attn_implementation for part in model.modules() if hasattr(part, "config")})
        return eager_logits(model)

    eager_logits = loading.eager_logits
    monkeypatch.setattr(loading, "eager_logits", spying)
    plain = json.loads((saved(tmp_path) / "config.json").read_text())
    for value in ("somebody/kernel", "sdpa"):
        (tmp_path / "config.json").write_text(json.dumps(plain | {key: value}))
        load(model_info(ModelSpec("hf", str(tmp_path))))
    assert chosen == [{"eager"}, {"eager"}]
