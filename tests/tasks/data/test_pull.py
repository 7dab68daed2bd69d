"""From a host to the final place: all of a file or none of it, whatever happens on the way."""

import gzip
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from kvbench.tasks.data import convert
from kvbench.tasks.data.download import Full, Unobtained
from kvbench.tasks.data.lock import Download
from kvbench.tasks.data.pull import pull
from kvbench.tasks.data.record import State, read_records, state_of
from tests.tasks.data.conftest import CONTENT, Locked, Silent, files, hub, left, only, plain, sha
from tests.tasks.data.host import Fault, Host
from tests.tasks.data.test_convert import archive


def states(download: Download, root: Path) -> list[State]:
    """The states of what a download becomes."""
    return [state_of(output, root, read_records(root)) for output in download.outputs]


def test_a_pinned_file_is_written_and_recorded(host: Host, root: Path, locked: Locked) -> None:
    served = host.serve("/r1/a", CONTENT)
    download = only(locked(plain(host, "a", CONTENT)))
    assert states(download, root) == ["missing"]
    pulled = pull(download, root, Silent())
    assert (root / "mine/a").read_bytes() == CONTENT and left(root) == []
    was = read_records(root)["mine/a"]
    assert (was.sha256, was.bytes, was.pinned, was.revision) == (sha(CONTENT), len(CONTENT), True, "r1")
    assert was == pulled["mine/a"] and was.origin == f"{host.url}/r1/a" and was.fetched == was.sha256
    assert states(download, root) == ["ok"]
    assert pull(download, root, Silent()) == {} and len(served.ranges) == 1, "it is not fetched again"


def test_a_folder_that_may_only_be_read_is_enough_for_what_is_there(host: Host, root: Path, locked: Locked) -> None:
    download = only(locked(plain(host, "a", CONTENT)))
    (root / "mine").mkdir(parents=True)
    (root / "mine" / "a").write_bytes(CONTENT)
    assert pull(download, root, Silent()) == {}
    assert files(root) == ["mine/a"] and not (root / ".pull").exists(), "nothing was written"


def test_a_wrong_hash_leaves_nothing(host: Host, root: Path, locked: Locked) -> None:
    host.serve("/r1/a", CONTENT[::-1])
    download = only(locked(plain(host, "a", CONTENT)))
    with pytest.raises(Unobtained, match=f"has SHA-256 {sha(CONTENT[::-1])}, the lock says {sha(CONTENT)}: discarded"):
        pull(download, root, Silent())
    assert files(root) == left(root) == []
    host.serve("/r1/a", CONTENT)
    pull(download, root, Silent())
    assert files(root) == ["mine/a", "pulled.json"]


def test_a_file_that_is_in_the_way_stays(host: Host, root: Path, locked: Locked) -> None:
    served = host.serve("/r1/a", CONTENT)
    download = only(locked(plain(host, "a", CONTENT)))
    (root / "mine").mkdir(parents=True)
    (root / "mine/a").write_text("my own")
    with pytest.raises(Unobtained, match="--replace downloads it again"):
        pull(download, root, Silent())
    assert (root / "mine/a").read_text() == "my own" and served.ranges == []
    pull(download, root, Silent(), replace=True)
    assert (root / "mine/a").read_bytes() == CONTENT


def test_without_a_pin_the_first_pull_is_trusted_and_recorded(host: Host, root: Path, locked: Locked) -> None:
    host.serve("/r1/a", CONTENT)
    download = only(locked(plain(host, "a", None)))
    assert not pull(download, root, Silent())["mine/a"].pinned and states(download, root) == ["recorded"]
    (root / "mine/a").write_bytes(CONTENT[1:])
    assert states(download, root) == ["differs"]
    (root / "pulled.json").unlink()
    assert states(download, root) == ["unpinned"]
    assert pull(download, root, Silent()) == {}, "what somebody laid there is left alone"


BAD = {
    "it is empty": b" \n",
    "it is a web page": b"\n<!DOCTYPE html><title>Sign in</title>",
    "it is compressed by gzip": gzip.compress(b"text"),
}


@pytest.mark.parametrize("why", BAD)
def test_a_file_that_nobody_has_pinned_is_looked_at(host: Host, root: Path, locked: Locked, why: str) -> None:
    host.serve("/r1/a.txt", BAD[why])
    with pytest.raises(Unobtained, match=why):
        pull(only(locked(plain(host, "a.txt", None))), root, Silent())
    assert files(root) == left(root) == []


def test_the_hub_is_believed_about_a_hash_and_a_commit(host: Host, root: Path, locked: Locked) -> None:
    says = {"X-Linked-Etag": f'"{sha(CONTENT)}"', "X-Repo-Commit": "5eed"}
    head = host.serve("/datasets/some/one/resolve/main/a.jsonl", CONTENT, headers=says)
    host.serve("/datasets/some/one/resolve/5eed/a.jsonl", CONTENT)
    download = only(locked(hub("a.jsonl", None)))
    record = pull(download, root, Silent())["mine/a.jsonl"]
    assert record.revision == "5eed" and not record.pinned
    head.headers["X-Linked-Etag"] = f'"{"0" * 64}"'
    shutil.rmtree(root)
    with pytest.raises(Unobtained, match="the hub says 0000"):
        pull(download, root, Silent())
    assert files(root) == []


def test_the_cache_of_the_hub_is_used_offline(
    host: Host, root: Path, online: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = online / "datasets--some--one" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "a.jsonl").write_bytes(CONTENT)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    pull(only(locked(hub("a.jsonl", "a" * 40, sha256=sha(CONTENT)))), root, Silent())
    assert (root / "mine/a.jsonl").read_bytes() == CONTENT and (snapshot / "a.jsonl").read_bytes() == CONTENT
    assert host.others == []


@pytest.mark.parametrize(
    "make", [lambda host: hub("b", "c1"), lambda host: plain(host, "b", CONTENT)], ids=["hub", "url"]
)
def test_offline_asks_nobody(
    host: Host, root: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch, make: Callable[[Host], dict[str, object]]
) -> None:
    served = host.serve("/r1/b", CONTENT)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unobtained, match="HF_HUB_OFFLINE is set: unset it"):
        pull(only(locked(make(host))), root, Silent())
    assert served.ranges == host.others == files(root) == []


def zipped(host: Host, content: bytes, **members: str | None) -> dict[str, object]:
    group = plain(host, "z.zip", content, kind="zip")
    pins = {f"data/{n}.jsonl": {"to": f"mine/{n}.jsonl", "sha256": pin, "bytes": None} for n, pin in members.items()}
    group["files"]["z.zip"]["members"] = pins
    return group


def test_an_archive_becomes_its_members(host: Host, root: Path, locked: Locked) -> None:
    content = archive({"data/a.jsonl": b"a\n", "data/b.jsonl": b"b\n"})
    served = host.serve("/r1/z.zip", content)
    download = only(locked(zipped(host, content, a=sha(b"a\n"), b=None)))
    pull(download, root, Silent())
    assert files(root) == ["mine/a.jsonl", "mine/b.jsonl", "pulled.json"] and left(root) == []
    assert read_records(root)["mine/b.jsonl"].pinned, "the archive it came from is"
    assert states(download, root) == ["ok", "ok"]
    newer = replace(download.outputs[1], made_of="0" * 64)
    assert state_of(newer, root, read_records(root)) == "differs", "the lock names another archive by now"
    (root / "mine/b.jsonl").unlink()
    assert set(pull(download, root, Silent())) == {"mine/b.jsonl"} and len(served.ranges) == 2


@pytest.mark.parametrize(
    "content",
    [
        archive({"data/a.jsonl": b"a\n" * 999})[:-30],
        archive({"data/a.jsonl": b"a\n", "data/b.jsonl": b"other\n"}),
    ],
    ids=["truncated", "second member of another hash"],
)
def test_an_archive_that_is_none_leaves_nothing(host: Host, root: Path, locked: Locked, content: bytes) -> None:
    host.serve("/r1/z.zip", content)
    with pytest.raises(Unobtained):
        pull(only(locked(zipped(host, content, a=sha(b"a\n"), b=sha(b"b\n")))), root, Silent())
    assert files(root) == left(root) == []


def test_no_room_is_said_before_anything_is_asked(
    host: Host, root: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = host.serve("/r1/a", CONTENT)
    usage = shutil.disk_usage(root.parent)._replace(free=len(CONTENT) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(Full, match=f"a needs {len(CONTENT)} bytes, {len(CONTENT) - 1} are free: free some space"):
        pull(only(locked(plain(host, "a", CONTENT))), root, Silent())
    assert served.ranges == []


def test_a_disk_that_fills_while_it_is_made_keeps_the_archive(
    host: Host, root: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = archive({"data/a.jsonl": b"a\n"})
    served = host.serve("/r1/z.zip", content)
    download = only(locked(zipped(host, content, a=None)))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setitem(convert.KINDS, "zip", full)  # type: ignore[arg-type]
        with pytest.raises(Full, match="No space left"):
            pull(download, root, Silent())
    assert files(root) == [] and left(root) == ["mine-z.zip.part"]
    pull(download, root, Silent())
    assert files(root) == ["mine/a.jsonl", "pulled.json"] and len(served.ranges) == 1


def test_a_file_where_the_folder_should_be_is_named(host: Host, root: Path, locked: Locked) -> None:
    root.write_text("a file")
    with pytest.raises(Unobtained, match="cannot write"):
        pull(only(locked(plain(host, "a", CONTENT))), root, Silent())


@pytest.mark.parametrize("text", ["{", "[]", '{"files": {"a": {"sha256": 1}}}'])
def test_a_record_that_is_none_is_named(root: Path, text: str) -> None:
    root.mkdir()
    (root / "pulled.json").write_text(text)
    with pytest.raises(ValueError, match=r"pulled\.json is not a record of downloads by kvbench"):
        read_records(root)


def test_two_pulls_at_once_fetch_once(host: Host, tmp_path: Path, online: Path, locked: Locked) -> None:
    go, asked, waiting = threading.Event(), threading.Event(), threading.Event()
    served = host.serve("/r1/a", CONTENT, Fault(drop_after=1, stall=go, goes_on=True))
    download, root = only(locked(plain(host, "a", CONTENT))), tmp_path / "root"

    class Told(Silent):
        def begin(self, name: str, total: int | None, had: int) -> None:
            asked.set()

        def say(self, text: str) -> None:
            super().say(text)
            waiting.set()

    watchers = [Told(), Told()]
    threads = [threading.Thread(target=pull, args=(download, root, watcher)) for watcher in watchers]
    for thread, event in zip(threads, (asked, waiting), strict=True):
        thread.start()
        assert event.wait(20)
    go.set()
    for thread in threads:
        thread.join(20)
    assert watchers[1].messages == ["a: another process is fetching it; waiting"]
    assert (root / "mine/a").read_bytes() == CONTENT and len(served.ranges) == 1
