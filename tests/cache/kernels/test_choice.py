"""`model.kernels`: scores by the kernel equal those of plain PyTorch, and what cannot run says what to do."""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvbench.cache.attention import AttentionParams, attend_layer, strongest
from kvbench.cache.kernels import choice
from kvbench.cache.kernels import ragged_decode as naive
from kvbench.cache.kernels.choice import check_kernels, chosen_kernels
from kvbench.eviction.allocation.layers import preference
from kvbench.eviction.scores.attn import Attention, AttentionMax, Cake
from kvbench.eviction.scores.obcache import ExactRemoval, ExactZeroed, OBCacheJoint, OBCacheKey, OBCacheValue
from kvbench.eviction.scores.score import Reduce, Score
from kvbench.extras.triton.tests.test_ragged_decode import segments
from kvbench.models.loading.load import load, model_info
from kvbench.models.loading.spec import ModelSpec, describe_model
from kvbench.records import environment
from kvbench.support.named import Named
from tests.arrays import random_layer

CASES: list[tuple[Score, Reduce]] = [
    (Attention(), "sum"),
    (Attention(), "mean"),
    (Attention(), "max"),
    (Attention(power=2), "sum"),
    (AttentionMax(diagonal=False), "max"),
    (OBCacheValue(), "sum"),
    (OBCacheKey(), "sum"),
    (OBCacheJoint(), "sum"),
    (ExactRemoval(), "sum"),
    (ExactZeroed(), "sum"),
    (Cake(), "mean"),
]


@pytest.fixture(scope="module")
def layer() -> Any:
    return random_layer(70, window=17, head_dim=20)


def with_triton(rows: Any) -> Any:
    return replace(rows, kernels="triton")


@pytest.mark.parametrize(("score", "reduce"), CASES, ids=lambda part: part if isinstance(part, str) else part.name)
def test_a_score_is_the_same_by_its_kernel(layer: Any, score: Score, reduce: Reduce, monkeypatch: Any) -> None:
    rows = layer.observed(17)
    expected = score(layer, rows, reduce)
    monkeypatch.setattr("kvbench.eviction.scores.window.chunks", None)  # the kernel, or nothing
    scores = score(layer, with_triton(rows), reduce)
    assert (scores - expected).abs().max() < 2e-5 * expected.abs().max()


@pytest.mark.parametrize("sinks", [None, torch.linspace(-1, 2, 6)], ids=["plain", "sinks"])
def test_a_growing_layer_is_attended_to_the_same(sinks: Any) -> None:
    """Ragged heads, one row: outputs and log-sum-exp, which cuts rank by."""
    kept = torch.rand(2, 83, generator=torch.Generator().manual_seed(2)) < torch.tensor([[0.9], [0.4]])
    cut, rule = random_layer(83, window=5, head_dim=20).select(kept), AttentionParams(0.3, softcap=4.0, sinks=sinks)
    queries = torch.randn(6, 1, 20, generator=torch.Generator().manual_seed(3))
    attended, expected = (attend_layer(queries, cut, rule, kernels) for kernels in ("triton", "torch"))
    assert (attended.outputs - expected.outputs).abs().max() < 5e-6 and (attended.lse - expected.lse).abs().max() < 5e-6


def test_a_repetition_is_recorded_the_same(monkeypatch: Any) -> None:
    """Columns in the middle, rows behind them, a soft cap and sinks."""
    drawn = torch.Generator().manual_seed(5)
    queries, keys = torch.randn(9, 6, 20, generator=drawn), torch.randn(2, 60, 20, generator=drawn)
    queries = queries.transpose(0, 1)  # as models give them: heads are not the outermost dimension in memory
    rule = AttentionParams(0.4, softcap=5.0, sinks=torch.linspace(-1, 1, 6))
    recorded, expected = (
        strongest(queries, keys, slice(7, 50), rule, kernels=kernels) for kernels in ("triton", "torch")
    )
    assert (recorded - expected).abs().max() < 2e-6 < expected.min()


def test_the_statistics_of_cake_are_the_same_by_the_kernel(layer: Any, monkeypatch: Any) -> None:
    rows = layer.observed(17)
    expected = tuple(map(float, preference(layer, rows, 5)))
    monkeypatch.setattr("kvbench.eviction.allocation.layers.chunks", None)
    statistics = tuple(map(float, preference(layer, with_triton(rows), 5)))
    assert statistics == pytest.approx(expected, rel=2e-5) and min(expected) > 0


@pytest.mark.parametrize(
    ("kernels", "dtype", "head_dim", "says"),
    [
        ("flash_attn", torch.bfloat16, 128, r"not installed: pip install 'kvbench\[flash\]'"),
        ("varlen", torch.bfloat16, 128, r"runs on a GPU in bfloat16 or float16, not on cpu in bfloat16: use model"),
        ("triton", torch.float64, 128, r"not in float64: use model\.kernels=torch"),
        ("triton", torch.float32, 320, r"at most 256, not 320: use model\.kernels=torch"),
        ("cuda", torch.float32, 128, r"allowed: torch, triton, flash_attn, varlen"),
    ],
)
def test_what_cannot_run_says_what_to_do(kernels: Any, dtype: torch.dtype, head_dim: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_kernels(kernels, torch.device("cpu"), dtype, head_dim)


def test_a_soft_cap_is_refused_before_anything_is_loaded(monkeypatch: Any) -> None:
    capped = SimpleNamespace(attn_logit_softcapping=50.0)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda folder, **options: capped)
    monkeypatch.setattr("kvbench.models.loading.load.check_architecture", lambda config, where: None)
    monkeypatch.setattr("kvbench.models.loading.load.text_config", lambda config: config)
    with pytest.raises(ValueError, match=r"does not support a soft cap, here 50\.0: use model\.kernels=null$"):
        model_info(ModelSpec("reference", kernels="varlen"))


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "expected"),
    [
        ("cuda", torch.bfloat16, 128, "triton"),
        ("cuda", torch.float64, 128, "torch"),
        ("cuda", torch.float32, 320, "torch"),
        ("cpu", torch.float32, 128, "torch"),
    ],
)
def test_triton_is_the_default_on_a_gpu_where_it_can_run(
    device: str, dtype: torch.dtype, head_dim: int, expected: str, monkeypatch: Any
) -> None:
    assert chosen_kernels(None, torch.device(device), dtype, head_dim) == expected
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    assert chosen_kernels(None, torch.device(device), dtype, head_dim) == "torch"


def test_without_the_extra_torch_is_the_default_and_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    assert list(choice.packages()) == ["triton"]
    monkeypatch.setattr(choice, "packages", dict)
    assert chosen_kernels(None, gpu, torch.bfloat16, 128) == "torch"
    with pytest.raises(ValueError, match=r"model\.kernels=triton: allowed: torch, flash_attn, varlen$"):
        check_kernels("triton", gpu, torch.bfloat16)
    with pytest.raises(ValueError, match=r"model\.kernels=triton: allowed: torch, flash_attn, varlen$"):
        ModelSpec("reference", kernels="triton")


def test_kernels_of_another_package_are_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default takes the first package that can run; a package that needs none installed names none."""
    made: dict[str, Any] = {"mine.programs": SimpleNamespace(check=lambda device, dtype: None)}
    made |= {f"mine.{name}": SimpleNamespace(**{name: name}) for name in ("column_sums", "ragged_decode", "norms")}
    monkeypatch.setattr(choice, "import_module", made.__getitem__)
    monkeypatch.setattr(choice, "packages", lambda: {"mine": Named("mine", "", "mine", {})})
    assert chosen_kernels(None, torch.device("cuda"), torch.float64, 128) == "mine"
    assert chosen_kernels(None, torch.device("cpu"), torch.float32, 128) == "torch"
    assert (choice.column_sums_of("mine"), choice.ragged_decode_of("mine")) == ("column_sums", "ragged_decode")
    assert choice.column_sums_of("torch") is choice.ragged_decode_of("torch") is None
    assert choice.kernel_module("norms").norms == "norms" and ModelSpec("reference", kernels="mine").kernels == "mine"


def test_the_default_keeps_its_name_and_the_environment_tells_what_ran(monkeypatch: Any) -> None:
    """A cell is what was asked for: like the device, the kernels that the default chose are in the environment file."""
    spec = ModelSpec("reference")
    for chosen in ("torch", "triton"):
        monkeypatch.setattr("kvbench.models.loading.load.chosen_kernels", lambda *_, chosen=chosen: chosen)
        assert environment(load(model_info(spec)).device)["device"]["kernels"] == chosen
        assert describe_model(spec)["kernels"] == describe_model(replace(spec, kernels="torch"))["kernels"] == "torch"
    assert describe_model(replace(spec, kernels="triton"))["kernels"] == "triton"


def test_without_the_interpreter_a_cpu_is_refused(monkeypatch: Any) -> None:
    check_kernels("triton", torch.device("cpu"), torch.float32)
    monkeypatch.setattr("kvbench.extras.triton.programs.INTERPRETED", False)
    with pytest.raises(ValueError, match="or set TRITON_INTERPRET=1"):
        check_kernels("triton", torch.device("cpu"), torch.float32)
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'kvbench\[kernels\]'"):
        check_kernels("triton", torch.device("cuda"), torch.float32)


def sequences(queries: Any, keys: Any, values: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, scale: float) -> Any:
    """What both packages document: sequence i has rows cu_q[i] to cu_q[i + 1] and tokens cu_k[i] to cu_k[i + 1]."""
    assert cu_q.dtype == cu_k.dtype == torch.int32 and queries.shape[1] == keys.shape[1] == 1
    assert (cu_q.diff() == max_q).all() and cu_k.diff().max() == max_k
    rows = queries[:, 0].unflatten(0, (-1, max_q))
    outputs, lse = naive.ragged_decode(rows, keys[:, 0], values[:, 0], cu_k[:-1], cu_k.diff(), scale)
    return outputs.flatten(0, 1)[:, None], lse.masked_fill(lse == -torch.inf, torch.inf).flatten()[None]


def flash_varlen(*arrays: Any, softmax_scale: float, causal: bool, softcap: float, return_attn_probs: bool) -> Any:
    assert not causal and return_attn_probs and softcap == 0
    return *sequences(*arrays, softmax_scale), None


def torch_varlen(*arrays: Any, return_aux: Any, scale: float) -> Any:
    assert return_aux.lse
    return sequences(*arrays, scale)


@pytest.mark.parametrize("kernels", ["flash_attn", "varlen"])
def test_packages_are_asked_for_the_segments(kernels: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_varlen_func=flash_varlen))
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", torch_varlen)
    queries, keys, values, starts, lengths = segments(rows=5)
    held = torch.cat([torch.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)])
    keys, values, starts = keys[held], values[held], lengths.cumsum(0) - lengths
    decode = choice.ragged_decode_of(kernels)
    assert decode is not None
    outputs, lse = decode(queries, keys, values, starts, lengths, 0.2)
    expected, expected_lse = naive.ragged_decode(queries, keys, values, starts, lengths, 0.2)
    assert torch.equal(outputs, expected) and torch.equal(lse, expected_lse) and lse[0].isinf().all()
    if kernels == "varlen":
        with pytest.raises(ValueError, match="does not support a soft cap, here 5"):
            decode(queries, keys, values, starts, lengths, 0.2, softcap=5.0)
