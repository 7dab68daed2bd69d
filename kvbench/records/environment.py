"""The environment of rows: code, packages, machine. Versions come from package metadata; nothing heavy is imported."""

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from kvbench.support.git import git

PACKAGES = (
    "kvbench",
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "safetensors",
    "accelerate",
    "triton",
    "flash-attn",
    "flash-attn-3",
    "kernels",
)
# Only variables that can change numbers or timings, and that hold no secrets.
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TOKENIZERS_PARALLELISM",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)

_REMOTE = re.compile(
    r"(?:(?:https?|ssh|git)://(?:[^/@]*@)?(?P<host>[\w.-]+)(?::\d+)?/|(?:[\w.-]+@)(?P<name>[\w.-]+):)"
    r"(?P<path>[\w.~/-]+?)(?:\.git)?/?"
)
"""A remote by its URL, or as ssh names it: user@host:path."""


def environment(device: str | Mapping[str, Any], variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return everything besides settings that the numbers of a run may depend on.

    device: the name of the accelerator or processor, or a mapping with more about it. variables: the process
    environment (default: `os.environ`), of which only the names in `VARIABLES` are kept.
    """
    variables = os.environ if variables is None else variables
    return {
        "device": dict(device) if isinstance(device, Mapping) else device,
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "processor": platform.machine(),
        "processors": os.cpu_count(),
        "source": source(Path(__file__).resolve().parents[1]),
        "variables": {name: variables[name] for name in VARIABLES if name in variables},
    }


def environment_id(content: Mapping[str, Any]) -> str:
    """Twelve hex digits of `content_hash`."""
    return content_hash(content)[:12]


def content_hash(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON: sorted names and no spaces."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def source(package: Path) -> dict[str, Any]:
    """Return the git commit of a package folder, whether the package or the `conf` beside it differ from that commit,
    and the address of the repository's pages, where it has been cloned from a server.

    All are None unless git tracks the package itself: a copy installed inside somebody's repository is not of theirs.
    """
    if not git(package, "ls-files", "--", "."):
        return {"commit": None, "dirty": None, "repository": None}
    commit = git(package, "rev-parse", "--verify", "HEAD")
    changes = git(package, "status", "--porcelain", "--", ".", ":/conf")
    repository = repository_page(git(package, "remote", "get-url", "origin") or "")
    return {"commit": commit or None, "dirty": None if changes is None else bool(changes), "repository": repository}


def repository_page(remote: str) -> str | None:
    """Return the address of the pages of a remote, without user, password and port; None where it is no server's."""
    match = _REMOTE.fullmatch(remote)
    return f"https://{match['host'] or match['name']}/{match['path']}" if match else None


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
