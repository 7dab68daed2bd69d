"""Whole runs on the pretended GPU: no operation meets tensors of both devices, whatever is chosen."""

from pathlib import Path

import pytest

from kvbench.cli import main
from tests.pretended_gpu import PretendedGpu

SHORT = "budget=0.3 task.samples=1 task.context_length=256 task.max_new_tokens=2"
RUNS = {
    "policies": f"policy=full,snapkv,h2o_obcache,tova,ada_snapkv,cake,lava,pyramidkv,kvzip,streaming_llm {SHORT}",
    "scores": f"policy=snapkv score=obcache_joint,exact_removal,caote,expected_attention,key_diff {SHORT}",
    "stores": f"policy=ada_snapkv store=flat,shared,int4,kivi2 {SHORT}",
    "decode_every": f"policy=snapkv,ada_snapkv schedule.decode_every=1 {SHORT}",
    "prefill_block": f"policy=snapkv,ada_snapkv,ada_pyramidkv,lava,cake schedule.prefill_block=64 {SHORT}",
    "whole layers by block": f"policy=simlayerkv schedule.prefill_block=64 {SHORT}",
    "context": f"policy=snapkv schedule.evict_after=context {SHORT}",
    "timed": "task=efficiency policy=full,snapkv budget=0.3 task.context_length=128 task.new_tokens=3 task.repeats=1",
}


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_no_operation_meets_both_devices(run: str, tmp_path: Path) -> None:
    with PretendedGpu(interpret=False) as gpu:
        code = main.main(["run", *RUNS[run].split(), f"results.dir={tmp_path}"])
    assert not code
    assert not gpu.mixed
    assert gpu.launched("start") > 1000
