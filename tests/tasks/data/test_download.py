"""One file over a connection that does what connections do."""

from pathlib import Path

import pytest
from huggingface_hub import get_session

from kvbench.tasks.data.download import Full, Unobtained, Unreachable, _guarded, fetch
from kvbench.tasks.data.lock import Download
from tests.tasks.data.conftest import CONTENT, Silent
from tests.tasks.data.host import Fault, Host

pytestmark = pytest.mark.usefixtures("online", "waits")


def wanted(host: Host, size: int | None = len(CONTENT), is_pinned: bool = True) -> Download:
    return Download("mine", "file", "a", (), f"{host.url}/a", sha256="0" * 64 if is_pinned else None, bytes=size)


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "a.part"


def test_a_dropped_connection_goes_on_where_it_ended(host: Host, part: Path) -> None:
    served = host.serve("/a", CONTENT, Fault(drop_after=100_003), Fault(drop_after=1077))
    watcher = Silent()
    fetch(wanted(host), part, watcher)
    assert part.read_bytes() == CONTENT and served.requests[0]["user-agent"].startswith("kvbench/")
    assert served.ranges == [None, "bytes=100000-", "bytes=101000-"]
    assert watcher.begun == [("a", len(CONTENT), 0)] and watcher.received == len(CONTENT)
    assert len(watcher.messages) == 2 and "Trying to resume download" in watcher.messages[0]


def test_the_next_process_goes_on_too(host: Host, part: Path) -> None:
    served = host.serve("/a", CONTENT)
    part.write_bytes(CONTENT[:3001])
    fetch(wanted(host), part, Silent())
    assert part.read_bytes() == CONTENT and served.ranges == ["bytes=3001-"]
    fetch(wanted(host), part, Silent())
    assert len(served.ranges) == 1, "a whole partial file asks for nothing"
    part.write_bytes(CONTENT + b"more")
    fetch(wanted(host), part, Silent())
    assert part.read_bytes() == CONTENT, "one that is too long is begun anew"


@pytest.mark.parametrize("how", [{"is_pinned": False}, {"size": None}], ids=["no hash", "no size"])
def test_what_may_be_another_file_by_now_is_begun_anew(host: Host, part: Path, how: dict[str, None]) -> None:
    served = host.serve("/a", CONTENT)
    part.write_bytes(b"y" * 3001)
    fetch(wanted(host, **how), part, Silent())  # type: ignore[arg-type]
    assert part.read_bytes() == CONTENT and served.ranges == [None]


def test_a_host_that_is_busy_is_waited_for(host: Host, part: Path, waits: list[float]) -> None:
    host.serve("/a", CONTENT, Fault(429))
    fetch(wanted(host), part, Silent())
    assert part.read_bytes() == CONTENT and len(waits) == 1


@pytest.mark.parametrize(
    ("status", "words"), [(404, "no such file"), (401, "HF_TOKEN"), (403, "terms"), (410, "removed"), (503, "503")]
)
def test_a_refusal_is_final(host: Host, part: Path, waits: list[float], status: int, words: str) -> None:
    served = host.serve("/a", CONTENT, Fault(status))
    with pytest.raises(Unobtained, match=words):
        fetch(wanted(host), part, Silent())
    assert waits == [] and len(served.ranges) == 1 and part.read_bytes() == b""


def test_nobody_at_home_is_given_up(part: Path, waits: list[float]) -> None:
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9/a: ConnectError: .*refused; .* run the same command"):
        fetch(Download("mine", "file", "a", (), "http://127.0.0.1:9/a"), part, Silent())
    assert 0 < sum(waits) < 20


@pytest.mark.parametrize(("length", "words"), [(True, "501749: it was replaced"), (False, "has more than")])
def test_a_size_that_is_not_the_locked_one_is_refused(host: Host, part: Path, length: bool, words: str) -> None:
    host.serve("/a", CONTENT * 2, length=length)
    with pytest.raises(Unobtained, match=words):
        fetch(wanted(host), part, Silent())
    assert part.stat().st_size <= len(CONTENT)


def test_the_hub_says_on_the_way_what_a_file_is_and_credentials_go_no_further(
    host: Host, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub sends files on to another host."""
    monkeypatch.setenv("HF_TOKEN", "hf_t")
    away = {"Location": f"{host.url.replace('127.0.0.1', 'localhost')}/b"}
    says = {"X-Linked-Etag": f'"{"a" * 64}"', "X-Repo-Commit": "c1"}
    host.serve("/datasets/some/one/resolve/main/a", CONTENT, headers=says)
    first = host.serve("/datasets/some/one/resolve/c1/a", b"", Fault(302, away))
    second = host.serve("/b", CONTENT)
    known = fetch(Download("mine", "file", "a", (), repo="some/one"), part, Silent())
    assert part.read_bytes() == CONTENT and (known.sha256, known.revision) == ("a" * 64, "c1")
    assert first.requests[0]["authorization"] == "Bearer hf_t" and "authorization" not in second.requests[0]


def test_a_redirect_to_an_open_connection_is_refused(host: Host) -> None:
    """As the request after a redirect, which begins with https in its own file."""
    host.serve("/a", CONTENT)
    with (
        _guarded("https://example.org/a", Silent()),
        pytest.raises(Unobtained, match="a redirect to an unencrypted connection is refused"),
    ):
        get_session().get(f"{host.url}/a")
    assert get_session().get(f"{host.url}/a").content == CONTENT, "others are not refused, and later requests not"


def test_a_full_disk_is_named(host: Host, part: Path) -> None:
    host.serve("/a", CONTENT)
    part.symlink_to("/dev/full")
    with pytest.raises(Full, match=r"No space left on device: free some space, or .* run the same command"):
        fetch(wanted(host), part, Silent())
