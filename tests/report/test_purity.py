import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "hydra", "omegaconf")
FILES = sorted((ROOT / "kvbench" / "report").rglob("[a-z]*.py"))
PLOT = ["plot", "tradeoff", "--out", "a.png"]
ROOM = ("kvbench.records", "kvbench.cli.report", *(".".join(f.relative_to(ROOT).with_suffix("").parts) for f in FILES))


def heavy(tmp_path: Path, *modules: str) -> set[str]:
    """The heavy packages that a fresh interpreter has loaded after importing these modules; empty stand-ins count."""
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text("")
    program = f"import sys, {', '.join(modules)}\nprint(*sys.modules)"
    variables = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    run = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert set(modules) <= loaded
    return loaded & set(HEAVY)


def test_the_report_loads_nothing_heavy(tmp_path: Path) -> None:
    assert {"kvbench.report.tables.table", "kvbench.report.rows", "kvbench.report.plots.kept_sets"} <= set(ROOM)
    assert heavy(tmp_path, *ROOM) == set()


def test_the_test_above_would_see_it(tmp_path: Path) -> None:
    lines = "".join(f"    import {name}\n" for name in HEAVY)
    (tmp_path / "guilty.py").write_text(f"def load():\n{lines}load()\n")
    assert heavy(tmp_path, "guilty", "kvbench.records") == set(HEAVY)


def test_the_commands_run_where_nothing_heavy_is_installed(tmp_path: Path, small: Path) -> None:
    """Whatever a command imports late is imported here: heavy packages are made to fail."""
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('a report imported {name}')\n")
    variables = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    commands = [["report", *words, "--results", str(small)] for words in (["table"], ["rows"], PLOT)]
    program = f"from kvbench.cli.main import main\nprint('==', [int(main(line)) for line in {commands!r}])"
    run = subprocess.run([sys.executable, "-c", program], env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert (run.stdout.splitlines()[-1:], run.stderr) == (["== [0, 0, 0]"], "kvbench: wrote a.png\n")
