"""Words of kvpress, lm-evaluation-harness and the papers' code, and the settings that they are here."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from yaml import safe_load

from kvbench.support.plugins import items

METHODS = ("press", "press_name", "method", "methods")


def equivalent(key: str, values: Sequence[str]) -> str | None:
    """Translate `key=values` of another tool, as it is written on a command line; None if nothing is known."""
    if key == "compression_ratio":
        kept = [str(round(1 - float(value), 6)) for value in values if re.fullmatch(r"0?\.\d+|0", value)]
        return f"budget={','.join(kept) or 'SHARE'} (the share of KV pairs that is kept: 1 - compression_ratio)"
    if key in (*METHODS, "policy", "score"):
        methods = [method for value in values if (method := _method(value, key))]
        return " or ".join(methods) or ("policy=NAME (kvbench list policies)" if key in METHODS else None)
    if key == "model":
        folder, _, name = values[0].rpartition("/")
        is_path = folder not in ("", "shape") and name.lower() not in items("model")
        return f"model=hf model.path={values[0]}" if is_path else None
    settings, ours = synonyms()["settings"], synonyms()["values"].get(key, {})
    given = ",".join(ours.get(value, value) for value in values)
    return settings[key].replace("VALUE", given) if key in settings else None


@cache
def synonyms() -> dict[str, dict[str, Any]]:
    """Return the `methods`, `values` and `settings` of other tools, as `synonyms.yaml` lists them."""
    return safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def _method(name: str, key: str) -> str | None:
    methods = synonyms()["methods"]
    if (plain := _plain(name)) in methods and key in METHODS:
        return methods[plain]
    policies, scores = ({_plain(item): item for item in items(group)} for group in ("policy", "score"))
    if plain in policies and (key != "score" or plain not in scores):
        return f"policy={policies[plain]}"
    if plain in scores:
        return f"score={scores[plain]}" if key == "score" else f"policy=plain score={scores[plain]}"
    return methods.get(plain)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower()).removesuffix("press")
