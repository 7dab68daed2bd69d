"""The description of a cell's parts as JSON, and the hash of it that cells are named by."""

import hashlib
import json
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from kvbench.eviction.policy import Policy
from kvbench.models.loading.spec import ModelSpec, has_chat_template
from kvbench.tasks.files import FromFiles
from kvbench.tasks.task import Task

Description = dict[str, Any]
LATER = (("budget_span", "prompt"), ("most", None), ("splits", "candidates"), ("queries", "window"))
"""Fields of policies and their parts that came later, with the values at which names of cells leave them out."""


def describe(part: Any) -> Description:
    """The name of a score, task or probe and its fields; never where its class lives, so that files can move."""
    return {"name": part.name} | asdict(part)


def describe_policy(policy: Policy) -> Description:
    """All fields of a policy, but those of `LATER` that say nothing new."""
    return asdict(
        policy, dict_factory=lambda pairs: {name: value for name, value in pairs if (name, value) not in LATER}
    )


def describe_task(task: Task) -> Description:
    """A task without its number of samples and the folder of its data; the hash of its data is included."""
    description = {name: value for name, value in describe(task).items() if name not in ("samples", "repeats", "root")}
    if isinstance(task, FromFiles) and task.data_sha256 is not None:
        description["data_sha256"] = task.data_sha256
    return description | {"version": task.version}


@lru_cache
def describe_model(spec: ModelSpec) -> Description:
    """A model by the bytes of its files rather than its path: a folder that moves keeps its rows."""
    elsewhere = ("name", "path", "revision", "threads", "tile", "device", "device_map")
    description = {name: value for name, value in asdict(spec).items() if name not in elsewhere}
    return description | {"sha256": spec.sha256(), "chat_template": has_chat_template(spec.folder())}


def canonical(description: Any) -> str:
    """JSON with sorted names and no spaces."""
    return json.dumps(description, sort_keys=True, separators=(",", ":"))


def digest(text: str) -> str:
    """Sixteen hex digits of the SHA-256 of a canonical text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
