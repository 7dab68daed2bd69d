"""Scores of presses: what they are given, what is refused, and that nothing of transformers stays changed."""

import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvbench.cache.kv_cache import LayerCache
from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.eviction.budget import TokenBudget, parse_budget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.expected_attention import ExpectedAttention
from kvbench.eviction.scores.keys import KeyDiff, KeyNorm
from kvbench.eviction.scores.recency import Recency
from kvbench.eviction.scores.score import Score
from kvbench.extras.kvpress.press import REFUSED, Press, imported
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.run.plan import plan
from kvbench.run.plan_memory import hidden_bytes
from tests import presses
from tests.embedded import HIDDEN, LAYERS, QUERY_HEADS
from tests.models.families import PROMPT, engine_of, tiny
from tests.repository import ROOT

PLAIN = Policy("plain")


@pytest.fixture(autouse=True)
def _tests_are_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.extras.kvpress.press.plugin_packages", lambda: ["tests"])


kvpress_only = pytest.mark.skipif(find_spec("kvpress") is None, reason="see kvbench/extras/kvpress/kvpress.md")


def own(name: str, reads: Any = None, **args: Any) -> Press:
    return Press(f"tests.presses.{name}", args, reads)


def read(model: Any, *scores: Score) -> tuple[LayerCache, ...]:
    bridge.attach(model)
    return Engine(model, prefill_chunk=16, max_length=512).prefill(PROMPT, (), scores).cache.evictable


@pytest.mark.parametrize("family", ["llama", "gemma3", "phi3"])
def test_a_press_is_given_what_kvpress_documents(family: str) -> None:
    model = tiny(family)
    presses.SEEN.clear()
    layers = read(model, own("Watching").of_budget(TokenBudget(20)))
    modules = [part for part in model.modules() if getattr(part, "layer_idx", None) is not None and part.layer_idx >= 0]
    assert [seen["module"].layer_idx for seen in presses.SEEN] == [layer.index for layer in layers]
    for layer, seen in zip(layers, presses.SEEN, strict=True):
        module, (cos, sin) = seen["module"], seen["kwargs"]["position_embeddings"]
        assert module in modules and module.config is not None and not hasattr(module, "rotary_emb")
        assert seen["hidden"].shape == (1, 61, 48) and seen["attentions"] is None
        expected = seen["rotary"](seen["hidden"], torch.arange(61)[None])
        assert torch.equal(cos, expected[0]) and torch.equal(sin, expected[1])
        for given, held in zip((seen["keys"], seen["values"]), layer.dense, strict=True):
            assert torch.equal(given[0], held) and given.data_ptr() != held.data_ptr()
        assert seen["ratio"] == pytest.approx(1 - 20 / 61)


@pytest.mark.parametrize(("budget", "ratio"), [("0.1", 0.9), ("0.35", 0.65), ("1.0", 0.0), ("61", 0.0), ("90", 0.0)])
def test_a_press_reads_the_ratio_that_a_user_of_kvpress_would_write(budget: str, ratio: float) -> None:
    """Not that of the pairs that a prompt rounds it to: a tenth of 61 tokens is 6."""
    presses.SEEN.clear()
    read(tiny("llama"), own("Watching").of_budget(parse_budget(budget)))
    assert {seen["ratio"] for seen in presses.SEEN} == {ratio}


def test_scores_that_read_the_cache_need_no_pass_of_their_own() -> None:
    score = own("Norms", "cache")
    assert score.inputs.hidden_states is None and own("Norms").inputs.hidden_states == "prompt"
    for layer in read(tiny("llama"), own("Norms")):
        assert torch.equal(score(layer, None, "sum"), KeyNorm()(layer, None, "sum"))
        assert torch.equal(own("Norms")(layer, None, "sum"), KeyNorm()(layer, None, "sum"))


def test_a_press_in_a_press_and_one_cell_per_budget() -> None:
    """What is not known to be the same for all budgets is scored for each of them."""
    words = "policy=ada_snapkv score=kvpress score.press=tests.presses.Norms score.args.scale=2.5 budget=0.1,0.2"
    cells = [CellBuilder().cell(tree) for tree in combinations(parse(words.split()))]
    assert [cell.score.args for cell in cells] == [{"scale": 2.5}] * 2  # type: ignore[attr-defined]
    assert cells[0].score != cells[1].score and len({cell.id for cell in cells}) == 2
    assert "sha256" in cells[0].description["plugins"]["tests"]
    assert cells[0].eviction.score_label == "kvpress press=tests.presses.Norms args.scale=2.5"
    words = "policy=plain score=kvpress score.press=tests.presses.Within score.args.press=tests.presses.Norms"
    (tree,) = combinations(parse(words.split()))  # an argument that the press cannot do without
    assert (
        CellBuilder().cell(tree).eviction.score_label
        == "kvpress press=tests.presses.Within args.press=tests.presses.Norms"
    )
    within = own("Within", "cache", press={"press": "tests.presses.Norms", "args": {"scale": 3}})
    (layer, *_) = read(tiny("llama"))
    assert torch.allclose(within(layer, None, "sum"), -3 * KeyNorm()(layer, None, "sum"))


def test_the_plan_counts_the_copy_of_hidden_states() -> None:
    words = "task=ruler/niah_single_1 task.context_length=5000 model.max_length=6000 policy=snapkv score=kvpress"
    (tree,) = combinations(parse([*words.split(), "score.press=tests.presses.Norms"]))
    (group,) = plan([CellBuilder().cell(tree)], set()).groups
    assert hidden_bytes(group) == (2 * 5000 * HIDDEN * 4, LAYERS * QUERY_HEADS * 5000 * 4)


BAD = [
    ("tests.presses.Nothing", {}, r"press=tests\.presses\.Nothing is no press with a score: .*allowed: Changing"),
    ("tests.nothing.Nothing", {}, r"score\.press=tests\.nothing\.Nothing does not load"),
    ("ThinKPress", {}, "ThinKPress is no score: it removes channels of keys"),
    ("AdaKVPress", {}, "is no score: .*policy=ada_snapkv"),
    ("tests.presses.Norms", {"scales": 2}, r"score\.args\.scales=2: unknown argument .*did you mean scale\?"),
    ("tests.presses.Norms", {"scale": "much"}, r"score\.args\.scale=much: allowed: a (valid )?number.*tests\.presses"),
    ("tests.presses.Norms", {"compression_ratio": 0.9}, r"it is the budget that says .*: budget=0\.1"),
    ("tests.presses.Within", {}, r"refuses score\.args=\{\}: TypeError: .*'press'"),
    ("tests.presses.Within", {"press": "KVzipPress"}, r"score\.args\.press\.press=KVzipPress is no score: .*kvzip"),
    ("tests.presses.Within", {"press": 3}, r"score\.args\.press=3: allowed: the name of a press"),
]


@pytest.mark.parametrize(("press", "args", "reason"), BAD, ids=str)
def test_bad_presses_are_refused_before_a_model_is_loaded(press: str, args: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        Press(press, args)
    assert "\n" not in str(caught.value)


def test_the_page_says_why_each_press_is_refused() -> None:
    page = (ROOT / "kvbench" / "extras" / "kvpress" / "kvpress.md").read_text("utf-8")
    assert [name for name, why in REFUSED.items() if f"| `{name}` | {why} |" not in page] == []


RUNS = {
    "Positional": r"returns \[2, 61\], allowed: \[1, KV heads, tokens\], here \[1, 2, 61\]",
    "Endless": "returns NaN or inf, allowed: finite numbers",
    "Changing": "changes its values: a press returns scores and leaves its inputs as they are",
    "Failing": "fails: KeyError: 'cache_position'",
}


@pytest.mark.parametrize("name", RUNS)
def test_what_is_no_score_is_refused_and_the_model_stays_as_it_was(name: str) -> None:
    model = tiny("llama")
    before = [dict(vars(module)) for module in model.modules()]
    with pytest.raises(ValueError, match=rf"tests\.presses\.{name} in layer 0 {RUNS[name]}"):
        read(model, own(name))
    after = [dict(vars(module)) for module in model.modules()]
    assert [{*part} for part in after] == [{*part} for part in before]
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not any(name.endswith("rotary_emb") and "self_attn" in name for name, _ in model.named_modules())


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_transformers_stays_wrapped(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before, own_entries = dict(ALL_ATTENTION_FUNCTIONS), dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    monkeypatch.delitem(sys.modules, "tests.patching_press", raising=False)
    monkeypatch.setenv("FAILS_AFTER_PATCHING", "1" if fails else "")
    if fails:
        with pytest.raises(ValueError, match=r"score\.press=tests\.patching_press\.Norms does not load: no such thing"):
            Press("tests.patching_press.Norms")
    else:
        Press("tests.patching_press.Norms")
    assert dict(ALL_ATTENTION_FUNCTIONS) == before
    assert own_entries == ALL_ATTENTION_FUNCTIONS._local_mapping


@pytest.mark.skipif(find_spec("kvpress") is not None, reason="kvpress is installed")
def test_what_to_install_is_said() -> None:
    with pytest.raises(FileNotFoundError, match=r"pip install 'kvbench\[kvpress\]' and then .* --no-deps kvpress"):
        Press("LagKVPress")


@kvpress_only
@pytest.mark.slow
def test_presses_of_kvpress_rank_as_scores_of_our_own() -> None:
    before = dict(ALL_ATTENTION_FUNCTIONS)
    pairs: dict[Press, Score] = {
        Press("KnormPress"): KeyNorm(),
        Press("KeyDiffPress"): KeyDiff(),
        Press("ExpectedAttentionPress"): ExpectedAttention(),
        Press("StreamingLLMPress", {"n_sink": 0}): Recency(),
    }
    module, budget = imported("kvpress"), parse_budget("0.3")
    assert dict(ALL_ATTENTION_FUNCTIONS) == before
    scores = {name for name, kind in vars(module).items() if name.endswith("Press") and hasattr(kind, "score")}
    assert {*REFUSED} <= {*dir(module), "KVgradPress", "EntropyGatedChunkKVPress"} and len(scores - {*REFUSED}) >= 19
    engine = engine_of("llama", block=512)
    for press, score in pairs.items():
        both = press.of_budget(budget), score
        cache = engine.prefill(PROMPT, (), both).cache
        theirs, ours = (Eviction(PLAIN, each, budget).decide(cache).kept for each in both)
        assert all(map(torch.equal, theirs, ours)), press.press
