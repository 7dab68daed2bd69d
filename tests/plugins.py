"""Plugins for tests: one that is really installed, and made-up ones that are only as much as a test needs."""

import subprocess
import sys
from pathlib import Path

SAMPLE = Path(__file__).parent / "plugin_sample"


def install(target: Path) -> Path:
    """The sample plugin as pip installs it, entry point and all, in a folder of its own."""
    words = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    copy = target / "source"  # building writes nothing into the checkout
    copy.mkdir(parents=True)
    for path in SAMPLE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            place = copy / path.relative_to(SAMPLE)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pip", "install", *words, "--target", str(target / "site"), str(copy)]
    subprocess.run(command, check=True, timeout=120)
    return target / "site"


def made_up(site: Path, name: str, files: dict[str, str], value: str | None = None, version: str = "1.0") -> Path:
    """A distribution `name` in `site` with an entry point and the files of one package, named like it by default."""
    package = name.replace("-", "_")
    metadata = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "entry_points.txt": f"[kvbench.plugins]\n{package} = {value or package}\n",
    }
    folder = f"{package}-{version}.dist-info"
    written = {f"{folder}/{key}": text for key, text in metadata.items()}
    written |= {f"{package}/{key}": text for key, text in files.items()}
    for key, text in written.items():
        (site / key).parent.mkdir(parents=True, exist_ok=True)
        (site / key).write_text(text, "utf-8")
    return site
