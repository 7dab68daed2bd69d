"""One file over a connection that does what connections do."""

from pathlib import Path
from urllib.request import Request

import pytest

from kvbench.tasks.data import download as fetching
from kvbench.tasks.data.download import Full, Unobtained, Unreachable, _Redirects, fetch
from kvbench.tasks.data.lock import Download
from tests.tasks.data.host import Fault, Host

CONTENT = bytes(range(251)) * 1999
"""Long enough that chunks, drops and offsets differ from one another."""


class Silent:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.begun: list[tuple[str, int | None, int]] = []
        self.received = 0

    def say(self, text: str) -> None:
        self.messages.append(text)

    def begin(self, name: str, total: int | None, had: int) -> None:
        self.begun.append((name, total, had))

    def advance(self, count: int) -> None:
        self.received += count


def wanted(host: Host, size: int | None = len(CONTENT), is_pinned: bool = True) -> Download:
    return Download("mine", "file", "a", (), f"{host.url}/a", sha256="0" * 64 if is_pinned else None, bytes=size)


@pytest.fixture
def part(tmp_path: Path, waits: list[float]) -> Path:
    return tmp_path / "a.part"


def test_a_file_comes_whole(host: Host, part: Path, waits: list[float]) -> None:
    host.serve("/a", CONTENT)
    watcher = Silent()
    assert fetch(wanted(host), part, watcher).etag == '"one"'
    assert part.read_bytes() == CONTENT and waits == []
    assert watcher.begun == [("a", len(CONTENT), 0)] and watcher.received == len(CONTENT)


def test_a_dropped_connection_goes_on_where_it_ended(host: Host, part: Path) -> None:
    served = host.serve("/a", CONTENT, Fault(drop_after=100_003), Fault(drop_after=77))
    watcher = Silent()
    fetch(wanted(host), part, watcher)
    assert part.read_bytes() == CONTENT
    assert served.ranges == [None, "bytes=100003-", "bytes=100080-"]
    assert watcher.received == len(CONTENT) and "100003 of" in watcher.messages[0]


def test_the_next_process_goes_on_too(host: Host, part: Path) -> None:
    served = host.serve("/a", CONTENT)
    part.write_bytes(CONTENT[:3001])
    fetch(wanted(host), part, Silent())
    assert part.read_bytes() == CONTENT and served.ranges == ["bytes=3001-"]


def test_a_whole_partial_file_asks_for_nothing(host: Host, part: Path) -> None:
    served = host.serve("/a", CONTENT)
    part.write_bytes(CONTENT)
    fetch(wanted(host), part, Silent())
    assert served.ranges == []
    fetch(wanted(host, size=None), part, Silent())
    assert served.ranges == [f"bytes={len(CONTENT)}-"] and part.read_bytes() == CONTENT


def test_a_partial_file_that_is_too_long_is_begun_anew(host: Host, part: Path) -> None:
    host.serve("/a", CONTENT)
    part.write_bytes(CONTENT + b"more")
    fetch(wanted(host), part, Silent())
    assert part.read_bytes() == CONTENT
    part.write_bytes(CONTENT + b"more")
    fetch(wanted(host, size=None), part, Silent())
    assert part.read_bytes() == CONTENT


def test_another_version_is_begun_anew(host: Host, part: Path) -> None:
    """The host knows by the ETag that the first half is of a file that is gone."""
    served = host.serve("/a", b"x" * len(CONTENT), Fault(drop_after=5000), *[Fault(503)] * 5)
    with pytest.raises(Unobtained):
        fetch(wanted(host), part, Silent())
    served.content, served.etag, served.faults = CONTENT, '"two"', []
    fetch(wanted(host), part, Silent())
    assert part.read_bytes() == CONTENT
    assert served.requests[-1]["If-Range"] == '"one"' and served.ranges[-1] == "bytes=5000-"


def test_a_rest_of_another_version_is_not_taken(host: Host, part: Path) -> None:
    """The host ignores If-Range, but names the version of the rest that it sends."""
    served = host.serve("/a", b"x" * len(CONTENT), Fault(drop_after=5000), *[Fault(503)] * 5)
    with pytest.raises(Unobtained):
        fetch(wanted(host, size=None, is_pinned=False), part, Silent())
    served.content, served.faults, served.headers = CONTENT, [], {"ETag": '"two"'}  # served.etag still matches
    fetch(wanted(host, size=None, is_pinned=False), part, Silent())
    assert part.read_bytes() == CONTENT and served.ranges[-2:] == ["bytes=5000-", None]


@pytest.mark.parametrize("length", ["abc", "-1", "9" * 5000])
def test_a_length_that_is_no_number_counts_as_none(host: Host, part: Path, length: str) -> None:
    host.serve("/a", CONTENT, headers={"Content-Length": length}, length=False)
    fetch(wanted(host, size=None), part, Silent())
    assert part.read_bytes() == CONTENT


def test_without_etag_and_pin_nothing_is_gone_on_with(host: Host, part: Path) -> None:
    served = host.serve("/a", CONTENT, etag='W/"weak"')
    part.write_bytes(b"y" * 3001)
    fetch(wanted(host, size=None, is_pinned=False), part, Silent())
    assert part.read_bytes() == CONTENT and served.ranges == [None]


def test_a_host_without_ranges_sends_all_of_it_again(host: Host, part: Path) -> None:
    served = host.serve("/a", CONTENT, Fault(drop_after=100_003), resumable=False)
    fetch(wanted(host), part, Silent())
    assert part.read_bytes() == CONTENT and len(served.ranges) == 2


def test_a_host_that_never_gets_past_a_byte_is_given_up(host: Host, part: Path, waits: list[float]) -> None:
    host.serve("/a", CONTENT, *[Fault(drop_after=9)] * 20, resumable=False)
    with pytest.raises(Unobtained, match=r"after 9 of \d+ bytes \(5 attempts\); what was downloaded is kept"):
        fetch(wanted(host), part, Silent())
    assert len(waits) == 5


def test_a_length_that_nobody_says_is_no_hindrance(host: Host, part: Path) -> None:
    host.serve("/a", CONTENT, length=False)
    fetch(wanted(host, size=None), part, Silent())
    assert part.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("retry_after", "waited"),
    [("7", 7.0), ("100000", 120.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("soon", 2.0), (None, 2.0)],
    ids=["seconds", "capped", "date", "nonsense", "absent"],
)
def test_a_host_that_is_busy_says_when(
    host: Host, part: Path, waits: list[float], retry_after: str | None, waited: float
) -> None:
    host.serve("/a", CONTENT, Fault(429, {"Retry-After": retry_after} if retry_after else {}))
    fetch(wanted(host), part, Silent())
    assert part.read_bytes() == CONTENT and waits == [waited]


def test_a_host_that_stays_busy_is_named(host: Host, part: Path, waits: list[float]) -> None:
    host.serve("/a", CONTENT, *[Fault(429)] * 9)
    with pytest.raises(Unobtained, match=r"/a: the host answers 429 Too Many Requests \(5 attempts\)"):
        fetch(wanted(host), part, Silent())
    assert waits == [2.0, 4.0, 8.0, 16.0]


@pytest.mark.parametrize(
    ("status", "words"), [(404, "no such file"), (401, "HF_TOKEN"), (403, "terms"), (410, "removed"), (418, "418")]
)
def test_a_refusal_is_final(host: Host, part: Path, waits: list[float], status: int, words: str) -> None:
    served = host.serve("/a", CONTENT, Fault(status))
    with pytest.raises(Unobtained, match=words):
        fetch(wanted(host), part, Silent())
    assert waits == [] and len(served.ranges) == 1 and not part.exists()


def test_nobody_at_home_is_given_up_soon(part: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: sum(waits))
    with pytest.raises(Unreachable, match=r"no answer: .*refused.* \(3 attempts\)"):
        fetch(Download("mine", "file", "a", (), "http://127.0.0.1:9/a"), part, Silent())
    assert waits == [2, 4]


def test_a_size_that_is_not_the_locked_one_is_not_fetched(host: Host, part: Path) -> None:
    host.serve("/a", CONTENT + b"more")
    with pytest.raises(Unobtained, match="the lock says"):
        fetch(wanted(host), part, Silent())
    assert not part.exists()


@pytest.mark.usefixtures("online")
def test_redirects_are_followed_without_our_credentials(
    host: Host, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub sends files on to another host, and says on the way what they are."""
    monkeypatch.setenv("HF_TOKEN", "hf_t")
    away = {"Location": f"{host.url.replace('127.0.0.1', 'localhost')}/b", "X-Linked-Etag": f'"{"a" * 64}"'}
    first = host.serve("/datasets/some/one/resolve/main/a", b"", Fault(302, {**away, "X-Repo-Commit": "c1"}))
    second = host.serve("/b", CONTENT)
    info = fetch(Download("mine", "file", "a", (), repo="some/one"), part, Silent())
    assert part.read_bytes() == CONTENT and (info.sha256, info.commit) == ("a" * 64, "c1")
    assert first.requests[0]["Authorization"] == "Bearer hf_t" and "Authorization" not in second.requests[0]


def test_a_full_disk_keeps_what_fits(host: Host, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Small:
        """A file on a disk with room for 1000 bytes."""

        def __init__(self, file: object) -> None:
            self.file = file
            self.name = str(part)

        def write(self, chunk: bytes) -> None:
            self.file.write(chunk[:1000])  # type: ignore[attr-defined]
            raise OSError(28, "No space left on device")

    host.serve("/a", CONTENT)
    copy = fetching._copy
    with monkeypatch.context() as patch:
        patch.setattr(fetching, "_copy", lambda body, file, *rest: copy(body, Small(file), *rest))
        with pytest.raises(Full, match=r"No space left on device: free some space"):
            fetch(wanted(host), part, Silent())
    assert part.stat().st_size == 1000
    fetch(wanted(host), part, Silent())
    assert part.read_bytes() == CONTENT


def test_a_redirect_to_an_open_connection_is_refused() -> None:
    request = Request("https://example.org/a")
    with pytest.raises(Unobtained, match="a redirect to an unencrypted connection is refused"):
        _Redirects().redirect_request(request, None, 302, "", {}, "http://example.org/a")


def test_a_refused_redirect_is_final(
    host: Host, part: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, *_: object) -> None:
        raise Unobtained("refused")

    monkeypatch.setattr(_Redirects, "redirect_request", refuse)
    host.serve("/a", b"", Fault(302, {"Location": "/b"}))
    with pytest.raises(Unobtained, match="refused"):
        fetch(wanted(host), part, Silent())
    assert waits == []


def test_a_byte_now_and_then_is_no_download(host: Host, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "LEAST_SECONDS", 0.0)
    host.serve("/a", CONTENT[:100])
    with pytest.raises(Unobtained, match="fewer than 65536 bytes came in 0 s; what was downloaded is kept"):
        fetch(wanted(host, 100), part, Silent())
    assert part.read_bytes() == CONTENT[:100]
