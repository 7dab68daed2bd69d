"""Whole runs on the pretended GPU: no operation meets tensors of both devices, whatever is chosen."""

from pathlib import Path

import pytest

from kvbench.cli import main
from kvbench.extras.stores.quantized_batch import QuantizedBatch
from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.records import read_rows
from kvbench.records.folder import ResultsFolder
from tests.pretended_gpu import PretendedGpu
from tests.tasks.scbench.rows import row as scbench_row
from tests.tasks.scbench.rows import write

SHORT = "budget=0.3 task.samples=1 task.context_length=256 task.max_new_tokens=2"
RUNS = {
    "policies": f"policy=full,snapkv,h2o_obcache,tova,ada_snapkv,cake,lava,pyramidkv,kvzip,streaming_llm {SHORT}",
    "scores": f"policy=snapkv score=obcache_joint,exact_removal,caote,expected_attention,key_diff {SHORT}",
    "stores": f"policy=ada_snapkv store=flat,int4,kivi2 {SHORT}",
    "decode_every": f"policy=snapkv,ada_snapkv schedule.decode_every=1 {SHORT}",
    "prefill_block": f"policy=snapkv,ada_snapkv,ada_pyramidkv,lava,cake schedule.prefill_block=64 {SHORT}",
    "whole layers by block": f"policy=simlayerkv policy.sink=2 policy.recent=16 schedule.prefill_block=64 {SHORT}",
    "context": f"policy=snapkv schedule.evict_after=context {SHORT}",
    "timed": "task=efficiency policy=full,snapkv budget=0.3 task.context_length=128 task.new_tokens=3 task.repeats=1",
}


@pytest.mark.slow
def test_a_sweep_captures_one_step_and_says_what_it_launches_itself(tmp_path: Path) -> None:
    """Three prompts of three cells, each in a batch of its own, and cells that no graph can have."""
    short = f"budget=0.3 task.context_length=256 task.max_new_tokens=4 model.max_batch=4 results.dir={tmp_path}"
    with PretendedGpu(interpret=False) as gpu:
        assert not main.main(["run", "policy=full,snapkv,tova", "task.samples=3", *short.split()])
        assert gpu.captures == 1
        for other in ("schedule.decode_every=1", "store=int4"):
            assert not main.main(["run", "policy=snapkv", other, "task.samples=1", *short.split()])
    assert gpu.captures == 1 and not gpu.mixed
    folder, said = ResultsFolder(tmp_path), dict[tuple[str, str], set[str | None]]()
    for row in read_rows(tmp_path):
        environment = folder.read_environment(row.environment) or {}
        said.setdefault((row.store, row.schedule), set()).add(environment["device"].get("steps"))
        assert row.error is None and row.new_tokens == 4
    flat, evicting, packed = said.values()
    assert flat == {None}
    assert evicting == {f"one by one: {EvictingBatch.uncaptured}"}
    assert packed == {f"one by one: {QuantizedBatch.uncaptured}"}


KINDS = {
    "a reader": (
        "policy=full reader=quest task.samples=1 task.context_length=512",
        "one by one: the host counts the pairs that a reader chooses",
    ),
    "several questions": ("policy=snapkv budget=0.3 task=scbench/kv task.samples=2", None),
    "a conversation": (
        "policy=snapkv budget=0.3 task=scbench/kv task.samples=2 task.turns=own",
        "one by one: cells are in different turns of a conversation",
    ),
    "local layers": (
        "policy=snapkv budget=0.3 model=shape/tiny-gemma2 model.kernels=torch task.samples=1 task.context_length=512",
        "by a graph of this batch alone: local layers",
    ),
}
"""What has no graph of its own for all prompts, beside the kinds of the test before, and the reason in its rows."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_rows_name_why_their_steps_are_launched(kind: str, tmp_path: Path) -> None:
    words, expected = KINDS[kind]
    row_of = scbench_row("kv", prompts=["The grass is green. " * 20, "Sky?", "Grass?"], ground_truth=["x", "y"])
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", "scbench/kv", row_of)
    out = tmp_path / "out"
    root = (f"data.root={tmp_path / 'data'}",) if "scbench" in words else ()
    options = (*root, "task.max_new_tokens=18", f"results.dir={out}")
    with PretendedGpu(interpret=False) as gpu:
        assert not main.main(["run", *words.split(), *options])
    rows = read_rows(out)
    said = {(ResultsFolder(out).read_environment(row.environment) or {})["device"].get("steps") for row in rows}
    assert not gpu.mixed and {row.error for row in rows} == {None}
    assert expected in said and said <= {expected, None}, "a full cache beside it may have a graph"


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_no_operation_meets_both_devices(run: str, tmp_path: Path) -> None:
    with PretendedGpu(interpret=False) as gpu:
        code = main.main(["run", *RUNS[run].split(), f"results.dir={tmp_path}"])
    assert not code
    assert not gpu.mixed
    assert gpu.launched("start") > 1000
