"""`kvbench conform FILES`: golden cases through the same eviction as a real run, a line a case."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvbench import golden
from kvbench.cli.compose import options
from kvbench.cli.errors import Exit, closest
from kvbench.cli.files import file_of
from kvbench.cli.settings import build
from kvbench.scores.score import Score

USAGE = """kvbench conform FILES: check eviction against golden cases (.npz). One that cannot be read or run is
a failure like one that does not match; exit code 5 if there is any.

  kvbench conform tests/golden/eviction/*.npz
"""


def main(arguments: Sequence[str]) -> int:
    """Check every file; exit code 5 unless all of them match."""
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE, end="")
        return Exit.OK if arguments else Exit.USAGE
    missing = [name for name in arguments if not Path(name).is_file()]
    if missing:
        raise FileNotFoundError(f"no such file: {', '.join(missing)}; conform takes the .npz files of golden cases")
    verdicts = []
    for verdict in map(_verdict, map(Path, arguments)):
        verdicts.append(verdict)
        print(f"ok    {verdict.name} (score error {verdict.error:.2f} x tolerance)" if verdict.problem is None else
              f"FAIL  {verdict.name}: {' '.join(verdict.problem.split())}", flush=True)  # fmt: skip
    passed = sum(verdict.problem is None for verdict in verdicts)
    print(f"{passed} of {len(verdicts)} cases match")
    return Exit.OK if passed == len(verdicts) else Exit.GATE


def make_score(name: str, parameters: Mapping[str, Any]) -> Score:
    """The score that `conf/score` has under a name. Raises ValueError for one it has not, or for unknown parameters."""
    if name not in options("score"):
        raise ValueError(f"score {name!r} is not supported; {closest(name, options('score'))}")
    node = file_of("score", name)
    legal = [key for key in node if key not in ("_target_", "name")]
    if unknown := [key for key in parameters if key not in legal]:
        known = f"legal: {', '.join(legal)}" if legal else "it takes none"
        raise ValueError(f"parameter {', '.join(unknown)} of score {name} is not supported; {known}")
    plain = {key: value for key, value in node.items() if not str(value).startswith("${")}
    return build("score", plain | dict(parameters))


def _verdict(path: Path) -> golden.Verdict:
    try:
        return golden.check(golden.load(path), make_score)
    except ValueError as error:
        return golden.Verdict(path.name, str(error), float("nan"))
    except Exception as error:
        return golden.Verdict(path.name, f"cannot be read: {type(error).__name__}: {error}", float("nan"))
