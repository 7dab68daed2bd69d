"""Models whose indexer chooses the keys of each query: how transformers runs them, and what `model=hf` says of them."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kvbench.cli.main import main
from kvbench.support import paths

TINY = {
    **{"vocab_size": 200, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32},
    **{"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16},
    **{"index_n_heads": 2, "index_head_dim": 16, "n_routed_experts": 4, "num_local_experts": 4},
    **{"num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    **{"max_position_embeddings": 512, "initializer_range": 0.3, "pad_token_id": None, "bos_token_id": 1},
    "eos_token_id": 2,
}
IDS = torch.arange(40)[None] * 7 % 200
NEW_TOKENS = 6
INDEXED = ["axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"]


def tiny(kind: str, chosen: int) -> Any:
    """A random model whose queries attend to so many keys."""
    torch.manual_seed(0)
    sizes = TINY | ({"num_key_value_heads": 1} if kind == "deepseek_v4" else {})
    config = AutoConfig.for_model(kind, **sizes, index_topk=chosen)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


@pytest.mark.parametrize("kind", [*INDEXED, "deepseek_v4"])
def test_transformers_runs_them(kind: str) -> None:
    answer = tiny(kind, 8).generate(IDS, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False)
    assert answer.shape == (1, 40 + NEW_TOKENS)


@pytest.mark.parametrize("kind", INDEXED)
@torch.inference_mode()
def test_the_choice_is_made_in_the_prompt_too_and_has_keys_of_its_own(kind: str) -> None:
    part, more, whole = (tiny(kind, chosen)(input_ids=IDS, use_cache=True) for chosen in (8, 40, 64))
    assert torch.equal(more.logits, whole.logits), "both attend to all keys"
    assert torch.equal(part.logits[:, :8], whole.logits[:, :8]), "the first queries see no more"
    assert (part.logits[:, 8:] - whole.logits[:, 8:]).abs().amax(dim=-1).max() > 0.1
    for layer in part.past_key_values.layers:
        assert layer.keys.shape == (1, 1, 40, 16) and layer.indexer_keys.shape == (1, 40, 16)


@torch.inference_mode()
def test_layers_of_glm_share_a_choice() -> None:
    model = tiny("glm_moe_dsa", 8)
    config = copy.deepcopy(model.config)
    config.indexer_types = ["full", "shared"]
    shared = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    assert shared.model.layers[0].self_attn.indexer is not None and shared.model.layers[1].self_attn.indexer is None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        *((kind, "are of the type indexed_attention, whose indexer chooses keys for each query") for kind in INDEXED),
        ("deepseek_v4", "are of the type heavily_compressed_attention, whose keys stand for several tokens"),
    ],
)
def test_the_refusal_is_one_line(kind: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny(kind, 8).save_pretrained(tmp_path)
    for file in (paths.assets() / "reference").glob("*token*"):
        shutil.copy(file, tmp_path)
    capsys.readouterr()  # progress of the files
    settings = ["policy=snapkv", "budget=0.5", "task.context_length=64", f"results.dir={tmp_path / 'results'}"]
    assert main(["run", "--quiet", "model=hf", f"model.path={tmp_path}", *settings]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"2 of 2 layers of {kind} {reason}" in line
