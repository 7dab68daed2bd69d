"""Sizes of kernels: the fastest is found once, without memory of its own, and before a step is captured."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from kvbench.cache.kernels.flat import Rooms
from kvbench.extras.triton import column_sums, programs, ragged_decode
from kvbench.extras.triton.programs import HALF, WIDE, Tuned
from tests.models.test_graph import prompts
from tests.pretended_gpu import PretendedGpu

SIZES = [HALF, {**HALF, "BLOCK": 128, "num_warps": 8}, WIDE]


class Kernel:
    """Remembers the sizes it was launched with."""

    arg_names = ("queries", "BLOCK", "GROUP", "PADDED_DIM")

    def __init__(self) -> None:
        self.launched: list[int] = []
        self.fn = lambda: None  # what Triton asks for its name

    def run(self, *_: Any, BLOCK: int, **__: Any) -> None:
        self.launched.append(BLOCK)


def launched(
    monkeypatch: pytest.MonkeyPatch, times: dict[int, float], *launches: tuple[torch.dtype, int, int]
) -> list[Sequence[int]]:
    """The blocks of each launch with a dtype, group and head width, where a block takes so many milliseconds."""
    kernel = Kernel()

    def clock(launch: Any, quantiles: object) -> list[float]:
        launch()
        return [times[kernel.launched[-1]]]

    monkeypatch.setattr(programs, "_milliseconds", clock)
    tuned = Tuned(kernel, SIZES, ["GROUP"])
    found = []
    for dtype, group, head_dim in launches:
        kernel.launched = []
        tuned[(1,)](torch.zeros(1, dtype=dtype), GROUP=group, PADDED_DIM=head_dim)
        found.append(kernel.launched)
    return found


@pytest.mark.parametrize(("times", "fastest"), [({64: 1.0, 128: 2.0}, 64), ({64: 2.0, 128: 1.0}, 128)])
def test_the_fastest_sizes_are_found_once(
    monkeypatch: pytest.MonkeyPatch, times: dict[int, float], fastest: int
) -> None:
    monkeypatch.setattr(programs, "INTERPRETED", False)
    half = torch.bfloat16
    first, again, other = launched(monkeypatch, times, (half, 1, 64), (half, 1, 64), (half, 4, 64))
    assert first == other == [64, 128, fastest] and again == [fastest]


def test_seven_classes_of_lengths_are_timed() -> None:
    """A short prompt does not decide for long ones."""
    assert [programs.length_class(pairs) for pairs in (0, 1, 1024, 1025, 9000)] == [1024, 1024, 1024, 2048, 16384]
    assert len({programs.length_class(2**power) for power in range(21)}) == 7
    for kernel in (ragged_decode._over_splits, column_sums._column_sums):
        assert isinstance(kernel, Tuned) and "length_class" in kernel.keys


def test_float32_and_wide_heads_have_one_size_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "INTERPRETED", False)
    wide, narrow = launched(monkeypatch, {64: 1.0, 32: 1.0}, (torch.float32, 1, 64), (torch.float16, 1, 256))
    assert {*wide} == {32} and {*narrow} == {64}, "twice the bytes do not fit"


def test_the_interpreter_takes_the_first() -> None:
    kernel = Kernel()
    Tuned(kernel, SIZES, ["GROUP"])[(1,)](torch.zeros(1, dtype=torch.half), GROUP=1, PADDED_DIM=64)
    assert kernel.launched == [64]


def test_times_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan counts on all that is free."""
    calls = []
    with PretendedGpu() as gpu:  # which imports kernels: what they read of their module stays
        monkeypatch.setattr(programs, "INTERPRETED", False)
        held = gpu.live_bytes
        (taken,) = programs._milliseconds(lambda: calls.append(gpu.live_bytes), None)
    assert {*calls} == {held} and len(calls) == programs.LAUNCHES + 1 and taken > 0


def test_sizes_are_found_before_a_step_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be timed within a capture: each kind of launch comes outside of one first."""
    seen: list[tuple[bool, tuple[Any, ...]]] = []
    with PretendedGpu(interpret=False) as gpu:
        inner = ragged_decode._over_splits

        class Recorded:
            def __getitem__(self, grid: Any) -> Any:
                def launch(queries: torch.Tensor, *arguments: Any, **constants: Any) -> None:
                    capturing = torch.cuda.is_current_stream_capturing()
                    seen.append(
                        (capturing, (queries.dtype, *(constants[name] for name in ("HEAD_DIM", "length_class"))))
                    )
                    inner[grid](queries, *arguments, **constants)

                return launch

        with monkeypatch.context() as patched:  # undone before the GPU takes its own launcher away
            patched.setattr(ragged_decode, "_over_splits", Recorded())
            assert len([*prompts(gpu, Rooms(), (44, 43), (5, 9))]) == 2
    captured = {kind for capturing, kind in seen if capturing}
    first = dict(reversed([(kind, capturing) for capturing, kind in seen]))
    assert captured and not any(first[kind] for kind in captured)
