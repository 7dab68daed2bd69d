"""Eight shards as tasks of Ray, one GPU each: ray job submit --working-dir . -- python ray_job.py

kvbench is installed on the nodes, which share the folder of results.dir.
"""

import subprocess
import sys

import ray

SHARDS = 8
COMMAND = (
    *("kvbench", "run", "model=hf", "model.path=/shared/models/Llama-3.1-8B-Instruct"),
    *("task=ruler/niah_single_1", "task.context_length=4096", "task.samples=100"),
    *("policy=snapkv,h2o_obcache", "budget=0.1,0.2", "results.dir=/shared/results/ruler"),
)
STOPPED = 75
"""The exit code of a run that was stopped after a sample: run it again."""


class Stopped(Exception):
    """Ray runs the task again."""


@ray.remote(num_gpus=1, max_retries=3, retry_exceptions=[Stopped])
def run(shard: int) -> int:
    """Run a shard, counted from 1; returns its exit code."""
    code = subprocess.run([*COMMAND, "--shard", f"{shard}/{SHARDS}"]).returncode
    if code == STOPPED:
        raise Stopped
    return code


def main() -> int:
    """Run all shards; returns the highest exit code."""
    return max(ray.get([run.remote(shard) for shard in range(1, SHARDS + 1)]))


if __name__ == "__main__":
    sys.exit(main())
