"""BFCL's simulators of tools: a run's own instances, calls of their methods, and BFCL's rule of when two states agree.

The classes and the rule come from the package bfcl-eval, imported when they are needed:
https://github.com/ShishirPatil/gorilla/tree/main/berkeley-function-call-leaderboard/bfcl_eval/eval_checker/multi_turn_eval
It evaluates a call as Python text. Here a call is a name and arguments of JSON, and only public methods are called.
"""

import copy
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvbench.tasks.metrics import pinned

VERSION = "2026.3.23"
UNBOUNDED, MOST = ("exponent", "precision", "decimal_places"), 1000
"""Arguments of MathAPI that let a call compute for hours, and the largest value with which one is run."""


def require_package() -> Any:
    """Return the module of BFCL's checks. Raises UserError: the package is not installed, or another release."""
    return pinned(
        "bfcl-eval",
        VERSION,
        "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker",
        purpose="BFCL's tools are those of",
        fix=f"pip install --no-deps bfcl-eval=={VERSION}",
    )


class Simulators:
    """The instances of a run, in its long context, as they are before its first call.

    classes: names of BFCL's classes. config: the initial state of each of them that has one.

    Raises as `require_package`.
    """

    def __init__(self, classes: Sequence[str], config: Mapping[str, Any]) -> None:
        self._checks = require_package()
        config_module = importlib.import_module("bfcl_eval.constants.executable_backend_config")
        self._instances: dict[str, Any] = {}
        for name in classes:
            instance = getattr(importlib.import_module(config_module.CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in config_module.STATELESS_CLASSES:
                instance._load_scenario(copy.deepcopy(config.get(name, {})), long_context=True)
            self._instances[name] = instance

    @property
    def methods(self) -> dict[str, Callable[..., Any]]:
        """The public methods by name; of two with one name the later class's, as in BFCL."""
        members = (inspect.getmembers(instance, inspect.ismethod) for instance in self._instances.values())
        return {name: method for each in members for name, method in each if not name.startswith("_")}

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a method; its output in the form in which BFCL shows it to a model, errors included."""
        try:
            if name not in self.methods:
                raise NameError(f"name {name!r} is not defined")
            if any(isinstance(value := arguments.get(key), (int, float)) and abs(value) > MOST for key in UNBOUNDED):
                raise ValueError(f"{', '.join(UNBOUNDED)} are at most {MOST}")
            output = self.methods[name](**arguments)
        except Exception as error:  # whatever a generated call raises is its output
            return f"Error during execution: {error}"
        if not isinstance(output, dict):
            return str(output)
        try:
            return json.dumps(output)
        except (TypeError, ValueError):  # a value that JSON lacks
            return str(output)

    def agree(self, expected: "Simulators", outputs: Sequence[str], required: Sequence[str]) -> bool:
        """BFCL's rule: all attributes are the expected ones, and the required outputs are among `outputs`."""
        state = self._checks.state_checker(self._instances, expected._instances)
        return state["valid"] and self._checks.response_checker(list(outputs), list(required), 0)["valid"]
