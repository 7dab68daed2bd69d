"""A model out of a wheel: its GGUF file becomes a folder, and less than all of it is no model."""

import json
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from kvbench.extras.gguf import folder as gguf_folder
from kvbench.extras.gguf.folder import FILES, write_folder
from kvbench.extras.gguf.tests.gguf_files import write_gguf
from kvbench.models.loading.load import load, model_info
from kvbench.models.loading.pulled import PulledModel
from kvbench.models.loading.spec import describe_model
from kvbench.support.whole_file import sha256_of
from kvbench.tasks.data import lock
from kvbench.tasks.data.download import Unobtained
from kvbench.tasks.data.lock import read_lock
from kvbench.tasks.data.pull import pull
from kvbench.tasks.data.record import state_of
from kvbench.tasks.files import folder
from tests.tasks.data.conftest import Silent

NAME = "tiny-1.2-py3-none-any.whl"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to pull into where pip was through with the wheel, and a lock with all that it becomes."""
    part, made = tmp_path / "root" / ".pull" / f"mine-{NAME}.part", tmp_path / "made"
    part.parent.mkdir(parents=True)
    made.mkdir()
    with zipfile.ZipFile(part, "w") as archive:
        archive.write(write_gguf(tmp_path / "tiny.gguf"), "tiny/model.gguf")
    write_folder(tmp_path / "tiny.gguf", made)
    members = {
        name: {"to": f"mine/{name}", "sha256": sha256_of(made / name), "bytes": (made / name).stat().st_size}
        for name in FILES
    }
    wheel = {"sha256": sha256_of(part), "bytes": part.stat().st_size, "members": members}
    group = {"kind": "gguf", "package": "tiny", "revision": "1.2", "files": {NAME: wheel}}
    patterns = [f"mine/{name}" for name in FILES]
    mine = {"tasks": "a test", "patterns": patterns, "licence": "CC BY 4.0", "downloads": [group]}
    (tmp_path / "lock.json").write_text(json.dumps({"sources": {"mine": mine}}))
    monkeypatch.setattr(lock, "FILE", tmp_path / "lock.json")
    return tmp_path / "root"


def test_a_wheel_becomes_a_model(root: Path, tmp_path: Path) -> None:
    (download,) = read_lock()["mine"].downloads
    assert set(pull(download, root, Silent())) == {f"mine/{name}" for name in FILES}
    spec = PulledModel("tiny", pulled="mine", root=str(root))
    loaded = load(model_info(spec))
    assert loaded.engine.model.config.num_hidden_layers == 2 and spec.label == "tiny"
    described = describe_model(spec)
    moved = root.rename(tmp_path / "elsewhere")
    assert describe_model(PulledModel("tiny", pulled="mine", root=str(moved))) == described
    assert str(tmp_path) not in json.dumps(described)


def test_a_part_of_a_model_is_no_model(root: Path) -> None:
    (download,) = read_lock()["mine"].downloads
    pull(download, root, Silent())
    (root / "mine" / "generation_config.json").unlink()
    missing = rf"model=tiny: no mine/generation_config\.json under {root}"
    with pytest.raises(FileNotFoundError, match=rf"{missing}: kvbench data pull mine data\.root={root} fetches"):
        PulledModel("tiny", pulled="mine", root=str(root)).folder()


def test_other_bytes_of_a_model_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (download,) = read_lock()["mine"].downloads
    monkeypatch.setattr(gguf_folder, "tokenizer_json", lambda fields, name: {})
    with pytest.raises(Unobtained, match=r"mine/tokenizer\.json of tiny 1\.2 .* has SHA-256 .*, the lock says"):
        pull(download, root, Silent())
    assert not (root / "mine").exists()


def test_what_reads_the_file_is_asked_for_before_anything_is_fetched(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_folder, "find_spec", lambda name: None if name == "gguf" else find_spec(name))
    with pytest.raises(Unobtained, match=r"pip install 'kvbench\[gguf\]'"):
        pull(read_lock()["mine"].downloads[0], root, Silent())


def test_the_pulled_model_is_the_locked_one() -> None:
    """Where someone pulled it: `$KVBENCH_DATA/smollm2`."""
    root = folder(None)
    if not (root / "smollm2").is_dir():
        pytest.skip(f"no {root / 'smollm2'} (kvbench data pull smollm2)")
    assert {state_of(output, root, {}) for output in read_lock()["smollm2"].downloads[0].outputs} == {"ok"}
    spec = PulledModel("smollm2", pulled="smollm2")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(spec.folder()), model_info(spec).tokenizer
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    (answer,) = model.generate(ids, max_new_tokens=8, do_sample=False)[:, ids.shape[1] :]
    assert "Paris" in tokenizer.decode(answer) and tokenizer.decode(ids[0]).count("<|im_start|>") == 3
