"""Models that choose for themselves: prompt, answer and eviction as transformers' own code makes them."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import AutoConfig, AutoModelForCausalLM

from kvbench.cache.kv_cache import KVCache, compact
from kvbench.cli.main import main
from kvbench.eviction.scores.attn import received
from kvbench.extras.readers.indexed_model import TRANSFORMERS
from kvbench.extras.readers.indexer import Indexer, use_indexers
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.records.folder import ResultsFolder
from kvbench.records.rows import recorded
from kvbench.support import paths

pytestmark = pytest.mark.skipif(
    Version(transformers.__version__).release < TRANSFORMERS, reason="model=indexed refuses this transformers"
)
TINY = {
    **{"vocab_size": 200, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32},
    **{"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16},
    **{"index_n_heads": 16, "index_head_dim": 16, "n_routed_experts": 4, "num_local_experts": 4},
    **{"num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    **{"max_position_embeddings": 512, "initializer_range": 0.3, "pad_token_id": None, "bos_token_id": 1},
    "eos_token_id": 2,
}
"""With so many heads of the indexer no two keys have the same number."""
IDS = torch.arange(40)[None] * 7 % 200
INDEXED = ["axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"]
KINDS = [*INDEXED, "shared"]
"""Model types, and GLM-5 with a second layer that takes the choice of the first."""
CHOSEN, PROMPT, NEW = 8, 40, 10
INDEX, LATENT = TINY["index_head_dim"], TINY["kv_lora_rank"] + TINY["qk_rope_head_dim"]


@cache
def tiny(kind: str, vocabulary: int = 200) -> Any:
    torch.manual_seed(0)
    sizes = TINY | {"index_topk": CHOSEN, "vocab_size": vocabulary}
    if kind == "shared":
        sizes |= {"indexer_types": ["full", "shared"]}
    if kind == "deepseek_v4":
        sizes |= {"num_key_value_heads": 1}
    config = AutoConfig.for_model("glm_moe_dsa" if kind == "shared" else kind, **sizes)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


@cache
def engine_of(kind: str) -> Engine:
    tiny.cache_clear()  # a second model with the same weights
    model = tiny(kind)
    tiny.cache_clear()
    model.config.layer_types = ["full_attention"] * 2
    bridge.attach(model)
    engine = Engine(model, max_batch=3, max_length=512)
    use_indexers(engine)
    return engine


def continued(engine: Engine, caches: list[KVCache], ids: torch.Tensor, question: int = 1) -> torch.Tensor:
    """Logits [steps, cells, vocabulary] after a question and after each later token of `ids`."""
    batch = Indexer().batch(list(caches), engine, len(ids), 0)
    parts = [ids[:question], *ids[question:].split(1)]
    return torch.stack([engine.read(batch, part.expand(3, -1))[: len(caches)] for part in parts])


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_prompts_are_read_as_the_model_reads_them(kind: str) -> None:
    expected = tiny(kind)(input_ids=IDS, use_cache=False).logits[0, -1]
    for block in (PROMPT, 13):
        logits = engine_of(kind).prefill(IDS[0], prefill_chunk=block).logits
        assert (logits - expected).abs().max() < 1e-4


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_the_full_cache_answers_as_generate(kind: str) -> None:
    expected = tiny(kind).generate(IDS, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)[0, PROMPT:]
    engine = engine_of(kind)
    prefilled = engine.prefill(IDS[0])
    assert prefilled.full_bytes == 2 * 2 * PROMPT * (INDEX + LATENT) * 4, "two layers, keys and values"
    batch = Indexer().batch([prefilled.cache], engine, NEW, 0)
    (answer,) = engine.generate(prefilled, batch, ())
    assert list(answer.ids) == expected.tolist()
    mean_held = PROMPT + NEW / 2
    read = batch.bytes_read(0, 0, NEW - 1)
    assert read == (2 * CHOSEN * 2 * LATENT * 4, 2 * mean_held * INDEX * 4)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_scores_are_of_attention_after_the_choice(kind: str) -> None:
    attentions = tiny(kind)(input_ids=IDS, use_cache=False, output_attentions=True).attentions
    for block in (PROMPT, 13):
        cache_of_prompt = engine_of(kind).prefill(IDS[0], windows={16, PROMPT}, prefill_chunk=block).cache
        for layer, weights in zip(cache_of_prompt.layers, attentions, strict=True):
            for rows in (16, PROMPT):
                expected = weights[0, :, -rows:].sum(dim=1)
                assert (received(layer, layer.observed(rows), "sum") - expected).abs().max() < 1e-5
            assert ((weights[0] > 0).sum(dim=-1) <= CHOSEN).all()


def masked(evicted: torch.Tensor) -> Callable[..., Any]:
    """Hide the evicted pairs [PROMPT] of a layer from its indexer and its attention, for tokens behind the prompt."""

    def hide(module: Any, arrays: Any, named: dict[str, Any]) -> Any:
        mask = named["attention_mask"].clone()
        mask[..., PROMPT:, :PROMPT].masked_fill_(evicted, -torch.inf)
        return arrays, named | {"attention_mask": mask}

    return hide


@pytest.mark.parametrize("question", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_eviction_masks_a_pair_out_of_indexer_and_attention(kind: str, question: int) -> None:
    """Against transformers' model without a cache. Layers that share a choice keep the same pairs in this test."""
    engine, new = engine_of(kind), torch.arange(NEW) * 11 % 200
    full, caches, expected = engine.prefill(IDS[0]).cache, [], []
    for seed, share in enumerate((0.3, 0.6)):
        draw = torch.Generator().manual_seed(seed)
        kept = torch.rand(2, 1, PROMPT, generator=draw) < share
        kept = kept[:1].expand(2, -1, -1) if kind == "shared" else kept
        caches.append(compact(full, tuple(kept)))
        assert caches[-1].bytes_held == 2 * int(kept.sum()) * (INDEX + LATENT) * 4, "the index key has left too"
        model = tiny(kind)
        hooks = [
            layer.self_attn.register_forward_pre_hook(masked(~keeps[0]), with_kwargs=True)
            for layer, keeps in zip(model.model.layers, kept, strict=True)
        ]
        logits = model(input_ids=torch.cat((IDS, new[None]), dim=1), use_cache=False).logits[0, PROMPT:]
        expected.append(logits[question - 1 :])
        for hook in hooks:
            hook.remove()
    actual = continued(engine, caches, new, question)
    assert (actual - torch.stack(expected, dim=1)).abs().max() < 1e-4
    assert (actual[0, 0] - actual[0, 1]).abs().max() > 1e-2, "the budget must matter"


@torch.inference_mode()
def test_layers_that_share_a_choice_may_keep_different_pairs() -> None:
    """The second layer chooses among its own pairs, by the numbers of the first."""
    engine = engine_of("shared")
    full = engine.prefill(IDS[0]).cache
    first, second = full.layers
    assert torch.equal(first.keys[:, :INDEX], second.keys[:, :INDEX]) and (first.values[:, :INDEX] == 0).all()
    few = torch.arange(PROMPT)[None] % 5 == 0
    smaller = compact(full, (torch.ones_like(few), few))
    assert continued(engine, [smaller], torch.tensor([3, 9, 27])).isfinite().all()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved models with the embedded tokenizer."""
    found = {}
    for kind in (*INDEXED, "deepseek_v4"):
        folder = tmp_path_factory.mktemp(kind)
        tiny(kind, AutoConfig.from_pretrained(paths.assets() / "reference").vocab_size).save_pretrained(folder)
        for file in (paths.assets() / "reference").glob("*token*"):
            shutil.copy(file, folder)
        found[kind] = folder
    return found


def run(command: str, folder: Path, results: Path, *words: str, model: str = "indexed") -> int:
    task = ["task.context_length=320", "task.samples=1", "task.max_new_tokens=4", f"results.dir={results}"]
    quiet = ["--quiet"] if command == "run" else []
    return main([command, *quiet, f"model={model}", f"model.path={folder}", *task, *words])


@pytest.mark.parametrize("kind", INDEXED)
def test_a_run_makes_rows(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    assert run("run", folders[kind], tmp_path, "policy=snapkv,streaming_llm,h2o", "budget=0.5") == 0
    columns = ("policy", "error", "cache_bytes", "read_bytes", "index_bytes", "prompt_tokens")
    rows = recorded(ResultsFolder(tmp_path), columns, lambda text: None).to_pylist()
    assert sorted(row["policy"] for row in rows) == ["full", "h2o", "snapkv", "streaming_llm"]
    bytes_of = {row["policy"]: row["cache_bytes"] for row in rows}
    for row in rows:
        assert row["error"] is None
        assert row["read_bytes"] == 2 * CHOSEN * 2 * LATENT * 4
        assert row["index_bytes"] > 2 * INDEX * 4 * row["prompt_tokens"] * (1 if row["policy"] == "full" else 0.49)
        assert abs(row["cache_bytes"] / bytes_of["full"] - (1 if row["policy"] == "full" else 0.5)) < 0.01


@pytest.fixture
def _weights_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.run.local.load", None)


@pytest.mark.usefixtures("_weights_are_not_loaded")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["reader=quest"], "reader=quest chooses in its place"),
        (["store=int4"], "quantizes"),
        (["schedule.decode_every=4"], "evicts from the answer"),
        (["schedule.prefill_block=64"], "evicts while the prompt is read"),
        (["policy.positions=cache"], "rotates"),
        (["policy.apply=nearest"], "policy.apply=nearest changes kept pairs"),
        (["model.kernels=triton"], "model.kernels=triton: model=indexed runs in PyTorch on a CPU alone"),
        (["model.device=cuda"], "model.device=cuda: model=indexed runs in PyTorch on a CPU alone"),
        (["score=key_norm"], "score key_norm may read keys"),
        (["score=kvzip", "policy=kvzip"], "score kvzip may read keys"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    words: list[str], reason: str, folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = [] if any(word.startswith("policy=") for word in words) else ["policy=snapkv"]
    capsys.readouterr()
    assert run("run", folders["deepseek_v32"], tmp_path, *policy, "budget=0.5", *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line and "indexed" in line


@pytest.mark.parametrize(
    ("command", "reason"), [(["run", "task=efficiency"], "measures seconds"), (["probe", "oracle_recall"], "indexed")]
)
def test_times_and_probes_are_refused(
    command: list[str], reason: str, folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["model=indexed", f"model.path={folders['deepseek_v32']}", "policy=snapkv", "budget=0.5"]
    assert main([*command, *words, "task.context_length=320", f"results.dir={tmp_path}"]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "model", "reason"),
    [
        ("deepseek_v4", "hf", "layers of deepseek_v4 are of the type heavily_compressed_attention"),
        ("deepseek_v4", "indexed", "model=indexed reads axk2, deepseek_v32, glm_moe_dsa, hy_v4, not deepseek_v4"),
        ("deepseek_v32", "hf", "model=indexed reads"),
    ],
)
def test_plan_refuses_what_run_refuses(
    kind: str, model: str, reason: str, folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("run", "plan"):
        capsys.readouterr()
        assert run(command, folders[kind], tmp_path, "policy=snapkv", "budget=0.5", model=model) == 2
        assert reason in capsys.readouterr().err.splitlines()[-1]
    assert run("plan", folders["glm_moe_dsa"], tmp_path, "policy=snapkv", "budget=0.5") == 0
