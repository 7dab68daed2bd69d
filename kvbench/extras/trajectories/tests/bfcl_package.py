"""A little package in the place of bfcl-eval, and two runs of its tools."""

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvbench.extras.trajectories.bfcl import ANSWERS, QUESTIONS, TOOLS, LongContextBFCL
from kvbench.extras.trajectories.bfcl_simulators import VERSION

TOOL_CLASSES = """
class GorillaFileSystem:
    def __init__(self):
        self.files, self._reads = {}, 0

    def _load_scenario(self, scenario, long_context=False):
        self.files = scenario["files"]
        if long_context:
            self.files["long.txt"] = "word " * 9

    def write(self, name, text):
        self.files[name] = text
        return {"written": name}

    def read(self, name):
        self._reads += 1
        return {"text": self.files[name]}

    def names(self):
        return {"names": set(self.files)} if len(self.files) == 1 else list(self.files)


class MathAPI:
    def power(self, base, exponent):
        return {"result": base**exponent}
"""
CHECKS = """
def state_checker(models, expected):
    def public(instance):
        return {name: value for name, value in vars(instance).items() if not name.startswith("_")}

    return {"valid": all(public(models[name]) == public(each) for name, each in expected.items())}


def response_checker(outputs, needed, turn):
    return {"valid": all(output in outputs for output in needed)}
"""
CONSTANTS = """
CLASS_FILE_PATH_MAPPING = {"GorillaFileSystem": "bfcl_eval.tools", "MathAPI": "bfcl_eval.tools"}
STATELESS_CLASSES = ["MathAPI"]
"""
MODULES = {
    f"bfcl_eval-{VERSION}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: bfcl-eval\nVersion: {VERSION}\n",
    "bfcl_eval/tools.py": TOOL_CLASSES,
    "bfcl_eval/constants/executable_backend_config.py": CONSTANTS,
    "bfcl_eval/eval_checker/multi_turn_eval/multi_turn_checker.py": CHECKS,
} | {
    f"bfcl_eval/{folder}__init__.py": ""
    for folder in ("", "constants/", "eval_checker/", "eval_checker/multi_turn_eval/")
}
FILES, BOTH = ["GorillaFileSystem"], ["GorillaFileSystem", "MathAPI"]
RUNS: tuple[tuple[list[str], dict[str, list[str]]], ...] = (
    (
        FILES,
        {
            "Write it.": ["write('a.txt', text='one')"],
            "Thank you.": [],
            "Read it, then copy it.": ["read(name='a.txt')", "write(name='b.txt', text='one')"],
        },
    ),
    (BOTH, {"What is in long.txt?": ["read(name='long.txt')"], "And two to three?": ["power(base=2, exponent=3)"]}),
)


def write(root: Path, runs: Sequence[tuple[list[str], dict[str, list[str]]]] = RUNS) -> None:
    """The data files under `root`, and the package in its folder `site`."""
    questions, answers = [], []
    for number, (classes, turns) in enumerate(runs):
        config = {"GorillaFileSystem": {"files": {}}}
        words = [[{"role": "user", "content": text}] for text in turns]
        questions.append({"id": f"run_{number}", "question": words, "initial_config": config})
        questions[-1]["involved_classes"] = classes
        answers.append({"id": f"run_{number}", "ground_truth": list(turns.values())})
    contents = {QUESTIONS: questions, ANSWERS: answers}
    contents |= {f"bfcl/multi_turn_func_doc/{file}.json": [{"name": f"of_{file}"}] for file in TOOLS.values()}
    texts = {name: "".join(json.dumps(row) + "\n" for row in rows) for name, rows in contents.items()}
    for name, text in (texts | {f"site/{name}": text for name, text in MODULES.items()}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8")


@contextmanager
def installed(root: Path) -> Iterator[None]:
    """While it is open the package that `write` wrote is the installed one."""
    others = {name: sys.modules.pop(name) for name in _modules()}
    sys.path.insert(0, str(root / "site"))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(root / "site"))
        for name in _modules():
            del sys.modules[name]
        sys.modules.update(others)


def _modules() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "bfcl_eval"]


def task_of(root: Path | str, measure: str = "state", **fields: Any) -> LongContextBFCL:
    return LongContextBFCL(name=f"bfcl/{measure}", measure=measure, root=str(root), **fields)
