"""The last change of a file, and that a repository of somebody else runs nothing."""

import os
import subprocess
from pathlib import Path

import pytest

from kvbench.extras.claims.last_change import last_change


@pytest.fixture
def git(tmp_path: Path):
    """Run git in a folder of its own."""
    who = {f"GIT_{who}_{what}": "nobody@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def run(*words: str, day: str = "2026-01-02") -> str:
        moment = {f"GIT_{who}_DATE": f"{day}T03:04:05+02:00" for who in ("AUTHOR", "COMMITTER")}
        command = ["git", "-C", tmp_path / "repository", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | who | moment).stdout

    (tmp_path / "repository").mkdir()
    run("init", "-q")
    return run


def test_the_last_change_is_that_of_the_file(git, tmp_path: Path) -> None:
    file = tmp_path / "repository" / "a.yaml"
    assert last_change(file) is None
    file.write_text("1")
    assert last_change(file) is None, "not committed"
    git("add", "."), git("commit", "-qm", "first")
    first = git("rev-parse", "--short=8", "HEAD").strip()
    (file.parent / "b.yaml").write_text("1")
    git("add", "."), git("commit", "-qm", "of another file", day="2026-01-09")
    change = last_change(file)
    assert change is not None and change.is_last and change.commit == first
    assert change.moment.isoformat() == "2026-01-02T01:04:05+00:00"
    file.write_text("2")
    change = last_change(file)
    assert change is not None and not change.is_last and change.commit == first
    git("add", ".")
    assert last_change(file) == change, "staged is not committed"


def test_a_history_that_was_cut_off_says_nothing(git, tmp_path: Path) -> None:
    for text in "12":
        (tmp_path / "repository" / "a.yaml").write_text(text)
        git("add", "."), git("commit", "-qm", text)
    source = (tmp_path / "repository").as_uri()
    subprocess.run(["git", "clone", "-q", "--depth", "1", source, tmp_path / "shallow"], check=True)
    assert last_change(tmp_path / "shallow" / "a.yaml") is None


def test_a_repository_of_others_runs_nothing(git, tmp_path: Path) -> None:
    """Programs that its settings and attributes name."""
    ran, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    file = tmp_path / "repository" / "a.yaml"
    file.write_text("1")
    git("add", "."), git("commit", "-qm", "first")
    (file.parent / ".gitattributes").write_text("* filter=evil diff=evil\n")
    names = ("core.fsmonitor", "filter.evil.clean", "filter.evil.process", "diff.evil.textconv", "diff.external")
    for name in (*names, "gpg.program", "core.pager", "pager.rev-list", "core.sshCommand"):
        git("config", name, str(program))
    git("config", "log.showSignature", "true")
    assert last_change(file) is not None and not ran.exists()
