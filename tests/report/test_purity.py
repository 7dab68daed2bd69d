import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "hydra", "omegaconf")
FILES = sorted((ROOT / "kvbench" / "report").rglob("[a-z]*.py"))
PLOT = ["plot", "tradeoff", "--out", "a.png"]
ROOM = ("kvbench.records", "kvbench.cli.report", *(".".join(f.relative_to(ROOT).with_suffix("").parts) for f in FILES))


def test_reports_are_imported_and_run_where_nothing_heavy_is_installed(tmp_path: Path, small: Path) -> None:
    """Whatever a command imports late is imported here: heavy packages are made to fail."""
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('a report imported {name}')\n")
    variables = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    commands = [["report", *words, "--results", str(small)] for words in (["table"], ["rows"], PLOT)]
    program = (
        f"import {', '.join(ROOM)}\nfrom kvbench.cli.main import main\n"
        f"print('==', [int(main(line)) for line in {commands!r}])"
    )
    run = subprocess.run([sys.executable, "-c", program], env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert (run.stdout.splitlines()[-1:], run.stderr) == (["== [0, 0, 0]"], "kvbench: wrote a.png\n")
