"""A package that adds a score to the command line: installed into a folder of its own, listed, checked and run.

    python scripts/examples/plugin.py

The package is tests/plugin_sample: a pyproject.toml with an entry point, one Python file, one YAML. In an environment
of yours `pip install -e .` in its folder is all that it takes; here it goes to a temporary folder, which is then put on
the path of the commands.
"""

import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests" / "plugin_sample"
RUN = "policy=snapkv score=attn,sample_score score.half_life=16,64 budget=0.1 task.samples=8 task.max_new_tokens=12"


def main() -> None:
    """Install the package, and use its score by name."""
    with TemporaryDirectory() as folder:
        site = install(Path(folder))
        listed = kvbench(site, folder, "list scores")
        print("\n".join(line for line in listed.splitlines() if line.startswith(("attn ", "sample_score"))))
        print(kvbench(site, folder, "conform --properties score=sample_score policy=snapkv,tova_obcache"))
        kvbench(site, folder, f"run {RUN} results.dir=rows")
        print(kvbench(site, folder, "report table --results rows --format markdown"))


def install(folder: Path) -> Path:
    """What pip makes of the package."""
    copytree(SAMPLE, folder / "source", ignore=lambda _, names: [name for name in names if name == "__pycache__"])
    words = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    site = folder / "site"
    command = [sys.executable, "-m", "pip", "install", *words, "--target", str(site), str(folder / "source")]
    subprocess.run(command, check=True)
    return site


def kvbench(site: Path, folder: str, line: str) -> str:
    """What a command prints whose path has the package on it."""
    path = os.pathsep.join([str(site), str(ROOT)])
    command = [sys.executable, "-m", "kvbench", *line.split()]
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "120"}
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.rstrip()


if __name__ == "__main__":
    main()
