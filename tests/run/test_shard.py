"""`--shard`: as it is written, or as a scheduler gives it."""

import pytest

from kvbench.run.shard import Shard, shard_of

KUBERNETES = {"JOB_COMPLETION_INDEX": "2"}
SLURM = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MAX": "3"}
SKYPILOT = {"SKYPILOT_NODE_RANK": "3", "SKYPILOT_NUM_NODES": "4"}


@pytest.mark.parametrize(
    ("text", "environment", "shard"),
    [
        ("2/8", {}, Shard(1, 8)),
        ("2/8", KUBERNETES, Shard(1, 8)),
        ("auto/3", KUBERNETES, Shard(2, 3)),
        ("auto", SLURM, Shard(0, 4)),
        ("auto", SKYPILOT, Shard(3, 4)),
        ("auto/8", SLURM | {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "1"}, Shard(7, 8)),
    ],
)
def test_a_shard_is_read(text: str, environment: dict[str, str], shard: Shard) -> None:
    assert shard_of(text, environment) == shard


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        ("auto", {}, "none of JOB_COMPLETION_INDEX, SLURM_ARRAY_TASK_ID, SKYPILOT_NODE_RANK is set"),
        ("auto", KUBERNETES, "JOB_COMPLETION_INDEX does not say of how many: write auto/N"),
        ("auto/2", KUBERNETES, "JOB_COMPLETION_INDEX=2: allowed: 0 to 1"),
        ("auto", SLURM | {"SLURM_ARRAY_TASK_MAX": "4"}, "SLURM_ARRAY_TASK_MAX=4 of 4 tasks: number the tasks from 0"),
        ("auto", SLURM | SKYPILOT, "SLURM_ARRAY_TASK_ID and SKYPILOT_NODE_RANK are set"),
        ("auto", SKYPILOT | {"SKYPILOT_NODE_RANK": "x"}, "SKYPILOT_NODE_RANK=x: it must be a number"),
        ("auto", {"SKYPILOT_NODE_RANK": "0"}, "SKYPILOT_NUM_NODES=: it must be a number"),
        ("auto/", KUBERNETES, "allowed: I/N"),
        ("auto/0", {"JOB_COMPLETION_INDEX": "0"}, "allowed: I/N"),
    ],
)
def test_what_names_no_shard_is_refused(text: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        shard_of(text, environment)
    assert f"--shard {text}" in str(refused.value)
