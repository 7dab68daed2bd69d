"""`--out` replaces plain files whole, keeps their mode and owner, and writes through everything else."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from kvbench.report.report_file import file_to, text_to
from kvbench.support.errors import UserError

MODES = (0o600, 0o640, 0o755)


def write(out: Path, text: str) -> None:
    with text_to(out) as file:
        file.write(text)


@pytest.fixture(params=["text", "file"])
def writer(request: pytest.FixtureRequest):
    """Both ways that reports are written."""

    def write_file(out: Path, text: str) -> None:
        with file_to(out) as path:
            path.write_text(text)

    return write if request.param == "text" else write_file


@pytest.mark.parametrize("mode", MODES)
def test_a_plain_file_keeps_its_mode_and_a_new_one_has_that_of_the_umask(writer, tmp_path: Path, mode: int) -> None:
    (tmp_path / "old").write_text("before")
    (tmp_path / "old").chmod(mode)
    mask = os.umask(0o027)
    try:
        writer(tmp_path / "old", "after")
        writer(tmp_path / "new", "after")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert (tmp_path / "old").read_text() == (tmp_path / "new").read_text() == "after"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_file_that_root_replaces_stays_its_owners(writer, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("before")
    os.chown(tmp_path / "theirs", 12345, 54321)
    writer(tmp_path / "theirs", "after")
    assert (tmp_path / "theirs").stat()[4:6] == (12345, 54321) and (tmp_path / "theirs").read_text() == "after"


def test_a_link_stays_and_what_it_names_is_replaced(writer, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("before")
    (tmp_path / "link").symlink_to(Path("there") / "file")
    (tmp_path / "broken").symlink_to(Path("there") / "later")
    writer(tmp_path / "link", "after")
    writer(tmp_path / "broken", "after")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "broken").is_symlink()
    assert sorted(file.name for file in (tmp_path / "there").iterdir()) == ["file", "later"]
    assert {file.read_text() for file in (tmp_path / "there").iterdir()} == {"after"}


def test_a_fifo_is_written_through(writer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    received: list[str] = []
    reader = Thread(target=lambda: received.append((tmp_path / "fifo").read_text()))
    reader.start()
    writer(tmp_path / "fifo", "through")
    reader.join(10)
    assert received == ["through"] and stat.S_ISFIFO((tmp_path / "fifo").lstat().st_mode)
    assert os.listdir(tmp_path) == ["fifo"]


def test_a_device_stays_a_device(writer, tmp_path: Path) -> None:
    """A copy of /dev/null: root could replace the real one."""
    try:
        os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (tmp_path / "null").write_bytes(b"")
    except PermissionError:
        pytest.skip("no device can be made here")
    writer(tmp_path / "null", "gone")
    status = (tmp_path / "null").lstat()
    assert stat.S_ISCHR(status.st_mode) and (os.major(status.st_rdev), os.minor(status.st_rdev)) == (1, 3)
    assert os.listdir(tmp_path) == ["null"]


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("is_file", [False, True])
def test_the_open_output_is_added_to(name: str, is_file: bool, tmp_path: Path) -> None:
    """A pipe, and a file that a shell opened with >: what is printed before and after the report stays around it."""
    code = (
        "from pathlib import Path\nfrom kvbench.report.report_file import text_to\nprint('before')\n"
        f"with text_to(Path({name!r})) as file: file.write('report\\n')\nprint('after')"
    )
    if not os.path.lexists(name):
        pytest.skip(f"there is no {name} here")
    target = os.readlink("/dev/stdout") if os.path.islink("/dev/stdout") else None
    with (tmp_path / "log").open("a") as log:
        output = subprocess.run([sys.executable, "-c", code], stdout=log if is_file else subprocess.PIPE, check=True)
    text = (tmp_path / "log").read_text() if is_file else output.stdout.decode()
    assert text == "before\nreport\nafter\n"
    assert target is None or os.readlink("/dev/stdout") == target


def test_a_folder_is_no_file_to_write(writer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"cannot write '{tmp_path}': it is a folder; name a file"):
        writer(tmp_path, "more")
    assert not [*tmp_path.iterdir()]
