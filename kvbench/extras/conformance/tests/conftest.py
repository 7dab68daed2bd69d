"""One case that every test may spoil."""

import pytest

from kvbench.extras.conformance.golden import Case, load
from kvbench.extras.conformance.tests.cases import CASES


@pytest.fixture
def case() -> Case:
    """SnapKV on a GQA-native cache: 3 layers, 2 KV heads, 200 tokens, 64 of them kept."""
    return load(next(path for path in CASES if path.stem == "snapkv_group_then_pool"))
