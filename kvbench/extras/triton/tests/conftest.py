"""Tests of kernels need triton."""

import pytest

pytest.importorskip("triton", reason="no kernels without triton: pip install 'kvbench[kernels]'")
