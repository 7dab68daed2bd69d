"""Settings of a run beside its groups, each with its help and its default."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from kvbench.eviction.schedule import Schedule
from kvbench.records import KeptDetail
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError

Reference = Literal["full", "none"]
"""What a sweep holds its cells against: the full cache, or nothing."""


@dataclass(frozen=True)
class Data:
    """Where the files of tasks and models are."""

    root: Annotated[
        str | None,
        Help("the folder of longbench/, pg19/ ...; null: $KVBENCH_DATA, else $KVBENCH_HOME/data, else ./data"),
    ] = None
    verify: Annotated[
        bool, Help("false: read files that differ from kvbench's lock or from their download; rows say so")
    ] = True


@dataclass(frozen=True)
class Results:
    """Where rows go, and what is written beside them about what their cells kept.

    lease_seconds: a process without a heartbeat for so long has stopped, and others take over its work.
    """

    dir: Annotated[str, Help("the folder of the rows; the same command and folder resume")] = "results/runs"
    kept: Annotated[
        KeptDetail, Help("what is recorded of the kept KV pairs: lengths (of each head), positions, or none")
    ] = "none"
    lease_seconds: Annotated[
        float,
        Help(
            "a process without a heartbeat for so long counts as stopped; use one value for all processes of a folder"
        ),
    ] = 180

    def __post_init__(self) -> None:
        if not self.dir.strip():
            raise UserError(f'results.dir="{self.dir}": allowed: a folder, such as results/runs')
        if not 1 <= self.lease_seconds <= 10**6:
            raise UserError(f"results.lease_seconds={self.lease_seconds}: allowed: 1 to 1000000 seconds, such as 180")


@dataclass(frozen=True)
class RunSettings:
    """Each can be set on a command line by its name; `conf/run.yaml` adds the groups."""

    budget: Annotated[
        Any,
        Help(
            "what is kept, protected tokens included: a fraction of the prompt (0.1), KV pairs per head (1024), bytes "
            "(600KiB), or all pairs from a score on (threshold:-4)"
        ),
    ] = 0.1
    protocol: Annotated[
        str,
        Help(
            "paper: as each policy's file says; common: window 16, recent 16, max pool 7 for all policies that have "
            "them"
        ),
    ] = "paper"
    reference: Annotated[
        Reference,
        Help(
            "full: also the cell that evicts nothing, to hold the others against; none: only the cells that are named"
        ),
    ] = "full"
    seed: Annotated[int, Help("of prompts and of random scores")] = 42
    schedule: Schedule = field(default_factory=Schedule)
    data: Data = field(default_factory=Data)
    results: Results = field(default_factory=Results)
