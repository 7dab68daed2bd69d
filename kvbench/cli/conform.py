"""`kvbench conform FILES`: golden cases through the same code as a real run, a line a case."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvbench.cli.errors import Exit
from kvbench.cli.usage import show
from kvbench.config.compose import options
from kvbench.config.files import file_of
from kvbench.config.settings import build
from kvbench.conformance import golden
from kvbench.conformance.golden.files import verdicts
from kvbench.conformance.golden.prompts import Sources
from kvbench.conformance.golden.verdict import Verdict
from kvbench.eviction.scores.score import Score
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.nearest import closest
from kvbench.support.printable import printable

SETTINGS = ("data.root", "tokenizer")
USAGE = """kvbench conform [data.root=FOLDER] [tokenizer=FOLDER] FILES: check against golden cases, a line a case.

  kvbench conform tests/golden/eviction/*.npz                        eviction: scores, lengths, kept positions
  kvbench conform tests/golden/metrics/* tests/golden/ruler/era*/*   scores of answers, and prompts

One that cannot be read or run is a failure like one that does not match; exit code 5 if there is any. Cases whose texts
or data are not at hand are neither. Prompts of LongBench and those with essays are made of what lies in data.root; the
tokenizer that counted is the folder `tokenizer` beside the files, or the one named.

kvbench conform --properties [score=NAME] [policy=NAME]: check what every score on every policy must do, whoever wrote
them. Lists and settings as in kvbench run; without a policy all that take a score, without a score each policy's own.

  kvbench conform --properties score=caote score.host=lava policy=snapkv,h2o
"""
PROPERTIES = "--properties"


def main(arguments: Sequence[str]) -> int:
    """Check every file; exit code 5 unless all of them match."""
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        show(USAGE)
        return Exit.OK if arguments else Exit.USAGE
    if PROPERTIES in arguments:
        from kvbench.cli.properties import hold

        return hold([argument for argument in arguments if argument != PROPERTIES])
    settings, files = _read(arguments)
    missing = [name for name in files if not Path(name).is_file()]
    if missing:
        raise MissingFile(f"no such file: {', '.join(missing)}; conform takes files of golden cases")
    beside = Sources(settings.get("data.root"), settings.get("tokenizer"))
    found: list[Verdict] = []
    for path in map(Path, files):
        for checked in verdicts(path, beside) if path.suffix in (".json", ".jsonl") else [_eviction(path)]:
            found.append(checked)
            mark = "none" if checked.absent else "PASS" if checked.problem is None else "FAIL"
            said = f" ({checked.detail})" if checked.problem is None and checked.detail else ""
            problem = "" if checked.problem is None else f": {' '.join(checked.problem.split())}"
            print(printable(f"{mark}  {' '.join(checked.name.split())}{said}{problem}"), flush=True)
    passed, absent = sum(one.problem is None for one in found), sum(one.absent for one in found)
    print(f"{passed} of {len(found) - absent} cases match" + (f"; {absent} are not at hand" if absent else ""))
    return Exit.OK if passed == len(found) - absent else Exit.GATE


def _read(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Settings and files. Raises ValueError for another setting, and for no file."""
    settings, files = {}, []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if argument.startswith("-") or (equals and key not in SETTINGS and not Path(argument).exists()):
            raise UserError(f"cannot read {argument}: conform takes files, data.root=FOLDER and tokenizer=FOLDER")
        if equals and key in SETTINGS:
            settings[key] = value
        else:
            files.append(argument)
    if not files:
        raise UserError("conform takes files of golden cases, and none is named")
    return settings, files


def make_score(name: str, parameters: Mapping[str, Any]) -> Score:
    """The score that `conf/score` has under a name. Raises ValueError for one it has not, or for unknown parameters."""
    if name not in options("score"):
        raise UserError(f"score {name!r} is not supported; {closest(name, options('score'))}")
    node = file_of("score", name)
    legal = [key for key in node if key not in ("_target_", "name")]
    if unknown := [key for key in parameters if key not in legal]:
        known = f"legal: {', '.join(legal)}" if legal else "it takes none"
        raise UserError(f"parameter {', '.join(unknown)} of score {name} is not supported; {known}")
    plain = {key: value for key, value in node.items() if not str(value).startswith("${")}
    return build("score", plain | dict(parameters))


def _eviction(path: Path) -> Verdict:
    try:
        return golden.check(golden.load(path), make_score)
    except ValueError as error:
        return Verdict(path.name, str(error))
    except Exception as error:
        return Verdict(path.name, f"cannot be read: {type(error).__name__}: {error}")
