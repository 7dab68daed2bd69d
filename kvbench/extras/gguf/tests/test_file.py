"""Models in GGUF files, directly and as the folder that a pull makes of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvbench.extras.gguf.folder import FILES, write_folder
from kvbench.extras.gguf.tests.gguf_files import write_gguf
from kvbench.models.loading.load import load, model_info
from kvbench.models.loading.spec import ModelSpec, has_chat_template, quantization

pytest.importorskip("accelerate", reason="transformers reads GGUF files with accelerate")
TEXTS = ["the 1212 thes", "  on\n\n\tthe's 12 ٣ ½ ", "<|im_start|>user\nhé 世界 12<|im_end|>", "\u00a0 x1y2", ""]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


def test_a_gguf_file_and_the_folder_of_a_pull_are_one_model(file: Path, tmp_path: Path) -> None:
    """Two readers: transformers' dequantisation and ours; the same bits of weights and logits, and the same tokens."""
    folder = tmp_path / "made"
    folder.mkdir()
    write_folder(file, folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    direct, made = ModelSpec("hf", str(file)), ModelSpec("hf", str(folder))
    first, second = load(model_info(direct)), load(model_info(made))
    ours, theirs = second.engine.model.state_dict(), first.engine.model.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert first.engine.model.dtype == torch.float32 and first.stop == second.stop == {2}
    assert first.max_length == second.max_length == 512
    for text in TEXTS:
        assert first.tokenizer(text).input_ids == second.tokenizer(text).input_ids
    chat = [{"role": "user", "content": "the 12"}]
    rendered = [each.tokenizer.apply_chat_template(chat, tokenize=False) for each in (first, second)]
    assert rendered[0] == rendered[1]
    assert has_chat_template(file) and has_chat_template(folder)
    assert quantization(direct) == quantization(made) == "Q4_1"


def test_a_moved_gguf_file_is_the_same_model(file: Path, tmp_path: Path) -> None:
    before = ModelSpec("hf", str(file)).sha256()
    moved = file.rename(tmp_path / "other.gguf")
    assert ModelSpec("hf", str(moved)).sha256() == before
    moved.write_bytes(moved.read_bytes()[:-1] + b"\x01")
    assert ModelSpec("hf", str(moved)).sha256() != before


def test_each_rule_splits_texts_and_adds_the_first_token_in_its_way(tmp_path: Path) -> None:
    """With `smollm`, `12` is two tokens, though the vocabulary has it as one; as GPT-2 splits, it is one."""
    smollm, gpt2, llama = (
        model_info(ModelSpec("hf", str(write_gguf(tmp_path / f"{pre}.gguf", pre)))).tokenizer
        for pre in ("smollm", "gpt-2", "llama-bpe")
    )
    assert smollm.tokenize("the 12") == ["t", "he", "Ġ", "1", "2"]
    assert gpt2.tokenize("the 12") == ["t", "he", "Ġ", "12"]
    assert llama("the").input_ids[0] == 1 and llama("the", add_special_tokens=False).input_ids[0] != 1


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"pre": "default"}, r"tokenizer\.ggml\.pre is 'default'; allowed: gpt-2, llama-bpe"),
        ({"pre": "tekken"}, r"tokenizer\.ggml\.pre is 'tekken'; allowed: gpt-2, llama-bpe"),
        ({"kind": "llama"}, r"tokenizer\.ggml\.model is 'llama'; allowed: 'gpt2'"),
        (
            {"extra": {"rope_freqs.weight": np.ones(8, np.float32)}},  # of Llama 3.1, which change its answers
            r"with rope_freqs\.weight, but transformers makes a model of",
        ),
    ],
)
def test_what_would_be_read_otherwise_is_refused(tmp_path: Path, odd: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        load(model_info(ModelSpec("hf", str(write_gguf(tmp_path / "odd.gguf", **odd)))))


def test_a_gguf_file_that_is_none_or_missing_is_missing_data(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such file; give another file"):
        ModelSpec("hf", str(tmp_path / "no.gguf")).folder()
    (tmp_path / "broken.gguf").write_bytes(b"GGUF, but no more")
    with pytest.raises(FileNotFoundError, match=r"broken\.gguf"):
        model_info(ModelSpec("hf", str(tmp_path / "broken.gguf")))
