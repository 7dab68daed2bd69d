"""The folders that travel with the code, found in a checkout and in an installed package."""

from pathlib import Path

import pytest

from kvbench.support import paths

ROOT = Path(__file__).resolve().parents[2]


def _make(*folders: Path) -> None:
    for folder in folders:
        folder.mkdir(parents=True)


def test_a_checkout_is_read_where_people_edit_it() -> None:
    if Path(paths.__file__).is_relative_to(ROOT):
        assert paths.conf() == ROOT / "conf"
        assert paths.papers() == ROOT / "results" / "papers"
        assert paths.assets() == ROOT / "kvbench" / "models" / "assets"
    assert (paths.conf() / "policy").is_dir()
    assert (paths.papers() / "README.md").is_file()


@pytest.mark.parametrize(
    ("ask", "name"), [(paths.conf, "conf"), (paths.papers, "results/papers"), (paths.assets, "models/assets")]
)
def test_an_installed_package_holds_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask, name: str) -> None:
    package = tmp_path / "site-packages" / "kvbench"
    _make(package / name, tmp_path / "site-packages" / name)
    monkeypatch.setattr(paths, "files", lambda _: package)
    assert ask() == package / name


@pytest.mark.parametrize("name", ["conf", "results/papers"])
def test_a_neighbour_of_an_installed_package_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    package = tmp_path / "site-packages" / "kvbench"
    _make(package, tmp_path / "site-packages" / name)
    monkeypatch.setattr(paths, "files", lambda _: package)
    with pytest.raises(FileNotFoundError, match="install kvbench again"):
        paths.conf() if name == "conf" else paths.papers()
