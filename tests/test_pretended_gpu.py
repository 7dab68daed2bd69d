"""What the pretended GPU must notice, since tests of budgets and devices rely on it."""

import pytest
import torch

from tests.pretended_gpu import PretendedGpu


def test_launches_and_waits_are_counted_by_section() -> None:
    with PretendedGpu() as gpu:
        numbers = torch.arange(6, device="cuda").view(2, 3)
        with gpu.section("work"):
            total = (numbers * 2).sum()
        with gpu.section("read"):
            assert total.item() == 30
            assert numbers.tolist() == [[0, 1, 2], [3, 4, 5]]
            numbers[numbers > 2]
            torch.tensor([1], device="cuda")
            torch.ones(1).to("cuda", non_blocking=True)
    assert (gpu.launched("work"), gpu.waited("work")) == (2, 0)
    assert gpu.waited("read") == 4


def test_tensors_of_both_devices_are_a_mix_up_but_numbers_and_indices_are_not() -> None:
    with PretendedGpu() as gpu:
        rows = torch.ones(3, device="cuda")
        rows + torch.tensor(2.0)
        rows[torch.tensor([0, 2])]
        assert not gpu.mixed
        rows + torch.ones(3)
    assert gpu.mixed.total() == 1


def test_live_bytes_follow_the_storages() -> None:
    with PretendedGpu(total=4000) as gpu:
        first = torch.zeros(500, device="cuda")
        view = first[:10]
        assert gpu.live_bytes == 2000
        del first
        assert gpu.live_bytes == 2000
        del view
        assert (gpu.live_bytes, gpu.peak_bytes) == (0, 2000)
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(1001, device="cuda")


def test_a_graph_launches_its_capture_again_on_the_same_memory() -> None:
    with PretendedGpu() as gpu:
        counter = torch.zeros(1, dtype=torch.long, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            counter += 1
            doubled = counter * 2
        for _ in range(3):
            graph.replay()
        assert (counter.item(), doubled.item()) == (3, 6)
        with pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            counter.item()
    assert gpu.launches["start"]["graph at ?"] == 3
