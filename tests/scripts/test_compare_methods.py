"""docs/reference/methods-compared.md says what the committed rows say."""

from pathlib import Path

import pytest

from scripts import compare_methods


def test_the_page_is_that_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = compare_methods.PAGE.read_text("utf-8")
    before, _, rest = page.partition(compare_methods.BEGIN)
    (tmp_path / "page.md").write_text(
        before + compare_methods.BEGIN + compare_methods.END + rest.split(compare_methods.END)[1]
    )
    monkeypatch.setattr(compare_methods, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(compare_methods, "PICTURE", tmp_path / "picture.png")
    compare_methods.page()
    assert (tmp_path / "page.md").read_text("utf-8") == page
    assert (tmp_path / "picture.png").is_file()
    scores = {*compare_methods.NATIVE.split(","), *compare_methods.PRESSES.split(",")}
    assert [score for score in sorted(scores) if f"| `{score}` |" not in page] == []
