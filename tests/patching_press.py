"""A package whose import wraps transformers' attention functions, as kvpress' does, and then fails if it is told to."""

import os

from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.presses import Norms

for _name, _function in ALL_ATTENTION_FUNCTIONS.items():
    ALL_ATTENTION_FUNCTIONS[_name] = lambda *given, _function=_function, **named: _function(*given, **named)
if os.environ.get("FAILS_AFTER_PATCHING"):
    raise ImportError("no such thing")
__all__ = ["Norms"]
