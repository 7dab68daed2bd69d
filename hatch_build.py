"""Puts the data folders of a checkout inside the package of a wheel.

``conf/`` and ``results/papers/`` lie at the root of the repository, where people edit them. A wheel has no such root,
so they travel as ``kvbench/conf`` and ``kvbench/results/papers``. An editable install reads the checkout itself and
gets no copy, which would go stale unseen. ``kvbench/support/paths.py`` is the reading side of this file.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TRAVEL = {"conf": "kvbench/conf", "results/papers": "kvbench/results/papers"}


class DataFolders(BuildHookInterface):
    """Adds the folders of ``TRAVEL`` to a standard wheel and to nothing else."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Ask for the folders, given the kind of wheel: ``"standard"`` or ``"editable"``."""
        if version == "standard":
            build_data["force_include"].update(TRAVEL)
