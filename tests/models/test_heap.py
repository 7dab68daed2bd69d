"""What the C library keeps: a block that was freed is there again without a page fault."""

import platform
import resource

import pytest
import torch

from kvbench.models.heap import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_blocks_come_back_without_page_faults() -> None:
    assert keep_freed_memory()

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(3 * 2**20)  # 12 MiB: 3072 pages
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()
    assert min(faults() for _ in range(5)) < 100
