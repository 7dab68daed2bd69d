"""The committed lock: what it must say, and what it must not make up."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from kvbench.support.named import member
from kvbench.tasks.data.convert import AS_THEY_ARE, GROUP, KINDS
from kvbench.tasks.data.lock import DataSource, Download, expanded, listed, read_lock

LOCK = read_lock()
DOWNLOADS = [download for source in LOCK.values() for download in source.downloads]
COMMIT = re.compile(r"[0-9a-f]{40}")


def test_every_source_of_tasks_can_be_pulled() -> None:
    """Whole: each pattern that tasks wait for is met by a file that a pull writes."""
    for name, source in LOCK.items():
        paths = [output.path for output in source.outputs(Path("nowhere"))]
        assert source.tasks and source.patterns
        assert all(any(fnmatch(path, pattern) for path in paths) for pattern in source.patterns), name
        assert all(path.startswith(f"{name}/") for path in paths) and len(set(paths)) == len(paths)


def faults(download: Download) -> list[str]:
    """What is wrong with a download of the lock, in words."""
    pins = [download.sha256, *(output.sha256 for output in download.outputs)]
    right = {
        "one place": sum(map(bool, (download.url, download.repo, download.package))) == 1,
        "https": not download.url or download.url.startswith("https://"),
        "a commit": download.revision is None or COMMIT.fullmatch(download.revision) or download.package,
        "a wheel": not download.package or (download.revision and download.is_pinned and download.bytes),
        "hashes": all(pin is None or re.fullmatch("[0-9a-f]{64}", pin) for pin in pins),
        "what nothing pins has a commit, or a hub": download.is_pinned or download.repo or COMMIT.search(download.url),
        "a licence": LOCK[download.source].licence,
        "a kind": download.kind in (*AS_THEY_ARE, *KINDS) or member(GROUP, download.kind),
    }
    return [name for name, is_right in right.items() if not is_right]


def test_a_download_says_where_from_and_which() -> None:
    assert {f"{download.source}/{download.name}": faults(download) for download in DOWNLOADS if faults(download)} == {}


def test_no_two_files_share_a_pin() -> None:
    """But for two web pages, each of which LongProc has under two names."""
    outputs = [output for source in LOCK.values() for output in source.outputs(Path("nowhere")) if output.sha256]
    twice = ("W112_8k_2.html", "W204_0.5k_2.html")
    pins = [output.sha256 for output in outputs if not output.path.endswith(twice)]
    assert len(set(pins)) == len(pins) == len(outputs) - len(twice)


def test_an_index_stands_for_what_it_lists(tmp_path: Path) -> None:
    (index,) = LOCK["pg19"].downloads
    downloads = list(expanded((index,), tmp_path))[1:]
    assert len(downloads) == 40 and all(download.is_pinned for download in downloads)
    assert LOCK["pg19"].unnamed(tmp_path) == 60
    (tmp_path / "pg19" / "index").mkdir(parents=True)
    (tmp_path / index.outputs[0].path).write_text("test/10321.txt\ntest/11.txt\n")
    first, second = list(expanded((index,), tmp_path))[1:]
    assert first.outputs[0].path == "pg19/test_10321.txt" and first.is_pinned
    assert second.url == "https://storage.googleapis.com/deepmind-gutenberg/test/11.txt" and not second.is_pinned
    assert LOCK["pg19"].unnamed(tmp_path) == 0


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a//b", "https://x", "a/..", "a?b", "a%2fb"])
def test_an_index_lists_plain_names_or_is_refused(name: str) -> None:
    (index,) = LOCK["pg19"].downloads
    with pytest.raises(ValueError, match="not a plain file name"):
        listed(index, f"test/1.txt\n{name}\n")


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"sources": {"a": {}}}', '{"sources": {"a": {"licence": "", "downloads": [{"kind": "x"}]}}}']
)
def test_a_lock_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "lock.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"lock\.json is not a lock file of kvbench"):
        read_lock(file)


def test_the_shared_data_has_the_locked_bytes(shared: Path) -> None:
    """Whole files of the shared data are those of their sources; heads of files are not, and are not locked as such."""
    from kvbench.tasks.data.record import state_of

    outputs = [output for name in ("paul_graham_essays", "pg19", "longbench") for output in LOCK[name].outputs(shared)]
    states = {
        output.path: state_of(output, shared / "data", {}) for output in outputs if not output.path.endswith(".jsonl")
    }
    present = {path: state for path, state in states.items() if state != "missing"}
    assert len(present) == 49 + 36 + 2 and set(present.values()) == {"ok"}


def table_row(source: DataSource) -> str:
    """What the table of docs/reference/data.md says of a source."""
    everything = list(expanded(source.downloads, Path("nowhere")))
    count = len(source.outputs(Path("nowhere"))) + source.unnamed(Path("nowhere"))
    pinned = (
        f"{sum(download.is_pinned for download in everything)} of {len(everything) + source.unnamed(Path('nowhere'))}"
    )
    places = {}
    for download in source.downloads:
        at = f" at `{download.revision[:12]}`" if download.revision else ""
        if download.package:
            places[f"`{download.package}` {download.revision} of the package index, by pip"] = None
            continue
        base = download.url.removesuffix(f"/{download.name}").replace(download.revision or "\0", "REVISION")
        places[f"`{download.repo}` on the hub{at}" if download.repo else f"<{base}>{at}"] = None
        if download.each:
            places[f"<{download.each.url.removesuffix('/{name}')}>"] = None
    return f"| `{source.name}` | {count} | {pinned} | {source.licence} | {'; '.join(places)} |"


@pytest.mark.parametrize("name", LOCK)
def test_the_documentation_says_what_the_lock_says(name: str, pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "reference" / "data.md").read_text("utf-8")
    assert table_row(LOCK[name]) in page.splitlines()
