"""`kvbench data`: what it says, what it leaves, and its exit codes."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from kvbench.tasks.data import lock
from kvbench.tasks.longbench import LongBenchTask
from tests.cli.conftest import Command, kvbench  # noqa: F401
from tests.tasks.data.conftest import Locked, plain, sha
from tests.tasks.data.host import Host
from tests.tasks.data.test_convert import archive

pytestmark = pytest.mark.usefixtures("online", "waits")
TEXT = b"a text\n" * 777


def test_a_pull_says_licence_and_size_first(kvbench: Command, host: Host, locked: Locked) -> None:  # noqa: F811
    host.serve("/r1/a.txt", TEXT)
    locked(plain(host, "a.txt", TEXT))
    done = kvbench("data", "pull", "mine", "data.root=there")
    assert done.code == 0 and done.out == ""
    assert done.err.splitlines()[:3] == [
        "mine -> there/mine: 5.44 kB; licence: CC BY 4.0",
        "fetching a.txt, 5.44 kB",
        f"mine/a.txt: 5.44 kB, SHA-256 {sha(TEXT)[:16]}...",
    ]
    again = kvbench("data", "pull", "mine", "data.root=there")
    assert again.code == 0 and "there already" in again.err and "fetching" not in again.err


def test_one_failure_does_not_stop_the_others(
    kvbench: Command,  # noqa: F811
    host: Host,
    locked: Locked,
    waits: list[float],
) -> None:
    """A host that does not answer is asked once."""
    host.serve("/r1/a.txt", TEXT[::-1])
    host.serve("/r1/c.txt", TEXT)
    nobody = {"url": "http://127.0.0.1:9/{name}"}
    missing, silent = plain(host, "b.txt", b"b"), [plain(host, name, TEXT) | nobody for name in ("d.txt", "e.txt")]
    locked(plain(host, "a.txt", TEXT), missing, *silent, plain(host, "c.txt", TEXT))
    done = kvbench("data", "pull", "mine", "data.root=there")
    assert done.code == 3 and [path.name for path in Path("there/mine").iterdir()] == ["c.txt"] and len(waits) == 5
    assert "404: there is no such file" in done.err and done.err.count("127.0.0.1:9/d.txt") <= 3
    last = done.err.splitlines()[-1]
    assert last.startswith("kvbench: 4 not fetched, the first: ") and "the lock says" in last and "discarded" in last


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pul", "mine"], "unknown data pul: did you mean pull? allowed: list, pull, verify"),
        (["pull", "mine", "--force"], "data pull: unknown flag --force: did you mean --replace?"),
        (["verify", "--replace"], "data verify: unknown flag --replace: did you mean --help? allowed: --help"),
        (["pull", "mine", "data.root="], "its one setting is data.root=FOLDER"),
        (["list", "mine"], "data list takes no names, got mine"),
    ],
)
def test_a_wrong_line_is_explained(
    kvbench: Command,  # noqa: F811
    host: Host,
    locked: Locked,
    arguments: list[str],
    words: str,
) -> None:
    locked(plain(host, "a.txt", TEXT))
    done = kvbench("data", *arguments)
    assert done.code == 2 and words in done.err and len(done.err.splitlines()) == 1


def test_a_part_is_pulled_alone(kvbench: Command, host: Host, locked: Locked) -> None:  # noqa: F811
    host.serve("/r1/a.txt", TEXT)
    locked(plain(host, "a.txt", TEXT), plain(host, "ab.txt", TEXT[1:]))
    assert kvbench("data", "pull", "mine/a", "data.root=there").code == 0 and host.others == []
    assert kvbench("data", "verify", "mine/a.txt", "data.root=there").code == 0
    done = kvbench("data", "verify", "data.root=there")
    assert done.code == 3 and "mine/ab.txt: MISSING" in done.out and "kvbench data pull mine" in done.err


def test_verify_sees_what_changed(kvbench: Command, host: Host, locked: Locked) -> None:  # noqa: F811
    host.serve("/r1/a.txt", TEXT)
    locked(plain(host, "a.txt", TEXT))
    Path("there").mkdir()
    assert kvbench("data", "verify", "data.root=there").out == "mine: no file of it is there\n"
    kvbench("data", "pull", "mine", "data.root=there")
    assert kvbench("data", "verify", "data.root=there").out == "mine: 1 as locked\n"
    Path("there/mine/a.txt").write_bytes(TEXT[:-1])
    done = kvbench("data", "verify", "data.root=there")
    assert done.code == 3 and "mine/a.txt: DIFFERS" in done.out and "--replace what differs" in done.err
    assert kvbench("data", "pull", "mine", "data.root=there").code == 3
    assert kvbench("data", "pull", "mine", "--replace", "data.root=there").code == 0
    assert kvbench("data", "verify", "mine", "data.root=there").code == 0


def test_an_index_brings_what_it_lists(kvbench: Command, host: Host, locked: Locked) -> None:  # noqa: F811
    group = plain(host, "list.txt", b"test/1.txt\ntest/2.txt\n", kind="index")
    group["files"]["list.txt"]["to"] = "mine/index/list.txt"
    pins = {"test/1.txt": {"sha256": sha(TEXT), "bytes": len(TEXT)}}
    each = {"url": f"{host.url}/books/{{name}}", "to": "mine/", "count": 2, "about_bytes": 5000, "files": pins}
    locked({**group, "each": each})
    host.serve("/r1/list.txt", b"test/1.txt\ntest/2.txt\n")
    host.serve("/books/test/1.txt", TEXT)
    host.serve("/books/test/2.txt", TEXT[1:])
    assert "0 of 3 files are there; to fetch: about 10 kB; 2 of 3 downloads" in kvbench("data", "list").out
    done = kvbench("data", "pull", "all")
    assert done.code == 0 and "UNPINNED" in done.err
    assert sorted(path.name for path in Path("data/mine").glob("*.txt")) == ["test_1.txt", "test_2.txt"]
    listed = kvbench("data", "list").out
    assert "3 of 3 files are there, 10.9 kB; 2 of 3 downloads" in listed and "licence: CC BY 4.0" in listed
    assert "mine: 2 as locked, 1 as it was pulled (no pinned SHA-256)" in kvbench("data", "verify").out


def test_longbench_ends_as_its_task_reads_it(
    kvbench: Command,  # noqa: F811
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The committed lock, its hosts played here and its pins those of stand-ins: layout and task agree."""
    content = json.loads(lock.FILE.read_text("utf-8"))["sources"]["longbench"]
    row = {"input": "Who?", "context": "Ada wrote it.", "answers": ["Ada"], "length": 3, "dataset": "qasper"}
    line = json.dumps(row | {"language": "en", "all_classes": None, "_id": "1"}).encode() + b"\n"
    pack, config = content["downloads"]
    members = pack["files"]["data.zip"]["members"]
    zipped = archive({member: line for member in members} | {"data/readme.txt": b"not asked for"})
    pack["files"]["data.zip"] |= {"sha256": sha(zipped), "bytes": len(zipped)}
    for pin in members.values():
        pin |= {"sha256": sha(line), "bytes": len(line)}
    served = {"dataset2prompt.json": b'{"qasper": "{context}|{input}"}', "dataset2maxlen.json": b'{"qasper": 5}'}
    config["url"] = host.url + "/{revision}/{name}"
    for name, text in served.items():
        config["files"][name] |= {"sha256": sha(text), "bytes": len(text)}
        host.serve(f"/{config['revision']}/{name}", text)
    host.serve(f"/datasets/{pack['repo']}/resolve/{pack['revision']}/data.zip", zipped)
    (tmp_path / "lock.json").write_text(json.dumps({"sources": {"longbench": content}}))
    monkeypatch.setattr(lock, "FILE", tmp_path / "lock.json")
    done = kvbench("data", "pull", "longbench", "data.root=there")
    assert done.code == 0, done.err
    assert len(list(Path("there/longbench").glob("*.jsonl"))) == 34
    task = LongBenchTask(name="longbench/qasper", member="qasper", samples=1, root="there")
    (sample,) = task.generate(len, [0])
    assert sample.references == ("Ada",) and "Ada wrote it." in sample.context + sample.question


def test_a_folder_that_was_carried_over_is_whole_offline(
    kvbench: Command,  # noqa: F811
    host: Host,
    locked: Locked,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The recipe of docs/reference/data.md; the second task's file has no pin, so its record is copied too."""
    host.serve("/r1/a.txt", TEXT)
    host.serve("/r1/b.txt", TEXT[1:])
    locked(plain(host, "a.txt", TEXT), plain(host, "b.txt", None))
    assert kvbench("data", "pull", "all", "data.root=connected").code == 0
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    host.files.clear()
    shutil.copytree("connected", "home/data", ignore=shutil.ignore_patterns(".pull"))
    monkeypatch.setenv("KVBENCH_HOME", "home")
    assert kvbench("data", "verify", "mine").out == "mine: 1 as locked, 1 as it was pulled (no pinned SHA-256)\n"
    assert kvbench("data", "pull", "mine").code == 0 and host.others == []
