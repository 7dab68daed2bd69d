"""What a cell's numbers depend on, as JSON: the descriptions that cells are named by.

Parts are described once each: a sweep of many cells has few policies, scores, tasks and models.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from kvbench.models.loading.spec import ModelSpec, has_chat_template
from kvbench.support.plugins import foreign
from kvbench.tasks.files import FromFiles
from kvbench.tasks.sample import Task

Description = dict[str, Any]


class Same:
    """A part by identity: parts may be equal and yet differ in JSON, such as 1 and 1.0."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def __hash__(self) -> int:
        return id(self.part)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.part is other.part


def describe(part: Any) -> Description:
    """The name of a score, task or probe and its fields; never where its class lives, so that files can move."""
    return {"name": part.name} | asdict(part)


def describe_task(task: Task) -> Description:
    """How many samples are asked for and where data lies are no part of what a task is; its data's bytes are."""
    described = {name: value for name, value in describe(task).items() if name not in ("samples", "repeats", "root")}
    if isinstance(task, FromFiles) and task.data_sha256 is not None:
        described["data_sha256"] = task.data_sha256
    return described | {"version": task.version}


@lru_cache
def describe_model(spec: ModelSpec) -> Description:
    """The model's bytes rather than its path: a folder that moves keeps its rows."""
    elsewhere = ("name", "path", "revision", "threads", "tile", "device", "device_map")
    described = {name: value for name, value in asdict(spec).items() if name not in elsewhere}
    return described | {"sha256": spec.sha256(), "chat_template": has_chat_template(spec.folder())}


def canonical(description: Any) -> str:
    """JSON with sorted names and no spaces."""
    return json.dumps(description, sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=2**14)
def text_of(kind: str, part: Same) -> str:
    """The canonical text of a model, task, score or of a part that is described by its fields alone."""
    one = part.part
    if kind == "plugins":
        return canonical(foreign(one))
    by_kind = {"model": describe_model, "task": describe_task, "score": describe}
    return canonical(by_kind.get(kind, asdict)(one))


def merged(texts: Mapping[str, str]) -> str:
    """The canonical text of an object, given those of its values."""
    return "{" + ",".join(f'"{name}":{texts[name]}' for name in sorted(texts)) + "}"


def digest(text: str) -> str:
    """Sixteen hex digits of the SHA-256 of a canonical text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
